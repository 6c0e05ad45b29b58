"""Average attention, the basis of PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495) and attention pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..call import Call
from ..errors import DataError
from ..select import Site
from .base import register
from .fixed import FRACTION_BITS, from_fixed, to_fixed
from .memory import grown
from .sitewise import Record, SiteStat, finite

MOST_EXAMPLES = 1 << (62 - FRACTION_BITS)
"""With more examples a cell whose weight is always 1 would overflow."""


@register("mean")
@dataclass(eq=False)
class Mean(SiteStat):
    """Sums and counts for every cell of every head, in the tokens' own positions, so that padding does not move them.

    Division is by cell: a cell that few texts are long enough for is not shrunk, and rows need not sum to 1. Only
    cells whose query and key are real and allowed count. The sums are fixed-point integers, so that they do not depend
    on the order of the examples; the stat grows to the longest text that it sees.
    """

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {
            "sums": torch.zeros(heads, 0, 0, dtype=torch.int64),
            "counts": torch.zeros(1, 0, 0, dtype=torch.int64),  # one for all heads until a mask tells them apart
            "examples": torch.zeros((), dtype=torch.int64),
        }

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        record = self.record(call.site, call.heads)
        self.add_examples(record, tensor.shape[0])
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            valid = one.valid[0]
            rows, columns = _span(valid.any(0).any(-1)), _span(valid.any(0).any(0))
            if rows.stop == rows.start:
                continue
            valid = valid[:, rows, columns]
            query_slots, key_slots = one.query_slots()[0, rows], one.key_slots()[0, columns]
            self.grow(record, int(query_slots[-1]) + 1, int(key_slots[-1]) + 1, valid.shape[0])
            kept = record.tensors
            place = slice(None), *_places(query_slots.cpu(), key_slots.cpu(), consecutive=one.slots is None)
            weights = finite(tensor[example][:, rows, columns], valid, call.site)
            kept["sums"][place] += to_fixed(weights).cpu()
            kept["counts"][place] += valid.cpu()

    def add_examples(self, record: Record, examples: int) -> None:
        """Count examples; refuses what could overflow."""
        record.tensors["examples"] += examples
        if int(record.tensors["examples"]) > MOST_EXAMPLES:
            raise DataError(f"Mean is exact for at most {MOST_EXAMPLES:,} examples; measure the data in smaller parts.")

    def grow(self, record: Record, queries: int, keys: int, masks: int = 1) -> None:
        """Make room for texts of the given lengths (and for counts that differ between heads when ``masks`` > 1)."""
        kept = record.tensors
        queries, keys = max(queries, kept["sums"].shape[1]), max(keys, kept["sums"].shape[2])
        kept["sums"] = grown(kept["sums"], (len(record.heads), queries, keys))
        kept["counts"] = grown(kept["counts"], (max(masks, kept["counts"].shape[0]), queries, keys))

    def matrix(self, site: Site | str) -> Tensor:
        """The average attention of a site, float64 ``[H, N, M]``; 0 where nothing was counted or a head not watched."""
        record = self.of(site)
        mean = from_fixed(record.tensors["sums"]) / record.tensors["counts"].clamp(min=1)
        return _all_heads(record, mean)

    def mean(self) -> dict[str, Tensor]:
        """The average attention of every site by its name; see :meth:`matrix`."""
        return {name: self.matrix(name) for name in self.records}

    def sums(self, site: Site | str) -> Tensor:
        """The sums behind :meth:`matrix`, float64 ``[H, N, M]``."""
        record = self.of(site)
        return _all_heads(record, from_fixed(record.tensors["sums"]))

    def counts(self, site: Site | str) -> Tensor:
        """How many examples stand behind each cell, int64 ``[H|1, N, M]`` (1 when all heads share them)."""
        counts = self.of(site).tensors["counts"]
        return counts if counts.shape[0] == 1 else _all_heads(self.of(site), counts)

    def offsets(self, site: Site | str) -> tuple[Tensor, Tensor]:
        """The average attention by relative position, which extends to any length.

        Returns
        -------
        offsets : int64 ``[N + M - 1]``, key position minus query position, from ``-(N - 1)`` to ``M - 1``.
        mean : float64 ``[H, N + M - 1]``, the average over all counted cells with that offset; 0 where there are none.
        """
        sums, counts = self.sums(site), self.counts(site).double()
        queries, keys = sums.shape[1:]
        offset = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]

        def by_offset(cells: Tensor) -> Tensor:
            total = torch.zeros(cells.shape[0], max(queries + keys - 1, 0), dtype=torch.float64)
            return total.index_add_(1, (offset + queries - 1).flatten(), cells.flatten(1))

        return torch.arange(1 - queries, keys), by_offset(sums) / by_offset(counts).clamp(min=1)


def _span(flags: Tensor) -> slice:
    """From the first to the last true entry."""
    places = flags.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _places(query_slots: Tensor, key_slots: Tensor, consecutive: bool) -> tuple[Any, Any]:
    """What indexes the cells of these slots: slices where they follow one another, which is faster."""
    if not consecutive:
        return query_slots[:, None], key_slots[None, :]
    return slice(int(query_slots[0]), int(query_slots[-1]) + 1), slice(int(key_slots[0]), int(key_slots[-1]) + 1)


def _all_heads(record: Record, rows: Tensor) -> Tensor:
    """Rows of the watched heads among all heads of the site."""
    if len(record.heads) == record.site.heads:
        return rows
    full = rows.new_zeros(record.site.heads, *rows.shape[1:])
    full[list(record.heads)] = rows
    return full
