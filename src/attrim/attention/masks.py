"""What an attention mask says (allowed cells, real tokens, positions), and the :class:`Call` that is built from it."""

from __future__ import annotations

import functools
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..core.call import Call
from ..core.site import Site
from ..core.tracing import is_symbolic
from ..errors import SiteError
from ..kernels.blocks import Edges, Structure, find_edges, unrepeated

# Cells whose score is below this bar are forbidden. Masks add the dtype's minimum, -inf, -1e30, -65500 or, at the
# least, -10000; position biases (ALiBi at 8000 tokens) stay above -5000.
FORBIDDEN = -5000.0

# The positions ``[B, L]`` of the tokens of the forward pass that is running, where they do not follow one another.
token_slots: ContextVar[Tensor | None] = ContextVar("attrim_token_slots", default=None)

# Both forget a mask when the mask itself is freed, which is usually the end of the forward pass.
_facts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # mask -> (how it was read, MaskFacts)
_noted: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # mask -> what its function knows about it
_patterns: deque[Tensor] = deque(maxlen=8)  # patterns seen before, so that equal ones are the same tensor


class KnownMask(NamedTuple):
    """What a mask function knows about a mask that it made.

    Attributes
    ----------
    offsets : the slots of the first query and of the first key.
    padding : bool ``[B, L]``, the tokens that are real, from the first slot on; None where nothing was said.
    edges : the span of keys of every query, where each query sees itself and the keys before it, which are all real.
    """

    offsets: tuple[int, int]
    padding: Tensor | None
    edges: Edges | None


@dataclass(frozen=True)
class Factors:
    """Allowed cells as a pattern, the same for all examples, times the real keys of each example.

    Attributes
    ----------
    pattern : bool ``[Q, K]``, the same tensor whenever the pattern is the same; None when every cell is allowed.
    keys : bool ``[B|1, K]``, the real keys; None when all are.
    shift : int64 ``[B, K]``, with padding on the left: where each position of the text stands, the padding last.
        Pattern and keys are about the shifted text.
    """

    pattern: Tensor | None
    keys: Tensor | None
    shift: Tensor | None


class MaskFacts:
    """What one mask says. Each fact is computed on first use and cached, because every layer gets the same mask.

    Parameters
    ----------
    allowed : bool ``[B|1, H|1, Q, K]``, the cells that padding, causality and window permit.
    offsets : slots of the first query and of the first key where the mask function knows them.
    padding : bool ``[B, L]``, which tokens are real from the first slot on, where the mask function knows it. Keys that
        a cache dropped are among them.
    edges : see :class:`KnownMask`.
    padding_sees_itself : see :class:`~attrim.attention.architectures.Facts`.
    """

    def __init__(
        self,
        allowed: Tensor,
        *,
        offsets: tuple[int, int] | None = None,
        padding: Tensor | None = None,
        edges: Edges | None = None,
        padding_sees_itself: bool = False,
    ) -> None:
        self.allowed = allowed
        self.offsets = offsets
        self.padding = padding
        self._known_edges = edges
        self.padding_sees_itself = padding_sees_itself
        self._additive: dict[torch.dtype, Tensor] = {}

    @classmethod
    def of(
        cls,
        mask: Tensor | None,
        shape: tuple[int, int],
        device: torch.device,
        *,
        causal: bool = False,
        padding_sees_itself: bool = False,
        one_is_real: bool = False,
    ) -> MaskFacts:
        """The facts of a mask, cached until the mask is freed or changed in place.

        A mask that the user passed may be changed without a trace (through numpy, ``.data``, or in inference mode), so
        its cells are compared with those of the facts.

        Parameters
        ----------
        mask : boolean or additive ``[B|1, H|1, Q|1, K]``; None allows everything, or what ``causal`` says.
        shape : numbers of queries and keys.
        causal : without a mask, query i may attend to keys up to i.
        one_is_real : the mask is 1 for allowed cells and 0 for forbidden ones, whatever its dtype.
        """
        if mask is None:
            make = _without_mask.__wrapped__ if is_symbolic() or torch.compiler.is_compiling() else _without_mask
            return make(shape, device, causal, padding_sees_itself)
        keeps, noted = not is_symbolic(), is_noted(mask)
        reading = shape, padding_sees_itself, one_is_real, version_of(mask)
        known = _facts.get(mask) if keeps else None
        if known is not None and known[0] == reading and noted:
            return known[1]
        with torch.inference_mode(False):
            allowed = allowed_by(mask.bool() if one_is_real else mask, shape, device, copied=keeps and not noted)
        if known is not None and known[0] == reading and torch.equal(known[1].allowed, allowed):
            return known[1]
        offsets, padding, edges = _noted.get(mask, (None, None, None))
        if version_of(mask) > 0 or mask.shape[-2:] != shape:  # a model wrote into it, or attends to fewer keys
            edges = None
        facts = cls(allowed, offsets=offsets, padding=padding, edges=edges, padding_sees_itself=padding_sees_itself)
        if keeps:
            _facts[mask] = reading, facts
        return facts

    # Facts may outlive the pass that asked for them first, so none is an inference tensor, which no later pass with
    # gradients could use.

    @functools.cached_property
    @torch.inference_mode(False)
    def real(self) -> Tensor:
        """Bool ``[B|1, K]``: the keys that some query may attend to."""
        if self._known_edges is not None:
            return _all_real(self.allowed.shape[-1], self.allowed.device)
        seen = self.allowed
        queries, keys = seen.shape[-2:]
        if not (self.padding_sees_itself and queries == keys and keys > 1):
            return unrepeated(seen).flatten(1, 2).any(1).expand(seen.shape[0], keys)
        real = (seen & ~torch.eye(keys, dtype=torch.bool, device=seen.device)).flatten(1, 2).any(1)
        # No later query is there to see the last token of a causal text, which is as real as the one before it.
        causal = ~seen.triu(1).any()
        return torch.cat([real[:, :-1], torch.where(causal, real[:, -2:-1], real[:, -1:])], dim=1)

    @functools.cached_property
    @torch.inference_mode(False)
    def lead(self) -> Tensor | None:
        """Int64 ``[B|1]``: how many slots stand before the first real one; None when no example has any."""
        real = self.real if self.padding is None else self.padding
        return _some(real.int().argmax(-1))  # an example without any real key gets 0

    @functools.cached_property
    @torch.inference_mode(False)
    def edges(self) -> Edges | None:
        """The span of keys of every query, for the compiled pass."""
        return self._known_edges or find_edges(self.allowed)

    @functools.cached_property
    def structure(self) -> Structure | None:
        """What the mask amounts to where SDPA needs none for it; None where it needs one."""
        return None if self.edges is None else self.edges.structure(self.allowed.shape[-1])

    @torch.inference_mode(False)
    def additive(self, dtype: torch.dtype) -> Tensor:
        """The allowed cells as stock eager attention wants them, made where something asks for it, once a dtype."""
        if dtype not in self._additive:
            self._additive[dtype] = additive(self.allowed, dtype)
        return self._additive[dtype]

    @functools.cached_property
    @torch.inference_mode(False)
    def factors(self) -> Factors | None:
        """The allowed cells as pattern and real keys; None when they are not such a product."""
        if is_symbolic():
            return None
        cells = self.allowed[:, 0]
        lead, shift = self.lead, None
        if self.allowed.shape[1] > 1 or (lead is not None and cells.shape[-2] != cells.shape[-1]):
            return None
        if lead is not None:
            size = cells.shape[-1]
            shift = (torch.arange(size, device=cells.device) + lead[:, None]) % size
            cells = cells.take_along_dim(shift[:, :, None], 1).take_along_dim(shift[:, None, :], 2)
        real = cells.any(-2)
        # A query that may attend to nothing is padding, so its output does not matter.
        idle = ~cells.any(-1, keepdim=True)
        causal = torch.ones(cells.shape[-2:], dtype=torch.bool, device=cells.device).tril()
        for pattern in (None, causal, cells.any(0)):
            expected = real[:, None, :] if pattern is None else pattern & real[:, None, :]
            if bool(((cells == expected) | idle).all()):
                known = None if pattern is None else _known_pattern(pattern)
                return Factors(known, None if bool(real.all()) else real, shift)
        return None


@torch.inference_mode(False)
def note(mask: Tensor, query: int, key: int, padding: Tensor | None = None, edges: Edges | None = None) -> None:
    """Keep what a mask function knows about a mask that it made.

    Parameters
    ----------
    query, key : the slots of the first query and the first key.
    padding : ``[B, L]``, not 0 for the tokens that are real, from the first slot on; None where nothing was said.
    edges : see :class:`KnownMask`.
    """
    # A copy, because a user may change the one that was passed.
    kept = None if padding is None or padding.ndim != 2 else padding.detach().ne(0)
    _noted[mask] = KnownMask((int(query), int(key)), kept, edges)


def is_noted(mask: Tensor) -> bool:
    """Whether a mask was made by a mask function, of a model's structure and its padding, and not by the user."""
    return mask in _noted


def only_forbids(mask: Tensor | None) -> bool:
    """Whether a mask says no more than which cells are allowed.

    One that the user passed may be a bias that is added to the scores of allowed cells.
    """
    if mask is None or mask.dtype == torch.bool or is_noted(mask):
        return True
    return not is_symbolic() and bool(((mask == 0) | (mask <= FORBIDDEN)).all())


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place (loading weights does that)."""
    return 0 if tensor.is_inference() else tensor._version


@functools.lru_cache(maxsize=8)
def _without_mask(shape: tuple[int, int], device: torch.device, causal: bool, padding_sees_itself: bool) -> MaskFacts:
    """The facts of a call without a mask, the same object for all calls of a size."""
    with torch.inference_mode(False):
        allowed = allowed_by(None, shape, device)
        allowed = allowed.tril() if causal else allowed
    return MaskFacts(allowed, offsets=(0, 0) if causal else None, padding_sees_itself=padding_sees_itself)


def _known_pattern(pattern: Tensor) -> Tensor:
    """The tensor of an equal pattern seen before, if there is one."""
    for known in list(_patterns):
        if known.device == pattern.device and torch.equal(known, pattern):
            return known
    _patterns.append(pattern)
    return pattern


def allowed_by(mask: Tensor | None, shape: tuple[int, int], device: torch.device, *, copied: bool = False) -> Tensor:
    """The allowed cells ``[B|1, H|1, Q, K]`` of a boolean or additive mask; None allows everything.

    Parameters
    ----------
    shape : numbers of queries and keys.
    copied : never a view of the mask, which may change.
    """
    queries, keys = shape
    if mask is None:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).expand(1, 1, queries, keys)
    # Detached, because a view would keep the mask alive for as long as its facts are cached.
    mask = mask.detach()[..., :keys]
    if mask.shape[-1] not in (1, keys):
        raise SiteError(
            f"The attention mask is about {mask.shape[-1]} keys but there are {keys}, as with prefix tuning; "
            "pass an attention_mask to the model, which is then extended to all keys."
        )
    if mask.dtype != torch.bool:
        allowed = unrepeated(mask) > FORBIDDEN
    else:
        allowed = unrepeated(mask).clone() if copied or mask.is_inference() else mask
    return allowed.expand(*mask.shape[:2], queries, keys)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Allowed cells as a mask that stock eager attention adds to scores."""
    cells = unrepeated(allowed)
    ends = torch.tensor([torch.finfo(dtype).min, 0.0], dtype=dtype, device=cells.device)
    return torch.where(cells, ends[1], ends[0]).expand(allowed.shape)


def allowed_in(scores: Tensor) -> Tensor:
    """The allowed cells of scores ``[B, H, Q, K]`` that already contain their mask."""
    allowed = scores.detach() > FORBIDDEN
    if is_symbolic():
        return allowed
    first = allowed[:, :1]
    # One pattern for all heads is the rule; keeping it once lets stats share counts among heads.
    return first if bool((allowed == first).all()) else allowed


@dataclass(frozen=True)
class Stream:
    """What self-attention found out about one sequence of a forward pass; cross-attention reads its queries here."""

    real: Tensor  # bool [B|1, Q]
    position: int
    lead: Tensor | None


def make_call(
    site: Site,
    mask: MaskFacts,
    streams: dict[str, Stream],
    batch: int,
    *,
    query: Tensor | None = None,
    key: Tensor | None = None,
    value: Tensor | None = None,
    scaling: float | None = None,
    targets: Tensor | None = None,
) -> Call:
    """The call at ``site``, and, for self-attention, the entry of its stream in ``streams``.

    Parameters
    ----------
    streams : what earlier self-attention of the same forward pass found out; updated in place.
    batch : number of examples; a mask for one of them may stand for all.
    targets : bool ``[B, T]``, the real target steps that the model was called with, where it said so: a decoder without
        self-attention (a recurrent one) has no other sign of its padding.
    query, key, value, scaling : see :class:`Call`, where the route sees them.
    """
    queries, keys = mask.allowed.shape[-2:]
    query_stream, key_stream = site.streams
    before = streams.get(query_stream)
    if query_stream != key_stream:
        if before is None or before.real.shape[-1] != queries or before.real.shape[0] not in (1, batch):
            before = _called_with(targets if site.role == "cross" else None, (batch, queries), mask.allowed.device)
        return Call(
            site=site,
            allowed=mask.allowed,
            queries=before.real,
            keys=mask.real,
            heads=tuple(range(site.heads)),
            position=before.position,
            query_lead=before.lead,
            key_lead=mask.lead,
            query=query,
            key=key,
            value=value,
            scaling=scaling,
        )
    # Where the mask function did not say, fewer queries than keys means that a cache holds the earlier keys.
    position, key_position = mask.offsets if mask.offsets is not None else (max(keys - queries, 0), 0)
    first = position - key_position
    real = mask.real[:, first : first + queries]
    if real.shape[-1] != queries:
        real = _all_real(queries, mask.allowed.device)
    lead = mask.lead
    followed = before is not None and (before.lead is None or before.lead.shape[0] == batch)
    if mask.padding is None and position > 0 and before is not None and followed:
        lead = before.lead  # a sliding cache may have dropped the padding by now
    streams[query_stream] = Stream(real, position, lead)
    return Call(
        site=site,
        allowed=mask.allowed,
        queries=real,
        keys=mask.real,
        heads=tuple(range(site.heads)),
        position=position,
        key_position=key_position,
        query_lead=lead,
        key_lead=lead,
        slots=token_slots.get(),
        query=query,
        key=key,
        value=value,
        scaling=scaling,
    )


def _called_with(targets: Tensor | None, shape: tuple[int, int], device: torch.device) -> Stream:
    """The stream of queries of a decoder without self-attention; ``shape`` is the numbers of examples and queries."""
    if targets is None or targets.shape != shape:
        return Stream(_all_real(shape[1], device), 0, None)
    real = targets.to(device)
    return Stream(real, 0, _some(real.int().argmax(-1)))


def _some(lead: Tensor) -> Tensor | None:
    """Numbers of slots ``[B]`` before the first real one; None where all are known to be 0."""
    return lead if is_symbolic() or bool(lead.any()) else None


def _all_real(queries: int, device: torch.device) -> Tensor:
    return torch.ones(1, queries, dtype=torch.bool, device=device)
