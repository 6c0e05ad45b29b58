"""Feed stats from a block of attention weights through the compiled pass.

A stat opts in by answering ``compiles`` and ``buffers``; kernels import no stat. The compiled passes can add to
several kinds of buffers at once: counts of values by bin (:class:`BinBuffers`), sums by cell (:class:`CellBuffers`) and
facts about rows (:class:`RowBuffers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.call import Call, not_finite
from ..core.plan import WatchingStat
from . import team
from .blocks import Block, Spans

Numbers = NDArray[numpy.int64]


@dataclass(frozen=True)
class BinBuffers:
    """Counts of values by bin, for the compiled pass to add to; contiguous.

    Attributes
    ----------
    heads : the head number of each row.
    counts : int64 ``[H, BINS]``, in the bins of ``attrim.stats.bins``.
    below_uniform : int64 ``[H]``, how many values are below one over the number of the query's keys.
    """

    heads: tuple[int, ...]
    counts: Tensor
    below_uniform: Tensor


@dataclass(frozen=True)
class CellBuffers:
    """Sums by cell, in the tokens' own positions, for the compiled pass to add to; contiguous.

    Attributes
    ----------
    heads : the head number of each row.
    sums : int64 ``[H, N, M]``, in the fixed point of ``attrim.stats.integers``.
    counts : int64 ``[1, N, M]``, how many examples have the cell.
    """

    heads: tuple[int, ...]
    sums: Tensor
    counts: Tensor


FACTS = (
    "cells", "rows", "reached", "majority", "sum", "squares", "entropy", "row_error", "largest_row_error",
    "maximum", "minimum",
)  # fmt: skip
"""What the fused pass says about the rows of a head, as :class:`attrim.stats.Moments` keeps it. All are int64: sums are
fixed point, maximum and minimum are the bits of a float32."""


@dataclass(frozen=True)
class RowBuffers:
    """Facts about rows, which only the fused pass fills.

    Attributes
    ----------
    heads : the head number of each row.
    facts : int64 ``[H, FACTS]``, zeros (the minimum: the largest int64); the pass adds to them.
    done : called with the facts when the pass is over.
    """

    heads: tuple[int, ...]
    facts: Tensor
    done: Callable[[Tensor], None]

    @classmethod
    def zeros(cls, heads: tuple[int, ...], done: Callable[[Tensor], None]) -> RowBuffers:
        """Facts about nothing."""
        facts = torch.zeros(len(heads), len(FACTS), dtype=torch.int64)
        facts[:, FACTS.index("minimum")] = torch.iinfo(torch.int64).max
        return cls(heads, facts, done)


Buffers = BinBuffers | CellBuffers | RowBuffers


@dataclass(frozen=True)
class Extent:
    """How much one call will add: a number of examples, and the queries and keys that the longest of them has."""

    examples: int
    queries: int
    keys: int


class CompiledStat(WatchingStat, Protocol):
    """What the compiled pass asks of a stat."""

    def compiles(self, call: Call) -> type[Buffers] | None:
        """The kind of buffers that hold all that this stat keeps of the call; None when only ``watch`` can feed it."""

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> Buffers:
        """The buffers for these heads of the call's site, with room for ``extent``; the call is then fed to them."""


Watching = Sequence[tuple[CompiledStat, tuple[int, ...]]]


def divide(stats: Watching, call: Call, fused: bool = True) -> tuple[Watching, Watching]:
    """The stats that the compiled pass can feed, at most one of each kind, and those that must see the weights.

    Parameters
    ----------
    fused : whether it is the pass that computes the attention too, which alone knows about rows.
    """
    fed: dict[type[Buffers], tuple[CompiledStat, tuple[int, ...]]] = {}
    shown = []
    for stat, heads in stats:
        kind = stat.compiles(call)
        if kind is None or kind in fed or (kind is RowBuffers and not fused):
            shown.append((stat, heads))
        else:
            fed[kind] = stat, heads
    return list(fed.values()), shown


@dataclass
class Feed:
    """Where the numbers of one call go. Small arrays are numpy's, which costs a block less than torch's.

    Attributes
    ----------
    start, stop : ``[B, Q]``, the keys of every query that count; equal where none do.
    query_slots, key_slots : ``[B]``, the position of the call's first query and key in each example's own text.
    bins, cells, rows : the buffers of the stats that asked for them.
    """

    call: Call
    start: Numbers
    stop: Numbers
    query_slots: Numbers
    key_slots: Numbers
    bins: BinBuffers | None = None
    cells: CellBuffers | None = None
    rows: RowBuffers | None = None

    @classmethod
    def begin(cls, call: Call, spans: Spans, stats: Watching) -> Feed:
        """Ask the stats, which :func:`divide` has found to be fed, for their buffers."""
        batch, queries = spans.start.shape
        query_slots, key_slots = (
            slots[:, 0].expand(batch).contiguous().numpy() for slots in (call.query_slots(), call.key_slots())
        )
        counted = spans.counted.numpy()
        start = spans.start.contiguous().numpy()
        feed = cls(call, start, numpy.where(counted, spans.stop.numpy(), start), query_slots, key_slots)
        extent = Extent(batch, 0, 0)
        if counted.any():
            last_query = (numpy.arange(queries) + query_slots[:, None])[counted].max()
            last_key = (feed.stop - 1 + key_slots[:, None])[counted].max()
            extent = Extent(batch, int(last_query) + 1, int(last_key) + 1)
        for stat, heads in stats:
            chosen = set(heads)
            buffers = stat.buffers(call, tuple(head for head in call.heads if head in chosen), extent)
            if isinstance(buffers, BinBuffers):
                feed.bins = buffers
            elif isinstance(buffers, CellBuffers):
                feed.cells = buffers
            else:
                feed.rows = buffers
        return feed

    def add(self, weights: Tensor, block: Block) -> None:
        """Add the weights ``[B, H, Q, K]`` of a block, float32 and contiguous."""
        start, stop = (
            numpy.ascontiguousarray(edge[block.examples, block.queries] - block.keys.start)
            for edge in (self.start, self.stop)
        )
        following = numpy.zeros(1, dtype=numpy.int64)
        examples, heads, queries, keys = weights.shape
        with self.into(block) as into:
            parameters = team.CountParameters(
                next=following.ctypes.data,
                weights=weights.data_ptr(),
                examples=examples,
                heads=heads,
                queries=queries,
                keys=keys,
                start=start.ctypes.data,
                stop=stop.ctypes.data,
                into=into,
            )
            team.run("count", parameters)

    @contextmanager
    def into(self, block: Block) -> Iterator[team.Buffers]:
        """The buffers as the compiled passes want them for a block, while they run; what they found wrong is raised."""
        # The slots belong to the call's first query and key, a block may begin later.
        query_slots = self.query_slots[block.examples] + block.queries.start
        key_slots = self.key_slots[block.examples] + block.keys.start
        bins, cells, rows = self.bins, self.cells, self.rows
        bin_rows, cell_rows, fact_rows = (self._rows(buffers)[block.heads] for buffers in (bins, cells, rows))
        failed = numpy.zeros(1, dtype=numpy.int64)
        into = team.Buffers(
            counts_row=bin_rows.ctypes.data,
            sums_row=cell_rows.ctypes.data,
            facts_row=fact_rows.ctypes.data,
            query_slot=query_slots.ctypes.data,
            key_slot=key_slots.ctypes.data,
            failed=failed.ctypes.data,
        )
        if bins is not None:
            into.counts = bins.counts.data_ptr()
            into.below_uniform = bins.below_uniform.data_ptr()
        if cells is not None:
            into.sums = cells.sums.data_ptr()
            into.sums_queries, into.sums_keys = cells.sums.shape[1:]
            if block.heads.start == 0:  # all heads share the counts, so they are counted with the first of them
                into.cells = cells.counts.data_ptr()
        if rows is not None:
            into.facts = rows.facts.data_ptr()
        yield into
        if failed[0] == 2:
            raise MemoryError(f"There is no memory left to count the attention of {self.call.site.name!r}.")
        if failed[0]:
            raise not_finite(self.call.site)
        if rows is not None:
            rows.done(rows.facts)

    def _rows(self, buffers: Buffers | None) -> Numbers:
        """The row of the buffers for every head of the call, -1 for heads that are not in them."""
        heads = () if buffers is None else buffers.heads
        if heads == self.call.heads:
            return numpy.arange(len(heads))
        place = {head: row for row, head in enumerate(heads)}
        return numpy.array([place.get(head, -1) for head in self.call.heads])
