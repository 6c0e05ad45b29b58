"""Feed ``Histogram`` and ``Mean`` from a block of attention weights through the compiled pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from ..call import Call
from ..stats.base import Stat
from ..stats.histogram import Histogram
from ..stats.mean import Mean
from ..stats.sitewise import Record, not_finite
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


@dataclass
class Feed:
    """Where the numbers of one call go.

    Attributes
    ----------
    counts, sums : the records of the histogram and of the mean, where they are watched.
    spans : the cells that count.
    query_slots, key_slots : int64 ``[B]``, the position of the call's first query and key in each example's own text.
    """

    call: Call
    spans: Spans
    counts: Record | None
    sums: Record | None
    query_slots: Tensor
    key_slots: Tensor

    @classmethod
    def start(cls, call: Call, spans: Spans, stats: Watching) -> Feed | None:
        """Open the records of the call's site and make room in them; None where counts differ between heads."""
        batch, queries = spans.start.shape
        slots = call.query_slots()[:, 0].expand(batch), call.key_slots()[:, 0].expand(batch)
        feed = cls(call, spans, None, None, *slots)
        for stat, heads in stats:
            own = tuple(head for head in call.heads if head in set(heads))
            if isinstance(stat, Histogram):
                feed.counts = stat.record(call.site, own)
            elif isinstance(stat, Mean):
                feed.sums = stat.record(call.site, own)
                if feed.sums.tensors["counts"].shape[0] != 1:
                    return None
                stat.add_examples(feed.sums, batch)
                if spans.counted.any():
                    last_query = (torch.arange(queries) + slots[0][:, None])[spans.counted].max()
                    last_key = (spans.stop - 1 + slots[1][:, None])[spans.counted].max()
                    stat.grow(feed.sums, int(last_query) + 1, int(last_key) + 1)
        return feed

    def add(self, weights: Tensor, block: Block) -> None:
        """Add the weights ``[B, H, Q, K]`` of a block, float32 and contiguous."""
        start = self.spans.start[block.examples, block.queries]
        counted = self.spans.counted[block.examples, block.queries]
        start = (start - block.keys.start).contiguous()
        stop = torch.where(counted, self.spans.stop[block.examples, block.queries] - block.keys.start, start)
        none = torch.empty(0, dtype=torch.int64)
        counts, below = (self.counts.tensors[name] if self.counts else none for name in ("counts", "below_uniform"))
        sums, cells = (self.sums.tensors[name] if self.sums else none for name in ("sums", "counts"))
        rows = [self._rows(record, block.heads) for record in (self.counts, self.sums)]
        # The slots belong to the call's first query and key, a block may begin later.
        slots = [
            (self.query_slots[block.examples] + block.queries.start).contiguous(),
            (self.key_slots[block.examples] + block.keys.start).contiguous(),
        ]
        following, failed = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        sizes = sums.shape[1:] if self.sums else (0, 0)
        first = block.heads.start == 0  # the cells are shared by all heads and counted with the first of them
        known: dict[str, int | Tensor] = {
            "next": following,
            "weights": weights,
            **dict(zip(("examples", "heads", "queries", "keys"), weights.shape, strict=True)),
            "start": start,
            "stop": stop.contiguous(),
            "counts": counts,
            "counts_row": rows[0],
            "below": below,
            "sums": sums,
            "sums_row": rows[1],
            "sums_queries": sizes[0],
            "sums_keys": sizes[1],
            "cells": cells if self.sums and first else 0,
            "query_slot": slots[0],
            "key_slot": slots[1],
            "failed": failed,
        }
        numbers = [known[name] for name in PARAMETERS]
        parameters = numpy.array(
            [number.data_ptr() if isinstance(number, Tensor) else number for number in numbers], dtype=numpy.int64
        )
        team.run(count, parameters.ctypes.data)
        if failed.item():
            raise not_finite(self.call.site)

    def _rows(self, record: Record | None, heads: slice) -> Tensor:
        """Int64: the row of the record for every head of a block, -1 for heads that it does not watch."""
        if record is None:
            return torch.full((heads.stop - heads.start,), -1)
        place = {head: row for row, head in enumerate(record.heads)}
        return torch.tensor([place.get(head, -1) for head in self.call.heads[heads]])
