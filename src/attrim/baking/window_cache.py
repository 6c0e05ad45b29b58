"""A cache of keys and values that keeps only what windows look at, so that long generations need less memory and time.

A group of heads that all attend to near tokens and the first ones never looks at the keys between them again. Here
these are freed, not masked. Groups with a head that looks everywhere keep everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..attention.discover import find_sites
from ..attention.interface import Attended, answering, is_standard
from ..attention.masks import allowed_by
from ..attention.session import active_sessions
from ..core.site import Site
from ..edits.saving import CARRIER
from ..edits.window import Window
from ..errors import ParameterError
from .surgery import find

Span = tuple[int, int]
"""Size and first tokens of a window."""
GROWTH = 64
"""What is kept in full grows by this share (1 / GROWTH) at a time, so that it is seldom copied and little is empty."""


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

    @property
    def uniform(self) -> bool:
        """Whether all heads look at all that is kept."""
        return all(window == self.span for window in self.windows)

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


class KeptTokens:
    """The keys and values of some groups: all of them, or the first tokens and a ring of the last ones.

    Attributes
    ----------
    tensors : keys and values ``[B, G, slots, D]``.
    positions : int64 ``[B, slots]``, which token is in a slot; -1 for none. A first token is in its own slot alone.
    """

    def __init__(self, groups: HeadGroups, key: Tensor, value: Tensor, lead: Tensor) -> None:
        self.groups, self.lead, self.length = groups, lead, 0
        self.farthest = int(lead.max())
        slots = 0 if groups.span is None else sum(groups.span)
        self.positions = torch.full((len(key), slots), -1, device=key.device)
        self.tensors = [
            tensor.new_zeros(len(key), len(groups.numbers), slots, tensor.shape[3]) for tensor in (key, value)
        ]
        self._keep(self._own(key), self._own(value))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Outputs ``[B, heads, Q, D]`` of queries that follow what is kept; their keys and values are kept, too."""
        key, value, count = self._own(key), self._own(value), key.shape[2]
        new = torch.arange(self.length, self.length + count, device=key.device)
        if self.groups.span is not None and count > 1:
            # Keys that the first of these queries sees may be those that the last of them replaces.
            keys, values = (torch.cat(pair, dim=2) for pair in zip(self.tensors, (key, value), strict=True))
            positions = torch.cat([self.positions, new.expand(len(key), -1)], dim=1)
            self._keep(key, value)
        else:
            self._keep(key, value)
            filled = self.length if self.groups.span is None else None  # a ring has empty slots anywhere
            keys, values = (tensor[:, :, :filled] for tensor in self.tensors)
            positions = self.positions
        allowed = self._allowed(positions, new, keys.shape[2])
        # The heads of a group are as many queries of the one head of keys that they share: nothing is repeated.
        own = self._queries(query)
        asked = own.reshape(*keys.shape[:2], -1, own.shape[3])
        if allowed is not None:
            allowed = allowed.expand(*own.shape[:3], -1).reshape(*asked.shape[:3], -1)
        found = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=allowed, scale=scaling)
        return found.reshape(*own.shape[:3], -1)

    def _own(self, tensor: Tensor) -> Tensor:
        numbers = self.groups.numbers
        return tensor if len(numbers) == tensor.shape[1] else tensor[:, list(numbers)]

    def _queries(self, query: Tensor) -> Tensor:
        heads, groups = len(self.groups.windows), self.groups.numbers
        if heads == query.shape[1]:
            return query
        share = heads // len(groups)
        return query[:, [group * share + place for group in groups for place in range(share)]]

    def _keep(self, *new: Tensor) -> None:
        count = new[0].shape[2]
        stop = self.length + count
        if self.groups.span is None:
            if stop > self.tensors[0].shape[2]:
                self.tensors = [_with_room(tensor[:, :, : self.length], stop) for tensor in self.tensors]
            for tensor, added in zip(self.tensors, new, strict=True):
                tensor[:, :, self.length : stop] = added
        else:
            self._replace(new, torch.arange(self.length, stop, device=self.lead.device), *self.groups.span)
        self.length = stop

    def _replace(self, new: tuple[Tensor, ...], places: Tensor, size: int, first: int) -> None:
        """Put new tokens into the ring, in the place of the oldest, and the first ones into their own slots."""
        last = slice(max(0, len(places) - size), None)
        slots = first + places[last] % size
        own = places - self.lead[:, None]  # [B, count], the positions in the texts themselves
        self.positions[:, slots] = torch.where(own[:, last] >= first, places[last], -1)
        for tensor, added in zip(self.tensors, new, strict=True):
            tensor[:, :, slots] = added[:, :, last]
        if self.length - self.farthest >= first:
            return
        examples, columns = ((own >= 0) & (own < first)).nonzero(as_tuple=True)
        self.positions[examples, own[examples, columns]] = places[columns]
        for tensor, added in zip(self.tensors, new, strict=True):
            tensor[examples, :, own[examples, columns]] = added[examples, :, columns]

    def _allowed(self, positions: Tensor, new: Tensor, keys: int) -> Tensor | None:
        """Bool ``[B|1, heads|1, Q, keys]``, or None where every query sees all that is kept."""
        span, begin = self.groups.span, int(new[0])
        full = self.farthest == 0 if span is None else begin - span[0] >= self.farthest + span[1] - 1
        if len(new) == 1 and full and self.groups.uniform:
            return None
        place = torch.arange(keys, device=new.device)[None] if span is None else positions
        place, query, lead = place[:, None, None], new[None, None, :, None], self.lead[:, None, None, None]
        seen = (place >= lead) & (place <= query)
        windows = [(keys + 1, 0) if window is None else window for window in self.groups.windows]
        size, first = torch.tensor(windows, device=new.device).T[..., None, None]
        return seen & ((query - place < size) | (place - lead < first))

    def select(self, index: Tensor) -> None:
        """Other examples of the batch, as beams are reordered."""
        index = index.to(self.lead.device)
        self.tensors = [tensor.index_select(0, index) for tensor in self.tensors]
        self.lead, self.positions = self.lead.index_select(0, index), self.positions.index_select(0, index)


def _with_room(tensor: Tensor, length: int) -> Tensor:
    """A tensor with the same beginning, and room for ``length`` tokens and a few more."""
    wider = tensor.new_empty(*tensor.shape[:2], length + max(16, length // GROWTH), tensor.shape[3])
    wider[:, :, : tensor.shape[2]] = tensor
    return wider


class WindowLayer(DynamicLayer):
    """The cache of one layer.

    Parameters
    ----------
    windows : of the heads that have one.
    """

    is_croppable = False

    def __init__(self, windows: dict[int, Span]) -> None:
        super().__init__()
        self.windows = windows
        self.kept: list[KeptTokens] = []
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values of the new tokens alone: :meth:`attend` adds those that are kept."""
        if self.length and not self.kept:
            raise ParameterError(
                "This cache is only for the model that it was made for; see attrim.baking.window_cache."
            )
        self.is_initialized = True
        self.length += key_states.shape[-2]
        return key_states, value_states

    def begin(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> None:
        """Keep what later queries need of a prompt.

        Parameters
        ----------
        query, key, value : ``[B, H, Q, D]``, ``[B, G, K, D]``.
        attention_mask : of the prompt; texts may be padded on the left.
        """
        real = allowed_by(attention_mask, (query.shape[2], key.shape[2]), key.device)[:, 0, -1]
        lead = real.int().argmax(-1).expand(len(key))
        if not bool(torch.equal(real, (torch.arange(key.shape[2], device=key.device) >= lead[:, None])[: len(real)])):
            raise ParameterError(
                "A cache of windows needs texts that are padded on the left only; set tokenizer.padding_side = 'left', "
                "or give generate past_key_values=DynamicCache()."
            )
        groups = group_heads(query.shape[1], key.shape[1], self.windows)
        self.kept = [KeptTokens(group, key, value, lead) for group in groups]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Outputs ``[B, Q, H, D]`` of queries that follow the prompt."""
        found = [kept.attend(query, key, value, scaling) for kept in self.kept]
        if len(found) == 1:
            return found[0].transpose(1, 2)
        output = query.new_empty(*query.shape[:3], value.shape[3])
        for kept, part in zip(self.kept, found, strict=True):
            share = query.shape[1] // key.shape[1]
            output[:, [group * share + place for group in kept.groups.numbers for place in range(share)]] = part
        return output.transpose(1, 2)

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
            found: Attended = function(module, query, key, value, attention_mask, scaling=scaling, **arguments)
            self.begin(query, key, value, attention_mask)
            return found
        if sum(module in session.map.modules for session in active_sessions()) > 1:
            raise ParameterError(
                "Attention cannot be edited or watched while a cache of windows is used, because it does not have all "
                "keys; give past_key_values=DynamicCache()."
            )
        return self.attend(query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None

    def get_seq_length(self) -> int:
        """How many tokens it has seen; fewer may be kept."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A mask covers all tokens that were seen."""
        return self.length + query_length, 0

    def reset(self) -> None:
        """Forget everything."""
        self.kept, self.length, self.is_initialized = [], 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Other examples, as beams are reordered."""
        for kept in self.kept:
            kept.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every example several times."""
        if self.kept:
            self.reorder_cache(torch.arange(len(self.kept[0].lead)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only some of the examples."""
        self.reorder_cache(torch.arange(len(self.kept[0].lead))[indices] if self.kept else indices)

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
        return sum(tensor.nbytes for kept in self.kept for tensor in kept.tensors)


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
        self.layers = [DynamicLayer() if own is None else WindowLayer(own) for own in windows]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that it holds now."""
        return sum(map(_held, self.layers))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let the layers of this cache answer the attention of the model while it runs."""
        with answering(self._layer):
            yield

    def _layer(self, module: nn.Module) -> WindowLayer | None:
        number = getattr(module, "layer_idx", None)
        layer = self.layers[number] if isinstance(number, int) and number < len(self.layers) else None
        return layer if isinstance(layer, WindowLayer) else None


def _held(layer: Any) -> int:
    """Bytes of keys and values of a layer."""
    if isinstance(layer, WindowLayer):
        return layer.nbytes
    return sum(tensor.nbytes for tensor in (layer.keys, layer.values)) if layer.is_initialized else 0


def window_cache(model: Any) -> WindowCache:
    """A cache for a model that was baked with windows; ``generate`` makes one by itself.

    Examples
    --------
    >>> model = attrim.bake(model, attrim.Window(256, first=4, heads=[(0, 3), (0, 4), (0, 5)]))
    >>> cache = attrim.baking.window_cache.window_cache(model)
    >>> model(**inputs, past_key_values=cache, use_cache=True)
    >>> cache.nbytes
    """
    found = find_windows(model)
    if found is None:
        raise ParameterError(
            f"This {type(model).__name__} cannot drop keys from its cache: it must be a decoder with standard "
            "attention that carries at most one Window for each head and no other edit."
        )
    return WindowCache(found)


def find_windows(model: Any) -> list[dict[int, Span] | None] | None:
    """The windows of the heads of each layer; None where a model carries anything else, or attends in other ways.

    None stands also for a layer with constant heads, which need all values, and for one whose heads do not share their
    keys in equal groups, because some are gone.
    """
    carrier = getattr(model.base_model, CARRIER, None)
    config = model.config
    if carrier is None or config.is_encoder_decoder or getattr(config, "sliding_window", None) is not None:
        return None
    edits, sites = carrier.edits_for(model), find_sites(model)
    kinds = {*(getattr(config, "layer_types", None) or ()), "full_attention"}
    if len(kinds) > 1 or not all(isinstance(edit, Window) for edit in edits):
        return None
    modules = {site: model.get_submodule(site.path) for site in sites}
    if not all(_plain_decoder(site, module) for site, module in modules.items()):
        return None
    numbers = {site: int(module.layer_idx) for site, module in modules.items()}
    headless = {find(model, layer.path) for layer in carrier.layers} - {*modules.values()}
    rest = [getattr(module, "layer_idx", None) for module in headless]
    if sorted([*numbers.values(), *rest], key=str) != sorted(range(len(sites) + len(rest)), key=str):
        return None
    found: list[dict[int, Span] | None] = [None] * (len(sites) + len(rest))
    for site, module in modules.items():
        if getattr(module, "attrim_baked", None) is None:
            found[numbers[site]] = {}
    for edit in edits:
        for site, heads in edit.select.resolve(sites).items():
            own = found[numbers[site]]
            if own is None:
                continue
            if own.keys() & set(heads):
                return None  # two windows of one head are no window
            own |= dict.fromkeys(heads, (edit.size, edit.first))
    return found


def _plain_decoder(site: Site, module: nn.Module) -> bool:
    plain = site.role == "decoder" and site.route == "interface" and is_standard(module, {})
    return plain and isinstance(getattr(module, "layer_idx", None), int)
