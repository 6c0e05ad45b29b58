"""Feed ``Histogram`` and ``Mean`` from a block of attention weights through the compiled pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from torch import Tensor

from ..core.call import Call
from ..stats.base import SiteRecord, Stat, not_finite
from ..stats.histogram import Histogram
from ..stats.mean import Mean
from . import team
from ._compiled import count
from .blocks import Block, Spans

PARAMETERS = (
    "next", "weights", "examples", "heads", "queries", "keys", "start", "stop", "counts", "counts_row",
    "below", "sums", "sums_row", "sums_queries", "sums_keys", "cells", "query_slot", "key_slot", "failed",
)  # fmt: skip
"""The numbers (addresses and sizes) that the compiled pass reads, in this order."""

Watching = Sequence[tuple[Stat, tuple[int, ...]]]


def supports(stats: Watching) -> bool:
    """Whether the compiled pass can feed all these stats: at most one ``Histogram`` without rows and one ``Mean``."""
    kinds = [type(stat) for stat, _ in stats]
    plain = all(not stat.rows for stat, _ in stats if isinstance(stat, Histogram))
    return bool(kinds) and plain and set(kinds) <= {Histogram, Mean} and len(set(kinds)) == len(kinds)


Numbers = NDArray[numpy.int64]


@dataclass
class Feed:
    """Where the numbers of one call go. Small arrays are numpy's, which costs a block less than torch's.

    Attributes
    ----------
    start, stop : ``[B, Q]``, the keys of every query that count; equal where none do.
    counts, sums : the records of the histogram and of the mean, where they are watched.
    query_slots, key_slots : ``[B]``, the position of the call's first query and key in each example's own text.
    """

    call: Call
    start: Numbers
    stop: Numbers
    query_slots: Numbers
    key_slots: Numbers
    counts: SiteRecord | None = None
    sums: SiteRecord | None = None

    @classmethod
    def begin(cls, call: Call, spans: Spans, stats: Watching) -> Feed | None:
        """Open the records of the call's site and make room in them; None where counts differ between heads."""
        batch, queries = spans.start.shape
        query_slots, key_slots = (
            slots[:, 0].expand(batch).contiguous().numpy() for slots in (call.query_slots(), call.key_slots())
        )
        counted = spans.counted.numpy()
        start = spans.start.contiguous().numpy()
        feed = cls(call, start, numpy.where(counted, spans.stop.numpy(), start), query_slots, key_slots)
        for stat, heads in stats:
            own = tuple(head for head in call.heads if head in set(heads))
            if isinstance(stat, Histogram):
                feed.counts = stat.record(call.site, own)
            elif isinstance(stat, Mean):
                feed.sums = stat.record(call.site, own)
                if feed.sums.tensors["counts"].shape[0] != 1:
                    return None
                stat.add_examples(feed.sums, batch)
                if counted.any():
                    last_query = (numpy.arange(queries) + query_slots[:, None])[counted].max()
                    last_key = (feed.stop - 1 + key_slots[:, None])[counted].max()
                    stat.grow(feed.sums, int(last_query) + 1, int(last_key) + 1)
        return feed

    def add(self, weights: Tensor, block: Block) -> None:
        """Add the weights ``[B, H, Q, K]`` of a block, float32 and contiguous."""
        spans = [
            numpy.ascontiguousarray(edge[block.examples, block.queries] - block.keys.start)
            for edge in (self.start, self.stop)
        ]
        # The slots belong to the call's first query and key, a block may begin later.
        query_slots = self.query_slots[block.examples] + block.queries.start
        key_slots = self.key_slots[block.examples] + block.keys.start
        rows = [self._rows(record)[block.heads] for record in (self.counts, self.sums)]
        following, failed = numpy.zeros(1, dtype=numpy.int64), numpy.zeros(1, dtype=numpy.int64)
        counts, below = self._addresses(self.counts, "counts", "below_uniform")
        sums, cells = self._addresses(self.sums, "sums", "counts")
        sizes = self.sums.tensors["sums"].shape[1:] if self.sums else (0, 0)
        examples, heads, queries, keys = weights.shape
        known = {
            "next": following.ctypes.data,
            "weights": weights.data_ptr(),
            "examples": examples,
            "heads": heads,
            "queries": queries,
            "keys": keys,
            "start": spans[0].ctypes.data,
            "stop": spans[1].ctypes.data,
            "counts": counts,
            "counts_row": rows[0].ctypes.data,
            "below": below,
            "sums": sums,
            "sums_row": rows[1].ctypes.data,
            "sums_queries": sizes[0],
            "sums_keys": sizes[1],
            # The cells are shared by all heads and counted with the first of them.
            "cells": cells if block.heads.start == 0 else 0,
            "query_slot": query_slots.ctypes.data,
            "key_slot": key_slots.ctypes.data,
            "failed": failed.ctypes.data,
        }
        parameters = numpy.array([known[name] for name in PARAMETERS], dtype=numpy.int64)
        team.run(count, parameters.ctypes.data)
        if failed[0]:
            raise not_finite(self.call.site)

    def _rows(self, record: SiteRecord | None) -> Numbers:
        """The row of the record for every head of the call, -1 for heads that it does not watch."""
        heads = () if record is None else record.heads
        if heads == self.call.heads:
            return numpy.arange(len(heads))
        place = {head: row for row, head in enumerate(heads)}
        return numpy.array([place.get(head, -1) for head in self.call.heads])

    @staticmethod
    def _addresses(record: SiteRecord | None, *names: str) -> list[int]:
        """Where the tensors of a record are; 0 when it is not watched."""
        return [0 if record is None else record.tensors[name].data_ptr() for name in names]
