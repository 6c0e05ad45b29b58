"""Average attention, the basis of PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495) and attention pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Axis, Chart, Column, Curve, Matrix, Panels, Pattern, Series, Table, file_name
from ..core.site import Site
from ..errors import DataError
from ..kernels.feed import CellBuffers, Extent
from .base import SiteRecord, SiteStat, finite, register
from .display import site_label
from .integers import FRACTION_BITS, from_fixed, grown, to_fixed

LARGEST_SUM = 1 << 62
"""Two sums up to this still fit into 64 bits together."""
MOST_EXAMPLES = LARGEST_SUM >> FRACTION_BITS
"""With more examples the sum of a cell whose weight is always 1 could be larger."""
LARGEST_PATTERN = 64
"""Cells on a side of an average pattern in a chart; larger ones show the largest of neighbouring cells."""
FARTHEST = 24
"""Relative positions in a chart, to either side."""


@register("mean")
@dataclass(eq=False)
class Mean(SiteStat):
    """Sums and counts for every cell of every head, in the tokens' own positions, so that padding does not move them.

    Division is by cell: a cell that few texts are long enough for is not shrunk, and rows need not sum to 1. Only
    cells whose query and key are real and allowed count. The sums are fixed-point integers, so that they do not depend
    on the order of the examples; the stat grows to the longest text that it sees.

    Their step is 2^-36 (1.5e-11), to which every weight is rounded: a weight below half of it counts as 0. At most
    2^26 (67 million) examples, or a sum of 2^26 in a cell, can be added up; more is refused.
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
        self._add_examples(record, tensor.shape[0])
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
            largest = float(weights.abs().amax())
            if largest > MOST_EXAMPLES:
                raise _too_much()
            kept["sums"][place] += to_fixed(weights).cpu()
            kept["counts"][place] += valid.cpu()
            # Weights up to 1 cannot get there before the examples are too many; those that an edit enlarged can.
            if largest > 1 and _largest(kept["sums"]) > LARGEST_SUM:
                raise _too_much()

    def merge(self, other: Self) -> Self:
        """See :meth:`Stat.merge`; refuses what could overflow."""
        self._check_fit(other)
        for name in self.records.keys() & other.records.keys():
            mine, theirs = self.records[name].tensors, other.records[name].tensors
            if int(mine["examples"]) + int(theirs["examples"]) > MOST_EXAMPLES:
                raise _too_much()
            if _largest(mine["sums"]) + _largest(theirs["sums"]) > LARGEST_SUM:
                raise _too_much()
        return super().merge(other)

    def compiles(self, call: Call) -> type[CellBuffers] | None:
        """See :meth:`Stat.compiles`; counts that differ between heads are left to :meth:`watch`."""
        record = self.records.get(call.site.name)
        return CellBuffers if record is None or record.tensors["counts"].shape[0] == 1 else None

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> CellBuffers:
        """See :meth:`Stat.buffers`."""
        record = self.record(call.site, heads)
        self._add_examples(record, extent.examples)
        self.grow(record, extent.queries, extent.keys)
        return CellBuffers(heads, record.tensors["sums"], record.tensors["counts"])

    def _add_examples(self, record: SiteRecord, examples: int) -> None:
        """Count examples; refuses what could overflow."""
        record.tensors["examples"] += examples
        if int(record.tensors["examples"]) > MOST_EXAMPLES:
            raise _too_much()

    def grow(self, record: SiteRecord, queries: int, keys: int, masks: int = 1) -> None:
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

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """How many examples stand behind the cells of every site, and how far from its query the attention is."""
        del tokenizer
        columns = [
            Column("role"), Column("layer"), Column("queries", "count"), Column("keys", "count"),
            Column("examples", "count"), Column("cells without", "count"), Column("median a cell", "count"),
            Column("on itself", "percent", 1), Column("one before", "percent", 1), Column("one after", "percent", 1),
        ]  # fmt: skip
        rows = []
        for site, counts in zip(self.sites, count_summary(self).values(), strict=True):
            queries, keys = self.sums(site).shape[1:]
            offsets, mean = self.offsets(site)
            near = {int(offset): float(mean[:, place].mean()) for place, offset in enumerate(offsets.tolist())}
            examples = int(self.of(site).tensors["examples"])
            nearest = [near.get(offset) for offset in (0, -1, 1)]
            rows.append([site.role, site.layer, queries, keys, examples, counts.unseen, counts.median, *nearest])
        title = "Average attention (to the token itself and its neighbours: mean over heads)"
        return [Table("averages", title, columns=columns, rows=rows)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The average patterns of all heads as one figure for each role, and the average by relative position."""
        del tokenizer
        roles = dict.fromkeys(site.role for site in self.sites)
        return [*(self.patterns_chart(role) for role in roles), self.offsets_chart()]

    def patterns_chart(self, role: str) -> Pattern:
        """The average attention of every head of a role: a row for each layer, a column for each head."""
        sites = [site for site in self.sites if site.role == role]
        heads = max(site.heads for site in sites)
        matrices = []
        for site in sites:
            mean, watched = self.matrix(site), set(self.of(site).heads)
            empty = torch.full((1, 1), float("nan"))
            matrices += [Matrix(_pooled(mean[head]) if head in watched else empty) for head in range(heads)]
        size = max(max(self.matrix(site).shape[1:]) for site in sites)
        note = f"; neighbouring cells of {size} pooled by their largest" if size > LARGEST_PATTERN else ""
        return Pattern(
            file_name("average-patterns", role),
            matrices=matrices,
            scale="root",
            label="average attention weight",
            x_label=f"key position ({role}: a column for each head, a row for each layer{note})",
            y_label="query position",
            rows=[str(site.layer) for site in sites],
            columns=[str(head) for head in range(heads)],
        )

    def offsets_chart(self) -> Panels:
        """The average attention by relative position, one panel for each site, a line for each head."""
        panels = []
        for site in self.sites:
            offsets, mean = self.offsets(site)
            near = offsets.abs() <= FARTHEST
            lines = [
                Series(f"head {head}", offsets[near], mean[head, near], look="ordered") for head in self.of(site).heads
            ]
            panels.append(Curve("", site_label(site), series=lines, x=Axis("", "whole"), y=Axis("", low=0.0)))
        return Panels(
            "average-by-distance",
            charts=panels,
            x_label="key position minus query position",
            y_label="average attention weight",
            share_x=True,
            compact=True,
        )


def _largest(sums: Tensor) -> int:
    """The largest magnitude of the sums."""
    return max(int(sums.max()), -int(sums.min())) if sums.numel() else 0


def _too_much() -> DataError:
    return DataError(
        f"Mean is exact for at most {MOST_EXAMPLES:,} examples with weights up to 1; measure the data in smaller parts."
    )


def _pooled(matrix: Tensor) -> Tensor:
    """A matrix of at most 64 cells a side: the largest of the neighbouring cells that become one."""
    step = -(-max(matrix.shape) // LARGEST_PATTERN)
    if step <= 1:
        return matrix
    return torch.nn.functional.max_pool2d(matrix[None], step, ceil_mode=True)[0]


def _span(flags: Tensor) -> slice:
    """From the first to the last true entry."""
    places = flags.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _places(query_slots: Tensor, key_slots: Tensor, consecutive: bool) -> tuple[Any, Any]:
    """What indexes the cells of these slots: slices where they follow one another, which is faster."""
    if not consecutive:
        return query_slots[:, None], key_slots[None, :]
    return slice(int(query_slots[0]), int(query_slots[-1]) + 1), slice(int(key_slots[0]), int(key_slots[-1]) + 1)


def _all_heads(record: SiteRecord, rows: Tensor) -> Tensor:
    """Rows of the watched heads among all heads of the site."""
    if len(record.heads) == record.site.heads:
        return rows
    full = rows.new_zeros(record.site.heads, *rows.shape[1:])
    full[list(record.heads)] = rows
    return full


@dataclass(frozen=True)
class Counts:
    """How many examples stand behind the cells of a site's averages.

    Attributes
    ----------
    cells : cells of the stored size.
    unseen : those that no example had.
    lowest, median, highest : examples behind a cell that some example had.
    """

    cells: int
    unseen: int
    lowest: int
    median: float
    highest: int


def count_summary(mean: Mean) -> dict[str, Counts]:
    """For every site, how many examples its cells have (the smallest number, where masks differ between heads)."""
    summary = {}
    for site in mean.sites:
        counts = mean.counts(site).amin(0).flatten()
        seen = counts[counts > 0]
        if not len(seen):
            raise DataError(f"Nothing was measured at site {site.name!r}; measure texts first.")
        summary[site.name] = Counts(
            cells=len(counts),
            unseen=len(counts) - len(seen),
            lowest=int(seen.min()),
            median=float(seen.double().quantile(0.5)),
            highest=int(seen.max()),
        )
    return summary


def split_half(mean_a: Mean, mean_b: Mean) -> dict[str, Tensor]:
    """Correlate the averages of two halves of the data.

    Parameters
    ----------
    mean_a, mean_b : measured with the same model and layout on examples that do not overlap.

    Returns
    -------
    site name to float64 ``[H]``: the Pearson correlation over the cells that both halves have; NaN for a head whose
    averages do not vary. With r between halves, the average over both correlates about ``sqrt(2 r / (1 + r))`` with
    that over endless data (Spearman-Brown).
    """
    if [site.name for site in mean_a.sites] != [site.name for site in mean_b.sites]:
        raise DataError("The two halves were measured at different sites; use one model and one selection for both.")
    result = {}
    for site in mean_a.sites:
        left, right = mean_a.matrix(site), mean_b.matrix(site)
        rows, columns = (min(sizes) for sizes in zip(left.shape[1:], right.shape[1:], strict=True))
        both = (mean_a.counts(site)[:, :rows, :columns] > 0) & (mean_b.counts(site)[:, :rows, :columns] > 0)
        result[site.name] = torch.stack(
            [
                _correlation(one[:rows, :columns][mask], other[:rows, :columns][mask])
                for one, other, mask in zip(left, right, both.expand(len(left), -1, -1), strict=True)
            ]
        )
    return result


def _correlation(left: Tensor, right: Tensor) -> Tensor:
    """Pearson correlation of two vectors; NaN where one of them does not vary."""
    left, right = left - left.mean(), right - right.mean()
    return (left * right).sum() / (left.square().sum() * right.square().sum()).sqrt()
