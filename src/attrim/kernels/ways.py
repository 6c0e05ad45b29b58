"""Each head of a call by its cheapest way: the sparse kernel, SDPA, or SDPA with a mask.

The kernel gains what its plan leaves out, but on some machines a cell costs it more than it costs SDPA. So the seconds
of each are measured there (:mod:`.rates`), and no call is expected to take more than 5 % longer (:data:`WORTH`) than it
would by SDPA with a mask for all heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .blocks import Edges, Structure
from .rates import Rates, additive, rates
from .sparse import SIDE, SparseCall, SparsePlan, attend_sparse

Way = Literal["sparse", "dense", "masked"]
"""The kernel; SDPA for heads that keep everything; SDPA with a mask."""
WAYS: tuple[Way, ...] = get_args(Way)
SMALL = 1 << 16
"""Calls of fewer cells go to the kernel: they take microseconds in any way."""
TINY = 256
"""Cells of a head up to which the kernel is faster than SDPA even where all are kept: those of 16 tokens."""
MOST_MASK = 16 << 20
"""Bytes of a mask up to which it is kept for later passes: a model may have one for each layer."""
WORTH = 0.95
"""Another way than the kernel for all heads must need this share of its seconds, or less: less is noise."""


@dataclass(frozen=True)
class HeadPattern:
    """What some heads of a plan have in common.

    Attributes
    ----------
    heads : their places on the head axis.
    computed : cells that the kernel computes for one of them and one example.
    whole : whether they keep everything of a text of the length that was asked for.
    """

    heads: tuple[int, ...]
    computed: int
    whole: bool


@dataclass(frozen=True)
class Choice:
    """The ways of the heads of a call.

    Attributes
    ----------
    heads : the places of the heads that go each way.
    seconds : expected for all heads; None where there was nothing to choose, so that nothing was measured.
    dense : expected for all heads by SDPA without any mask of their own, as in a model without edits; None as above.
    masked : expected for all heads by SDPA with a mask; None as above.
    """

    heads: Mapping[Way, tuple[int, ...]]
    seconds: float | None = None
    dense: float | None = None
    masked: float | None = None


@dataclass(frozen=True)
class Noted:
    """One call: where it was, its plan and the shape that it was asked for, and the ways of its heads."""

    site: Hashable
    plan: SparsePlan
    patterns: tuple[HeadPattern, ...]
    choice: Choice
    size: int
    value_size: int
    batch: int

    @property
    def sparse_flops(self) -> int:
        """Multiplications and additions of the heads that go to the kernel, which torch's counter does not see."""
        heads = set(self.choice.heads["sparse"])
        cells = sum(own.computed * len(heads & set(own.heads)) for own in self.patterns)
        return 2 * self.batch * cells * (self.size + self.value_size)


_noting: ContextVar[list[Noted] | None] = ContextVar("attrim_ways", default=None)


def noted() -> bool:
    """Whether somebody wants to know of every call of this thread."""
    return _noting.get() is not None


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """A list that gets the calls of this thread while the context is active."""
    found: list[Noted] = []
    token = _noting.set(found)
    try:
        yield found
    finally:
        _noting.reset(token)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, plan: SparsePlan, edges: Edges, site: Hashable
) -> Tensor:
    """Softmax attention over the cells of a plan, each head by its cheapest way.

    Parameters
    ----------
    query, key, value, scaling, plan : and what is returned, ``[B, Q, H, D]``, as in :func:`attend_sparse`.
    edges : int64 ``[B|1, Q]`` each, the keys that each query may see.
    site : where it happens, for :func:`noting`.
    """
    batch, heads, queries, size = query.shape
    keys, value_size = value.shape[-2:]
    structure = edges.structure(keys)
    choice, notes = _chosen(plan, batch, queries, keys, structure, query.dtype, size), _noting.get()
    if notes is not None:
        patterns = patterns_of(plan, queries, keys, causal=structure == "causal")
        notes.append(Noted(site, plan, patterns, choice, size, value_size, batch))
    together = one_way(query, key, value, scaling, plan, edges)
    if together is not None:
        return together(query, key, value)
    output = query.new_empty(batch, queries, heads, value_size)
    for way, own in choice.heads.items():
        if not own:
            continue
        parts = _of_heads(query, key, value, own)
        if way == "sparse":
            part = dataclasses.replace(plan, pattern_of=plan.pattern_of[list(own)])
            output[:, :, list(own)] = attend_sparse(*parts, scaling, part, *edges.of_batch(batch))
        else:
            masked = own if way == "masked" else ()
            output[:, :, list(own)] = _by_sdpa(*parts, scaling, plan, masked, edges, structure)(*parts)
    return output


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values to outputs ``[B, Q, H, D]``."""


def one_way(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, plan: SparsePlan, edges: Edges
) -> Attention | None:
    """What computes such a call, and others with tensors of the same shapes; None where heads go several ways.

    The arguments are those of :func:`attend`.
    """
    batch, heads, queries, size = query.shape
    keys = value.shape[-2]
    structure = edges.structure(keys)
    chosen = _chosen(plan, batch, queries, keys, structure, query.dtype, size).heads
    if len(chosen["sparse"]) == heads:
        return SparseCall(query, key, value, scaling, plan, *edges.of_batch(batch))
    if heads in (len(chosen["dense"]), len(chosen["masked"])):
        return _by_sdpa(query, key, value, scaling, plan, chosen["masked"], edges, structure)
    return None


def choose(
    patterns: Sequence[HeadPattern], batch: int, queries: int, keys: int, structure: Structure | None, costs: Rates
) -> Choice:
    """The ways that together take the fewest seconds.

    Parameters
    ----------
    patterns : of all heads.
    structure : what every query may see, where that is the same for all examples; None where texts are padded.
    """
    cells, tokens = queries * keys, queries + keys
    padded = structure is None
    # One mask serves all examples, unless they are padded, and later passes, unless it is too large to be kept.
    lasts = cells * sum(len(own.heads) for own in patterns) * torch.float32.itemsize <= MOST_MASK
    masked = cells * (costs.masked + (costs.formed if padded else 0.0 if lasts else costs.formed / batch))
    dense = cells * (costs.causal if structure == "causal" else costs.dense)
    each: dict[HeadPattern, dict[Way, float]] = {
        own: {
            "sparse": own.computed * costs.computed + tokens / 2 * costs.copied,
            "masked": masked,
            # With padding, one mask serves all heads, but it is a mask.
            **({"dense": cells * costs.masked if padded else dense} if own.whole else {}),
        }
        for own in patterns
    }
    candidates: list[dict[HeadPattern, Way]] = [
        dict.fromkeys(patterns, "sparse"),
        dict.fromkeys(patterns, "masked"),
        {own: min(each[own], key=lambda way: each[own][way]) for own in patterns},
        {own: "dense" if own.whole else "sparse" for own in patterns},
        {own: "dense" if own.whole else "masked" for own in patterns},
    ]

    def total(ways: Mapping[HeadPattern, Way]) -> float:
        one = sum(len(own.heads) * each[own][way] for own, way in ways.items())
        if len(set(ways.values())) > 1:
            one += sum(len(own.heads) for own in ways) * tokens / 2 * costs.moved
        return batch * one

    seconds = [total(ways) for ways in candidates]
    best = min(range(len(candidates)), key=lambda number: seconds[number] * (1.0 if number == 0 else 1 / WORTH))
    chosen = candidates[best]
    heads = sum(len(own.heads) for own in patterns)
    return Choice(
        {way: tuple(sorted(head for own in patterns if chosen[own] == way for head in own.heads)) for way in WAYS},
        seconds[best],
        batch * heads * (cells * costs.masked if padded else dense),
        seconds[1],
    )


def patterns_of(plan: SparsePlan, queries: int, keys: int, causal: bool) -> tuple[HeadPattern, ...]:
    """The patterns of a plan, and what they cost where a text is shorter than the plan or attention is causal."""
    rows = np.where(plan.rows < queries, plan.rows, -1)
    last = rows.max(1, initial=-1)
    after = np.where(last < 0, 0, np.minimum(keys, last + 1) if causal else keys).astype(np.int32)
    # The bits of the queries of each block that the text has.
    there = ((rows >= 0) << np.arange(SIDE)).sum(1).astype(np.uint16)
    found = []
    every = int(np.minimum(np.arange(1, queries + 1), keys).sum()) if plan.causal else queries * keys
    # One pattern at a time, because those of long texts have millions of columns.
    for number in range(len(plan.block_begin) - 1):
        first, end = plan.block_begin[number], plan.block_begin[number + 1]
        counts, keys_of_blocks, bits = plan.blocks(number)
        columns = np.count_nonzero(np.repeat(after[first:end], counts) > keys_of_blocks)
        if queries < plan.queries or keys < plan.keys:
            bits = np.where(keys_of_blocks < keys, bits & np.repeat(there[first:end], counts), 0)
        kept = np.bitwise_count(bits).sum(dtype=np.int64)
        heads = tuple(np.flatnonzero(plan.pattern_of == number).tolist())
        if heads:
            found.append(HeadPattern(heads, SIDE * int(columns), int(kept) == every))
    return tuple(found)


# What was chosen for a plan, and the masks that were made of it, go when the plan goes.
MOST_CHOICES = 1024
"""Shapes of texts whose ways are kept for a plan."""
_choices: WeakKeyDictionary[SparsePlan, dict[tuple[object, ...], Choice]] = WeakKeyDictionary()
_masks: WeakKeyDictionary[SparsePlan, dict[tuple[object, ...], tuple[Tensor, Tensor | None]]] = WeakKeyDictionary()


def _chosen(
    plan: SparsePlan, batch: int, queries: int, keys: int, structure: Structure | None, dtype: torch.dtype, size: int
) -> Choice:
    """The ways of a call, found out once for each shape."""
    known = _choices.get(plan)
    if known is None:
        known = _choices[plan] = {}
    name = batch, queries, keys, structure, dtype, size, torch.get_num_threads()
    found = known.get(name)
    if found is None:
        if len(known) >= MOST_CHOICES:
            known.clear()
        patterns = patterns_of(plan, queries, keys, causal=structure == "causal")
        heads = len(plan.pattern_of)
        whole = structure is not None and all(own.whole for own in patterns)
        if whole and queries * keys > TINY:
            found = _all_heads("dense", heads)  # exactly what the model does without edits
        elif batch * heads * queries * keys < SMALL:
            found = _all_heads("sparse", heads)
        else:
            costs = rates(dtype, size, max(queries, keys))
            found = choose(patterns, batch, queries, keys, structure, costs)
        known[name] = found
    return found


def _all_heads(way: Way, heads: int) -> Choice:
    """One way for all heads, whatever the seconds."""
    return Choice({each: tuple(range(heads)) if each == way else () for each in WAYS})


def _of_heads(query: Tensor, key: Tensor, value: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of some heads, and the keys and values of these: of their groups, or one for each where groups split."""
    group = query.shape[1] // key.shape[1]
    shared = sorted({head // group for head in heads})
    if len(shared) * group != len(heads):
        shared = [head // group for head in heads]
    if len(heads) == query.shape[1]:
        return query, key, value
    return query[:, list(heads)], key[:, shared], value[:, shared]


def _by_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    plan: SparsePlan,
    heads: tuple[int, ...],
    edges: Edges,
    structure: Structure | None,
) -> Attention:
    """Attention by SDPA; ``heads`` are those of the plan whose cells are masked, none for no cells."""
    queries, keys = query.shape[-2], key.shape[-2]
    mask, empty = None, None
    if heads or structure is None:
        mask, empty = _mask(plan, heads, queries, keys, edges, structure, query.dtype)
    # As transformers does, which takes a single query to be the last one.
    causal = mask is None and structure == "causal" and queries > 1
    return functools.partial(
        _attend_by_sdpa, mask=mask, empty=empty, causal=causal, scaling=scaling, grouped=query.shape[1] != key.shape[1]
    )


def _attend_by_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    empty: Tensor | None,
    causal: bool,
    scaling: float,
    grouped: bool,
) -> Tensor:
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=grouped
    )
    if empty is not None:
        found = found.masked_fill_(empty, 0.0)  # a row with nothing left gives zeros, never NaN
    return found.transpose(1, 2)


def _mask(
    plan: SparsePlan,
    heads: tuple[int, ...],
    queries: int,
    keys: int,
    edges: Edges,
    structure: Structure | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """The mask ``[B|1, h|1, Q, K]`` of what heads keep and queries may see; kept where all examples are alike (``1``).

    And the rows with nothing left, bool ``[B|1, h|1, Q, 1]``, if there are any.
    """
    known = _masks.setdefault(plan, {})
    name = heads, queries, keys, structure, dtype
    before = None if structure is None else known.get(name)
    if before is not None:
        return before
    # Where all examples are alike the mask has one row for them, and serves batches of any size.
    start, stop = ((edge if structure is None else edge[:1])[:, None, :, None] for edge in edges)
    place = torch.arange(keys)
    allowed = (place >= start) & (place < stop)
    if heads:
        patterns = {number: kept_cells(plan, number) for number in set(plan.pattern_of[list(heads)].tolist())}
        cells = np.stack([patterns[number][:queries, :keys] for number in plan.pattern_of[list(heads)].tolist()])
        allowed = allowed & torch.from_numpy(cells)
    with torch.inference_mode(False):  # it may serve a later pass that is not one of inference
        mask, empty = additive(allowed, dtype), ~allowed.any(-1, keepdim=True)
    found = mask, empty if bool(empty.any()) else None
    if structure is not None and mask.nbytes <= MOST_MASK:
        known.clear()  # one for each plan: a mask is larger than its plan
        known[name] = found
    return found


def kept_cells(plan: SparsePlan, pattern: int) -> NDArray[np.bool_]:
    """The cells ``[Q, K]`` that one pattern of a plan keeps: the inverse of compiling it."""
    first, last = plan.block_begin[pattern], plan.block_begin[pattern + 1]
    counts, keys, bits = plan.blocks(pattern)
    rows = np.repeat(plan.rows[first:last], counts, axis=0)
    keeps = (bits[:, None] >> np.arange(SIDE, dtype=np.uint16)) & 1 > 0
    cells = np.zeros((plan.queries, plan.keys), dtype=bool)
    columns = np.repeat(keys[:, None], SIDE, axis=1)
    chosen = keeps & (rows >= 0)
    cells[rows[chosen], columns[chosen]] = True
    return cells
