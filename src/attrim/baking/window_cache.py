"""A cache of keys and values that keeps only what windows look at, so that long generations need less memory and time.

A group of heads that all attend to near tokens and the first ones never looks at the keys between them again. Here
these are freed, not masked. Groups with a head that looks everywhere keep everything.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..attention.interface import Attended, answering
from ..attention.masks import allowed_by, is_noted, only_forbids
from ..attention.session import active_sessions
from ..errors import ParameterError
from .windows import Span, find_windows

GROWTH = 64
"""What is kept in full grows by this share (1 / GROWTH) at a time, so that it is seldom copied and little is empty."""
WASTED = 1 << 18
"""Bytes of a layer that could be dropped and are kept all the same: reading them costs less than another call does."""
SMALL = 1 << 16
"""Bytes of the keys of some groups up to which a token is added by copying them all, as transformers does: one call."""


@dataclass(frozen=True)
class HeadGroups:
    """Groups of heads of one layer that keep the same keys.

    Attributes
    ----------
    numbers : of the groups.
    span : the largest window of their heads; None where a head looks everywhere.
    windows : the window of every head of these groups, in order; None for a head that looks everywhere.
    """

    numbers: tuple[int, ...]
    span: Span | None
    windows: tuple[Span | None, ...]

    @functools.cached_property
    def uniform(self) -> bool:
        """Whether all heads look at all that is kept."""
        return all(window == self.span for window in self.windows)

    @functools.cached_property
    def narrowest(self) -> float:
        """The length up to which a text has no token that its last one does not see."""
        return min((sum(window) for window in self.windows if window is not None), default=math.inf)

    def kept(self, length: int) -> int:
        """Tokens that are kept of a text."""
        return length if self.span is None else min(length, sum(self.span))


def group_heads(heads: int, groups: int, windows: dict[int, Span]) -> tuple[HeadGroups, ...]:
    """The groups of a layer by what they keep.

    Parameters
    ----------
    heads, groups : heads of queries, and of keys and values.
    windows : of the heads that have one.
    """
    size = heads // groups
    found: dict[Span | None, list[int]] = {}
    for group in range(groups):
        own = [windows.get(head) for head in range(group * size, (group + 1) * size)]
        wide = [window for window in own if window is not None]
        span = (max(one[0] for one in wide), max(one[1] for one in wide)) if len(wide) == size else None
        found.setdefault(span, []).append(group)
    return tuple(
        HeadGroups(
            tuple(numbers),
            span,
            tuple(windows.get(group * size + place) for group in numbers for place in range(size)),
        )
        for span, numbers in found.items()
    )


def together_until(kinds: Sequence[HeadGroups], bytes_: int) -> float:
    """The length up to which groups of several kinds are kept together; 0 where there is one kind.

    Up to twice the length at which one of them can drop a token, unless :data:`WASTED` is reached before.

    Parameters
    ----------
    bytes_ : of the keys and values of a token in one group, for all examples.
    """
    dropping = [groups for groups in kinds if groups.span is not None]
    if len(kinds) == 1:
        return 0
    shortest = min(groups.kept(sys.maxsize) for groups in dropping)
    return shortest + min(shortest, WASTED // (bytes_ * sum(len(groups.numbers) for groups in dropping)))


class DecodingStep:
    """What layers find out once a step: whether its mask is one they know, and what the last token does not see."""

    def __init__(self) -> None:
        self._mask: Tensor | None = None
        self._checked = False
        self._length = 0
        self._known: dict[HeadGroups, Tensor] = {}
        self.served = False
        """Whether the call of a model is running that asks this cache for its attention."""

    def begin(self) -> None:
        """The model is called: nothing is known about the mask that its layers will get."""
        self._mask, self._checked, self.served = None, False, True

    def end(self) -> None:
        """The call of the model is over."""
        self.served = False

    def is_checked(self, mask: Tensor | None) -> bool:
        """Whether a layer has had this mask, and found that nothing speaks against it."""
        return self._checked and mask is self._mask

    def note_checked(self, mask: Tensor | None) -> None:
        """Let later layers of this step take the mask as it is."""
        self._mask, self._checked = mask, True

    def find_mask(self, groups: HeadGroups, length: int, make: Callable[[], Tensor]) -> Tensor:
        """The mask of some groups for a text of ``length`` tokens."""
        if length != self._length:
            self._length = length
            self._known.clear()
        known = self._known.get(groups)
        if known is None:
            known = self._known[groups] = make()
        return known


class KeptTokens:
    """The keys and values of some groups: all of them, or the first tokens and a ring of the last ones.

    Token p of a text without padding is in slot p as long as there are slots. Later ones replace each other in the
    slots behind those of the first tokens. With padding on the left, every example has its own first tokens in the
    first slots.

    Attributes
    ----------
    tensors : keys and values ``[B, G, slots, D]``; there may be more slots than are filled.
    length : tokens that were seen.
    """

    def __init__(self, groups: HeadGroups, key: Tensor, value: Tensor, lead: Tensor, step: DecodingStep) -> None:
        self.groups, self.lead, self.length, self.step = groups, lead, 0, step
        self.farthest = int(lead.max())
        self.tensors = [tensor.new_zeros(*tensor.shape[:2], 0, tensor.shape[3]) for tensor in (key, value)]
        self._keep(key, value)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Outputs ``[B, G, N, D]`` of queries that follow what is kept; their keys and values are kept, too.

        Parameters
        ----------
        query : ``[B, G, N, D]``, where N counts the new tokens of all heads of a group. The heads of a group are as
            many queries of the one head of keys that they share: nothing is repeated.
        key, value : ``[B, G, Q, D]``, of the new tokens.
        """
        count = key.shape[2]
        mask: Tensor | None = None
        if count == 1:
            self._keep(key, value)
            keys, values = self.filled()
            if not self._sees_all():
                make = functools.partial(self._step_mask, query.dtype)
                mask = self.step.find_mask(self.groups, self.length, make)
        elif self.groups.span is None:
            self._keep(key, value)
            keys, values = self.filled()
            mask = self._by_group(self._allowed(self._positions(), count))
        else:
            # Keys that the first of these queries sees may be those that the last of them replaces.
            positions = torch.cat([self._positions(), self._new(count).expand(len(key), -1)], dim=1)
            pairs = zip(self.filled(), (key, value), strict=True)
            keys, values = (torch.cat(pair, dim=2) for pair in pairs)
            self._keep(key, value)
            mask = self._by_group(self._allowed(positions, count))
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)

    def _by_group(self, allowed: Tensor) -> Tensor:
        """What the heads see, ``[B|1, heads|1, Q, keys]``, as ``[B|1, own groups, N, keys]``."""
        batch, _, count, keys = allowed.shape
        heads, groups = len(self.groups.windows), len(self.groups.numbers)
        return allowed.expand(-1, heads, -1, -1).reshape(batch, groups, heads // groups * count, keys)

    def _step_mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of the last token: SDPA would make this of boolean cells in every layer."""
        allowed = self._by_group(self._allowed(self._positions(), 1))
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))

    def _keep(self, *new: Tensor) -> None:
        begin, count, span = self.length, new[0].shape[2], self.groups.span
        stop = self.length = begin + count
        in_order = span is None or (self.farthest == 0 and stop <= sum(span))
        held = self.tensors[0]
        if in_order and held.shape[2] == begin and (held.numel() + new[0].numel()) * held.element_size() <= SMALL:
            self.tensors = [torch.cat(pair, dim=2) for pair in zip(self.tensors, new, strict=True)]
            return
        self._make_room()
        if span is None or in_order:
            slot = begin
        elif count == 1 and begin - self.farthest >= span[1]:
            slot = span[1] + (begin - span[1]) % span[0]
        else:
            self._replace(new, begin, *span)
            return
        for tensor, added in zip(self.tensors, new, strict=True):
            tensor.narrow(2, slot, count).copy_(added)

    def _replace(self, new: tuple[Tensor, ...], begin: int, size: int, first: int) -> None:
        """Put new tokens into the ring, in the place of the oldest, and the first of each text into their slots."""
        # No text has its first tokens later than this, and the ring does not need them.
        oldest = min(max(begin, first, self.length - size), self.length)
        places = torch.arange(oldest, self.length, device=self.lead.device)
        slots = first + (places - first) % size
        for tensor, added in zip(self.tensors, new, strict=True):
            tensor[:, :, slots] = added[:, :, oldest - begin :]
        if begin - self.farthest >= first:
            return
        own = torch.arange(begin, self.length, device=self.lead.device) - self.lead[:, None]  # position in its text
        examples, columns = ((own >= 0) & (own < first)).nonzero(as_tuple=True)
        for tensor, added in zip(self.tensors, new, strict=True):
            tensor[examples, :, own[examples, columns]] = added[examples, :, columns]

    def short_until(self) -> float:
        """The length up to which a token sees all that is kept, and is added to that by copying it all."""
        if self.farthest:
            return 0
        return min(self.groups.narrowest, SMALL // (self.tensors[0][:, :, :1].numel() * self.tensors[0].element_size()))

    def _make_room(self) -> None:
        """Room for all tokens that are kept, and for a few more, so that they are seldom copied."""
        kept, slots = self.groups.kept(self.length), self.tensors[0].shape[2]
        if kept > slots:
            slots = self.groups.kept(kept + max(16, kept // GROWTH))
            self.tensors = [_widened(tensor, slots) for tensor in self.tensors]

    def filled(self) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, G, filled slots, D]``."""
        filled = self.groups.kept(self.length)
        key, value = self.tensors
        return (key, value) if key.shape[2] == filled else (key.narrow(2, 0, filled), value.narrow(2, 0, filled))

    def _new(self, count: int) -> Tensor:
        return torch.arange(self.length, self.length + count, device=self.lead.device)

    def _positions(self) -> Tensor:
        """Int64 ``[B|1, filled]``, which token is in a slot; -1 for none, and for one that is in a first slot, too."""
        slot = torch.arange(self.groups.kept(self.length), device=self.lead.device)[None]
        if self.groups.span is None:
            return slot
        (size, first), last, lead = self.groups.span, self.length - 1, self.lead[:, None]
        ring = last - (last - slot) % size
        return torch.where(
            slot < first,
            torch.where(slot + lead <= last, slot + lead, -1),
            torch.where(ring - lead >= first, ring, -1),
        )

    def _sees_all(self) -> bool:
        """Whether the last token sees all that is kept."""
        if self.farthest == 0 and self.length <= self.groups.narrowest:
            return True
        if not self.groups.uniform:
            return False
        if self.farthest == 0:
            return True
        # Behind padding, a ring has slots that are empty, or have what is in a first slot, too.
        return self.groups.span is not None and self.length >= self.farthest + sum(self.groups.span)

    def _allowed(self, positions: Tensor, count: int) -> Tensor:
        """Bool ``[B|1, heads|1, Q, keys]``: what each of the last ``count`` tokens sees."""
        place, lead = positions[:, None, None], self.lead[:, None, None, None]
        query = torch.arange(self.length - count, self.length, device=place.device)[:, None]
        seen = (place >= lead) & (place <= query)
        return seen & ((query - place < self._sizes[0]) | (place - lead < self._sizes[1]))

    @functools.cached_property
    def _sizes(self) -> Tensor:
        """Size and first tokens of the window of each head, int64 ``[2, heads, 1, 1]``."""
        everything = torch.iinfo(torch.int64).max, 0
        windows = [everything if window is None else window for window in self.groups.windows]
        return torch.tensor(windows, device=self.lead.device).T[..., None, None]

    def select(self, index: Tensor) -> None:
        """Other examples of the batch, as beams are reordered."""
        index = index.to(self.lead.device)
        self.tensors = [tensor.index_select(0, index) for tensor in self.tensors]
        self.lead = self.lead.index_select(0, index)


def _widened(tensor: Tensor, slots: int) -> Tensor:
    """A tensor with the same beginning and more slots; the new ones are 0, because a masked NaN is still a NaN."""
    wider = tensor.new_zeros(*tensor.shape[:2], slots, tensor.shape[3])
    wider[:, :, : tensor.shape[2]] = tensor
    return wider


class WindowLayer(DynamicLayer):
    """The cache of one layer.

    Its groups are kept together, as transformers does, as long as none of them can drop much: a step then needs one
    call of attention in place of one for each kind of groups.

    Parameters
    ----------
    windows : of the heads that have one.
    step : of all layers of a cache.
    """

    is_croppable = False

    def __init__(self, windows: dict[int, Span], step: DecodingStep) -> None:
        super().__init__()
        self.windows, self.step = windows, step
        self.kept: list[KeptTokens] = []
        # Keys and values of a prompt in parts, until every text has had a token that is not padding.
        self.waiting: tuple[Tensor, Tensor] | None = None
        self.divided: tuple[HeadGroups, ...] = ()
        self.undivided_until = math.inf  # tokens
        self.short_until: float = 0  # tokens
        # Of the groups of ``kept`` in the layer, and of those of the layer in ``kept``, where the order is another one.
        self.numbers: Tensor | None = None
        self.order: Tensor | None = None
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values of the new tokens alone: :meth:`attend` adds those that are kept."""
        if not self.step.served:
            raise ParameterError(
                "A cache of windows needs the call of the baked model that it was made for; its forward alone does not "
                "know of it, and neither does another model."
            )
        self.is_initialized = True
        self.length += key_states.shape[-2]
        return key_states, value_states

    def begin(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> None:
        """Keep what later queries need of a prompt, or of the parts of it that were seen.

        Parameters
        ----------
        query, key, value : ``[B, H, Q, D]`` of the last part, ``[B, G, K, D]`` of all.
        attention_mask : of the prompt; texts may be padded on the left.
        """
        real = allowed_by(attention_mask, (query.shape[2], key.shape[2]), key.device)[:, 0, -1]
        if not bool(real.any(-1).all()):
            self.waiting = key, value  # where the text of an example begins is not known yet
            return
        self.waiting = None
        lead = real.int().argmax(-1).expand(len(key))
        if not bool(torch.equal(real, (torch.arange(key.shape[2], device=key.device) >= lead[:, None])[: len(real)])):
            raise ParameterError(
                "A cache of windows needs texts that are padded on the left only; set tokenizer.padding_side = 'left', "
                "or give generate past_key_values=DynamicCache()."
            )
        if attention_mask is not None and not is_noted(attention_mask):
            _require_causal(attention_mask, (query.shape[2], key.shape[2]), lead)
        heads, groups = query.shape[1], key.shape[1]
        self.divided = group_heads(heads, groups, self.windows)
        together = HeadGroups(tuple(range(groups)), None, tuple(map(self.windows.get, range(heads))))
        bytes_ = len(key) * (key.shape[3] + value.shape[3]) * key.element_size()
        self.undivided_until = together_until(self.divided, bytes_)
        if key.shape[2] > self.undivided_until:
            self._divide(key, value, lead)
        else:
            self.kept = [KeptTokens(together, key, value, lead, self.step)]
        self.short_until = self.kept[0].short_until() if len(self.kept) == 1 else 0

    def _divide(self, key: Tensor, value: Tensor, lead: Tensor) -> None:
        """Keep what each of the groups needs of the keys and values ``[B, G, K, D]`` that were seen."""
        self.undivided_until = math.inf
        numbers = torch.tensor([number for groups in self.divided for number in groups.numbers], device=key.device)
        self.numbers = None if bool((numbers.diff() > 0).all()) else numbers
        self.order = None if self.numbers is None else numbers.argsort()
        parts = zip(self.divided, self._parts(key), self._parts(value), strict=True)
        self.kept = [KeptTokens(groups, keys, values, lead, self.step) for groups, keys, values in parts]

    def _parts(self, tensor: Tensor) -> Sequence[Tensor]:
        """A tensor ``[B, groups, ...]`` as one for each kind of groups."""
        if len(self.divided) == 1:
            return (tensor,)
        if self.numbers is not None:
            tensor = tensor.index_select(1, self.numbers)
        return tensor.split([len(groups.numbers) for groups in self.divided], dim=1)

    def _attend_to_all(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """As :meth:`attend`, for one token that sees all of a short text: the calls that transformers makes."""
        kept, (batch, heads, _, size) = self.kept[0], query.shape
        kept.length = self.length
        keys, values = kept.tensors
        keys, values = kept.tensors = [torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)]
        asked = query.reshape(batch, keys.shape[1], -1, size)
        output = functional.scaled_dot_product_attention(asked, keys, values, scale=scaling)
        return output.reshape(batch, 1, heads, -1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Outputs ``[B, Q, H, D]`` of queries that follow the prompt."""
        batch, heads, count, size = query.shape
        if self.kept[0].length + count > self.undivided_until:
            self._divide(*self.kept[0].filled(), self.kept[0].lead)
        asked = query.reshape(batch, key.shape[1], -1, size)
        if len(self.kept) == 1:
            output = self.kept[0].attend(asked, key, value, scaling)
        else:
            parts = zip(self.kept, self._parts(asked), self._parts(key), self._parts(value), strict=True)
            output = torch.cat([kept.attend(own, keys, values, scaling) for kept, own, keys, values in parts], dim=1)
            if self.order is not None:
                output = output.index_select(1, self.order)
        if count == 1:
            return output.reshape(batch, 1, heads, -1)  # what the lines below do, in one call
        return output.reshape(batch, heads, count, -1).transpose(1, 2)

    def answer(
        self,
        function: Any,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **arguments: Any,
    ) -> Attended:
        """The attention of a module: of a prompt by ``function``, of what follows by what is kept."""
        if not self.kept:
            if self.waiting is not None:
                key, value = (torch.cat(pair, dim=2) for pair in zip(self.waiting, (key, value), strict=True))
            found: Attended = function(module, query, key, value, attention_mask, scaling=scaling, **arguments)
            self.begin(query, key, value, attention_mask)
            return found
        count = query.shape[2]
        if not self.step.is_checked(attention_mask):
            self._check(module, attention_mask, count)
        scaling = query.shape[3] ** -0.5 if scaling is None else scaling
        if count == 1 and self.length <= self.short_until:
            return self._attend_to_all(query, key, value, scaling), None
        return self.attend(query, key, value, scaling), None

    def _check(self, module: nn.Module, attention_mask: Tensor | None, count: int) -> None:
        """Refuse what needs keys that are gone, and masks that say more than what is kept goes by."""
        sessions = active_sessions()
        if len(sessions) > 1 and sum(module in session.map.modules for session in sessions) > 1:
            raise ParameterError(
                "Attention cannot be edited or watched while a cache of windows is used, because it does not have all "
                "keys; give past_key_values=DynamicCache()."
            )
        if attention_mask is not None and not is_noted(attention_mask):
            _require_causal(attention_mask, (count, self.kept[0].length + count), self.kept[0].lead)
        if len(sessions) <= 1:  # others may be about some of the layers
            self.step.note_checked(attention_mask)

    def get_seq_length(self) -> int:
        """How many tokens it has seen; fewer may be kept."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A mask covers all tokens that were seen."""
        return self.length + query_length, 0

    def reset(self) -> None:
        """Forget everything."""
        self.kept, self.waiting, self.numbers, self.order = [], None, None, None
        self.short_until, self.length, self.is_initialized = 0, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Other examples, as beams are reordered."""
        if self.waiting is not None:
            key, value = self.waiting
            self.waiting = key.index_select(0, beam_idx), value.index_select(0, beam_idx)
        for kept in self.kept:
            if len(beam_idx) != len(kept.lead):
                self.short_until = 0  # it has more bytes, or fewer
            kept.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every example several times."""
        self.reorder_cache(torch.arange(self._examples()).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only some of the examples."""
        self.reorder_cache(torch.arange(self._examples())[indices])

    def _examples(self) -> int:
        """How many texts it has tokens of."""
        if self.waiting is not None:
            return len(self.waiting[0])
        return len(self.kept[0].lead) if self.kept else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: what a window has passed is gone."""
        if tokens_to_remove:
            raise ParameterError(
                "A cache of windows cannot be cropped, because keys that a window has passed are gone; give generate "
                "past_key_values=DynamicCache()."
            )

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        held = [self.waiting or (), *(kept.tensors for kept in self.kept)]
        return sum(tensor.nbytes for tensors in held for tensor in tensors)


def _require_causal(mask: Tensor, shape: tuple[int, int], lead: Tensor) -> None:
    """Refuse a mask of the user's that says anything else than what is padding: what is kept goes by that alone.

    Parameters
    ----------
    shape : numbers of queries and of all keys that were seen.
    lead : padding before each text ``[B]``.
    """
    place, begin = torch.arange(shape[1], device=lead.device), lead[:, None, None, None]
    query = place[shape[1] - shape[0] :, None]
    expected = (place >= begin) & (place <= query)
    # What a query that is padding sees does not matter.
    same = (allowed_by(mask, shape, lead.device) == expected) | (query < begin)
    if not (only_forbids(mask) and bool(same.all())):
        raise ParameterError(
            "A cache of windows needs causal attention without biases, and the attention_mask with four axes asks for "
            "other attention; pass one with two axes [B, L], or give past_key_values=DynamicCache()."
        )


class WindowCache(DynamicCache):
    """Keys and values of a generation, of which groups of heads with windows keep the last ones and the first.

    It works with ``generate`` of the baked model whose windows it was made for (:func:`window_cache`).

    Parameters
    ----------
    windows : of the heads of each layer; None for a layer that keeps all keys as transformers does.
    """

    def __init__(self, windows: Iterable[dict[int, Span] | None]) -> None:
        super().__init__()
        self.layer_class_to_replicate = None
        self._step = DecodingStep()
        self._windows = list(windows)
        self._served: weakref.ReferenceType[Any] | None = None
        self.layers = [DynamicLayer() if own is None else WindowLayer(own, self._step) for own in self._windows]
        self._answers = {number: layer for number, layer in enumerate(self.layers) if isinstance(layer, WindowLayer)}

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that it holds now."""
        return sum(map(_held, self.layers))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_served": None}

    @contextmanager
    def serving(self, model: Any) -> Iterator[None]:
        """Let the layers of this cache answer the attention of the model while it runs."""
        if self._served is None or self._served() is not model:
            if find_windows(model) != self._windows:
                raise ParameterError(
                    f"The cache was made for other windows than those of this {type(model).__name__}; leave it out of "
                    "generate, or make one with attrim.baking.window_cache.window_cache(model)."
                )
            self._served = weakref.ref(model)
        self._step.begin()
        try:
            with answering(self._layer):
                yield
        finally:
            self._step.end()

    def _layer(self, module: nn.Module) -> WindowLayer | None:
        number: Any = getattr(module, "layer_idx", None)
        return self._answers.get(number)


def _held(layer: Any) -> int:
    """Bytes of keys and values of a layer."""
    if isinstance(layer, WindowLayer):
        return layer.nbytes
    return sum(tensor.nbytes for tensor in (layer.keys, layer.values)) if layer.is_initialized else 0


def window_cache(model: Any) -> WindowCache:
    """A cache for a model that was baked with windows; ``generate`` makes one by itself.

    Examples
    --------
    >>> model = attrim.bake(model, attrim.Window(256, 4, select=attrim.Select(heads=[(0, 3), (0, 4), (0, 5)])))
    >>> cache = attrim.baking.window_cache.window_cache(model)
    >>> model(**inputs, past_key_values=cache, use_cache=True)
    >>> cache.nbytes
    """
    found = find_windows(model)
    if found is None:
        raise ParameterError(
            f"This {type(model).__name__} cannot drop keys from its cache: it must be a decoder with standard "
            "attention and no sliding window of its own, which carries Windows, for each head one or several within "
            "one another, and no other edit."
        )
    return WindowCache(found)
