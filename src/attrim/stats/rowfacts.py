"""Facts about single query rows: sections 3 and 4 of Ji et al. 2021 (https://arxiv.org/abs/2106.01335), and curves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy
import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Axis, Band, Chart, Column, Curve, Panels, Series, Table
from ..core.site import Site
from ..errors import ParameterError
from ..kernels.described import describe
from ..kernels.feed import BinBuffers
from .base import SiteStat, finite, register
from .bins import bin_table, log_edges, require_bins, require_log_bins
from .display import WEIGHT, log_grid, site_label, weight_axis
from .integers import ONE, lasting_zeros

DECILES = 10


@dataclass
class RowFacts:
    """Integers that add up over rows; only rows with at least one valid cell count.

    Attributes
    ----------
    row_counts : ``[H, bins]``, 2^36 shared equally among the values of each row.
    row_deciles : ``[H, 10]``, rows by the share of their values that are not above the bar.
    row_medians : ``[H, bins]``, rows by the first bin at which half of their values are reached.
    """

    row_counts: Tensor
    row_deciles: Tensor
    row_medians: Tensor

    @staticmethod
    def shapes(heads: int, bins: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {"row_counts": (heads, bins), "row_deciles": (heads, DECILES), "row_medians": (heads, bins)}

    def add_to(self, kept: dict[str, Tensor]) -> None:
        """Add every tensor to its namesake."""
        for item in fields(self):
            kept[item.name] += getattr(self, item.name).cpu()


def row_facts(
    weights: Tensor, valid: Tensor, site: Site, floor: float, bins: int, bar: float, into: BinBuffers | None = None
) -> RowFacts | None:
    """The facts about the rows of one example; refuses NaN and infinity.

    Parameters
    ----------
    weights, valid : ``[H, Q, K]``.
    floor, bins : the histogram of rows, as in :func:`~attrim.stats.bins.log_edges`.
    into : the compiled pass adds all cells to it; where it does not apply, nothing is added and the result is None.
    """
    table = bin_table(floor, bins, weights.dtype)
    facts = describe(weights, valid, site, bars=[bar], table=table, shares=True, medians=True, into=into)
    if facts is None:
        if into is not None:
            return None
        counts = plain_row_counts(finite(weights, valid, site), valid, floor, bins)
        sizes, small = counts.sum(-1), ((weights.abs() <= bar) & valid).sum(-1)
        middle = (2 * counts.cumsum(-1) < sizes[..., None]).sum(-1)
        shares, medians = row_shares(counts), _occurrences(middle, sizes > 0, bins)
    else:
        assert facts.shares is not None
        assert facts.medians is not None
        assert facts.small is not None
        shares, medians, sizes, small = facts.shares, facts.medians, facts.sizes, facts.small[..., 0]
    deciles = (DECILES * small // sizes.clamp(min=1)).clamp(max=DECILES - 1)
    return RowFacts(shares, _occurrences(deciles, sizes > 0, DECILES), medians)


def row_shares(counts: Tensor) -> Tensor:
    """Int64 ``[H, bins]``: the sum of the rows' histograms ``[H, Q, bins]``, 2^36 shared among each row's values."""
    return (counts * (ONE // counts.sum(-1, keepdim=True).clamp(min=1))).sum(1)


def plain_row_counts(weights: Tensor, valid: Tensor, floor: float, bins: int) -> Tensor:
    """Int64 ``[H, Q, bins]``: the histogram of every row's magnitudes; parameters as in :func:`row_facts`."""
    edges = log_edges(floor, bins).to(weights.device)
    places = torch.searchsorted(edges, weights.double().abs() + floor, right=True) - 1
    places = torch.where(valid, places.clamp(0, bins - 1), bins)  # one more bin takes the cells that do not count
    counts = torch.zeros(*weights.shape[:2], bins + 1, dtype=torch.int64, device=weights.device)
    return counts.scatter_add_(-1, places, torch.ones_like(places))[..., :bins]


def _occurrences(numbers: Tensor, real: Tensor, bins: int) -> Tensor:
    """Int64 ``[H, bins]``: how often each number occurs among the real rows ``[H, Q]``."""
    found = torch.zeros(numbers.shape[0], bins, dtype=torch.int64, device=numbers.device)
    return found.scatter_add_(1, numbers.clamp(max=bins - 1), real.to(torch.int64))


@register("row-curves")
@dataclass(eq=False)
class RowCurves(SiteStat):
    """For every value on a logarithmic axis, how the rows' shares up to that value are distributed.

    The paper draws the curve of every single row; this keeps all rows of any data set in fixed memory.

    Parameters
    ----------
    floor, bins : the axis, as in :class:`~attrim.stats.histogram.Histogram`.
    levels : how finely the share from 0 to 1 is divided.
    """

    floor: float = 1e-8
    bins: int = 100
    levels: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        require_log_bins("RowCurves", self.floor, self.bins)
        require_bins("RowCurves", self.levels, "levels")

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {"counts": lasting_zeros(heads, self.bins, self.levels + 1)}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors["counts"]
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            weights = tensor[example].float()
            table = bin_table(self.floor, self.bins, weights.dtype)
            if describe(weights, valid, call.site, table=table, curves=kept) is not None:
                continue
            counts = plain_row_counts(finite(weights, valid, call.site), valid, self.floor, self.bins)
            sizes = counts.sum(-1, keepdim=True)
            # Rounded to the nearest level in whole numbers, so that all machines agree.
            levels = (2 * self.levels * counts.cumsum(-1) + sizes) // (2 * sizes).clamp(min=1)
            real = (sizes > 0).expand_as(levels).to(torch.int64)
            found = torch.zeros(len(kept), self.levels + 1, self.bins, dtype=torch.int64, device=tensor.device)
            kept += found.scatter_add_(1, levels, real).transpose(1, 2).cpu()

    def quantile(self, share: float) -> Tensor:
        """Float64 ``[sites, heads, bins]``: the cumulative share that ``share`` of the rows have not exceeded."""
        if not 0 <= share <= 1:
            raise ParameterError(f"quantile({share}) does not exist; give a share from 0 to 1.")

        def of_site(counts: Tensor) -> Tensor:
            reached = counts.cumsum(-1)
            return (reached < share * reached[..., -1:]).sum(-1).double() / self.levels

        return self.table(of_site(record.tensors["counts"]) for record in self.records.values())

    def lines(self, site: Site) -> list[Series]:
        """For each head of a site, the median of the rows' curves with bands for 90 % and for 50 % of them."""
        row = [other.name for other in self.sites].index(site.name)
        shares = {share: numpy.asarray(self.quantile(share))[row] for share in (0.05, 0.25, 0.5, 0.75, 0.95)}
        edges = log_grid(self.floor, self.bins)[1:]
        bands = ((0.05, 0.95), (0.25, 0.75))
        return [
            Series(
                "",
                edges,
                shares[0.5][head],
                bands=[Band(shares[low][head], shares[high][head]) for low, high in bands],
            )
            for head in range(len(shares[0.5]))
        ]

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The share of its weights that the middle row of a head has up to a few values: the mean over heads."""
        del tokenizer
        edges, middle = log_grid(self.floor, self.bins)[1:], numpy.asarray(self.quantile(0.5))
        bars = [bar for bar in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1) if bar > self.floor]
        places = [int(numpy.abs(numpy.log(edges) - numpy.log(bar)).argmin()) for bar in bars]
        columns = [Column("role"), Column("layer"), *(Column(f"≤ {bar:g}", "percent", 1) for bar in bars)]
        rows = [
            [site.role, site.layer, *(float(numpy.nanmean(middle[row, :, place])) for place in places)]
            for row, site in enumerate(self.sites)
        ]
        title = "How small the weights of a row are (share of the weights of the middle row, mean over heads)"
        return [Table("row-curves", title, columns=columns, rows=rows)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The cumulative curve of the middle row of every head, one panel for each site."""
        del tokenizer
        edges, middle = log_grid(self.floor, self.bins)[1:], numpy.asarray(self.quantile(0.5))
        panels = [
            Curve(
                "",
                site_label(site),
                series=[Series(f"head {head}", edges, line, look="ordered") for head, line in enumerate(middle[place])],
                x=weight_axis(self.floor, ""),
                y=Axis("", low=0.0, high=1.0),
            )
            for place, site in enumerate(self.sites)
        ]
        return [
            Panels(
                "row-curves",
                charts=panels,
                x_label=WEIGHT,
                y_label="share of the middle row's weights up to the value",
                share_x=True,
                share_y=True,
                compact=True,
            )
        ]
