"""How attention values are distributed, for every head (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import (
    Axis,
    Bins,
    Chart,
    Column,
    Curve,
    Distribution,
    HeadMatrix,
    Matrix,
    Panels,
    Pattern,
    Reference,
    Series,
    Table,
)
from ..core.site import Site
from ..errors import ParameterError
from ..kernels.feed import BinBuffers, Extent
from .base import SiteStat, finite, register
from .bins import BINS, KNOTS, ONE, ZERO, bin_numbers, require_log_bins
from .display import (
    WEIGHT,
    Varying,
    head_bar_panels,
    head_bars,
    histogram_of_heads,
    layer_curve,
    layer_mean,
    log_grid,
    site_file,
    site_label,
    weight_axis,
)
from .integers import lasting_zeros
from .rowfacts import DECILES, RowCurves, RowFacts, row_facts

BARS = (1e-4, 1e-3, 1e-2)
BINNED = (
    "≤ a bar: read from bins 2 to 3 % wide, exact but for the weights in the bar's own bin (it matters where many "
    "equal the bar); < 1/n: exact."
)


@register("histogram")
@dataclass(eq=False)
class Histogram(SiteStat):
    """Counts of attention values, 32 bins an octave from 2^-126 to 1, with bins of their own for exact 0 and for 1.

    One pass serves every threshold: what is asked about a value between two edges is interpolated inside that one
    bin, which is 2 to 3 % wide. Only cells whose query and key are real and allowed count. Weights that an edit made
    negative count by their magnitude.

    Parameters
    ----------
    rows : also keep facts about single query rows: :meth:`row_histogram`, :meth:`row_deciles`, :meth:`median_bins`.
    floor, bins : the logarithmic grid of the facts about rows, from ``floor`` to 1.
    bar : row sparsity is the share of a row's values that are not above it.
    """

    rows: bool = False
    floor: float = 1e-8
    bins: int = 100
    bar: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_log_bins("Histogram", self.floor, self.bins)

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        shapes = {"counts": (heads, BINS), "below_uniform": (heads,)}
        if self.rows:
            shapes |= RowFacts.shapes(heads, self.bins)
        return {name: lasting_zeros(*shape) for name, shape in shapes.items()}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            valid = one.valid[0].expand(tensor.shape[1:])
            if self.rows:
                into = BinBuffers(call.heads, kept["counts"], kept["below_uniform"])
                facts = self._row_facts(tensor[example].float(), valid, call.site, into)
                if facts is not None:
                    facts.add_to(kept)
                    continue
            weights = finite(tensor[example].float(), valid, call.site).abs()
            kept["counts"] += _head_counts(bin_numbers(weights), valid, BINS).cpu()
            uniform = valid.sum(-1, keepdim=True).double().reciprocal().float()
            kept["below_uniform"] += ((weights < uniform) & valid).sum((1, 2)).cpu()
            if self.rows and (facts := self._row_facts(weights, valid, call.site)) is not None:
                facts.add_to(kept)

    def _row_facts(self, weights: Tensor, valid: Tensor, site: Site, into: BinBuffers | None = None) -> RowFacts | None:
        return row_facts(weights, valid, site, self.floor, self.bins, self.bar, into)

    def compiles(self, call: Call) -> type[BinBuffers] | None:
        """See :meth:`Stat.compiles`."""
        return None if self.rows else BinBuffers

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> BinBuffers:
        """See :meth:`Stat.buffers`."""
        kept = self.record(call.site, heads).tensors
        return BinBuffers(heads, kept["counts"], kept["below_uniform"])

    @property
    def total(self) -> Tensor:
        """Int64 ``[sites, heads]``: how many values were counted."""
        return self._each(lambda kept: kept["counts"].sum(-1), 0)

    @property
    def zeros(self) -> Tensor:
        """Int64 ``[sites, heads]``: how many values are exactly 0."""
        return self._each(lambda kept: kept["counts"][:, ZERO], 0)

    @property
    def ones(self) -> Tensor:
        """Int64 ``[sites, heads]``: how many values are 1 (or more, by rounding or by an edit)."""
        return self._each(lambda kept: kept["counts"][:, ONE], 0)

    def sparsity(self, threshold: float = 0.0) -> Tensor:
        """Float64 ``[sites, heads]``: the share of values that are not above ``threshold``.

        Exact but for the values in the threshold's own bin: of these, the part is taken that the threshold cuts off the
        bin's width, even where all of them equal the threshold.
        """
        return self._each(
            lambda kept: _not_above(kept["counts"], numpy.array([threshold]))[:, 0] / kept["counts"].sum(-1)
        )

    def quantile(self, share: float) -> Tensor:
        """Float64 ``[sites, heads]``: the value that ``share`` of all values are not above."""
        if not 0 <= share <= 1:
            raise ParameterError(f"quantile({share}) does not exist; give a share from 0 to 1.")

        def of_head(counts: numpy.ndarray) -> float:
            if counts.sum() == 0:
                return float("nan")
            wanted, reached = share * counts.sum(), counts[:-1].cumsum()
            return 1.0 if wanted > reached[-1] else float(numpy.interp(wanted, reached, KNOTS))

        return self._each(
            lambda kept: torch.tensor([of_head(counts) for counts in kept["counts"].numpy()], dtype=torch.float64)
        )

    def share_below_uniform(self) -> Tensor:
        """Float64 ``[sites, heads]``: the share of values below 1/n, n being the allowed keys of their row (exact)."""
        return self._each(lambda kept: kept["below_uniform"].double() / kept["counts"].sum(-1))

    def counts(self, edges: Sequence[float] | Tensor) -> Tensor:
        """Float64 ``[sites, heads, len(edges) - 1]``: how many values lie in each bin ``[edge, next edge)``.

        The last bin contains its upper edge. For the grids of the paper, of values to which ``floor`` was added,
        give ``log_edges(floor, 100) - floor`` from :mod:`attrim.stats.bins`.
        """
        grid = numpy.asarray(edges, dtype=numpy.float64)
        if grid.ndim != 1 or len(grid) < 2 or (numpy.diff(grid) <= 0).any():
            raise ParameterError("The edges of a histogram must be at least two growing numbers.")

        def rebinned(counts: Tensor) -> Tensor:
            below = _not_above(counts, grid)
            # "Not above" and "below" differ only where many values are equal, which the format has at 0 and at 1.
            below[:, :-1] -= torch.from_numpy(grid[:-1] == 0) * counts[:, ZERO, None]
            below[:, :-1] -= torch.from_numpy(grid[:-1] == 1) * counts[:, ONE, None]
            return below.diff(dim=-1)

        return self._each(lambda kept: rebinned(kept["counts"]), 0.0)

    def decades(self, lowest: int = -10) -> Tensor:
        """Float64 ``[sites, heads, 1 - lowest]``: the share of values below 10^lowest, then of every decade up to 1."""
        edges = [0.0, *(10.0**power for power in range(lowest, 0)), 1.0]
        counts = self.counts(edges)
        return counts / self.total[..., None]

    def row_histogram(self) -> Tensor:
        """Float64 ``[sites, heads, bins]``: the mean of the rows' own histograms; every row weighs the same."""
        self._require_rows()
        return self._each(lambda kept: kept["row_counts"].double() / kept["row_counts"].sum(-1, keepdim=True))

    def row_deciles(self) -> Tensor:
        """Float64 ``[sites, heads, 10]``: the share of rows whose sparsity at ``bar`` is in each tenth of [0, 1]."""
        self._require_rows()
        return self._each(lambda kept: kept["row_deciles"].double() / kept["row_deciles"].sum(-1, keepdim=True))

    def median_bins(self) -> Tensor:
        """Int64 ``[sites, heads, bins]``: rows by their median bin, the first to reach half the row."""
        self._require_rows()
        return self._each(lambda kept: kept["row_medians"], 0)

    def median_bin(self) -> Tensor:
        """Float64 ``[sites, heads]``: the mean median bin of the rows."""
        counts = self.median_bins().double()
        return (counts * torch.arange(self.bins)).sum(-1) / counts.sum(-1)

    def diversity(self) -> Tensor:
        """Float64 ``[sites, heads]``: the standard deviation of the rows' median bins, in bins."""
        counts = self.median_bins().double()
        distance = torch.arange(self.bins) - self.median_bin()[..., None]
        return ((counts * distance**2).sum(-1) / counts.sum(-1)).sqrt()

    def shares(self, bars: Sequence[float] = BARS) -> dict[str, list[float]]:
        """The share of weights up to each bar, and below 1/n: one number a site and, last, one for all.

        Heads count by their number of weights, so that the numbers are shares of all weights.
        """
        totals = numpy.asarray(self.total, dtype=float)
        columns = {f"≤ {bar:g}": self.sparsity(bar) for bar in bars}
        columns["< 1/n"] = self.share_below_uniform()
        result = {}
        for name, values in columns.items():
            counted = numpy.nan_to_num(numpy.asarray(values, dtype=float)) * totals
            result[name] = [*(counted.sum(1) / totals.sum(1)).tolist(), float(counted.sum() / totals.sum())]
        return result

    def summary(self) -> dict[str, Any]:
        """See :meth:`Stat.summary`: the sites, how many weights were counted, and the share of small ones."""
        return {
            "sites": [site.name for site in self.sites],
            "weights": int(self.total.sum()),
            "share": self.shares(),
        }

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The share of small weights, one row for each site and one for all of them."""
        del tokenizer
        shares, totals = self.shares(), numpy.asarray(self.total).sum(1)
        columns = [Column("role"), Column("layer"), Column("weights", "count")]
        rows: list[list[Any]] = [[site.role, site.layer, totals[row]] for row, site in enumerate(self.sites)]
        rows.append(["all", None, totals.sum()])
        return [
            Table(
                "shares",
                "How small the attention weights are (share of weights)",
                columns=[*columns, *(Column(name, "percent", 1) for name in shares)],
                rows=[[*row, *(column[place] for column in shares.values())] for place, row in enumerate(rows)],
                caption=BINNED,
                sections=[len(rows) - 1],
            )
        ]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """How the weights are distributed, in all heads and in each; with ``rows``, in single rows, too."""
        del tokenizer
        found: list[Chart] = [
            self.distribution_chart(),
            self.sparsity_chart("sparsity-of-heads", 1e-3),
            self.heads_chart(),
            self.bars_chart(),
        ]
        if self.rows:
            found += [self.rows_chart(site) for site in self.sites]
            found += self.row_charts()
        return found

    def distribution_chart(self, floor: float = 1e-10, bins_per_decade: int = 10) -> Panels:
        """How the values of every site are distributed (left), and the share of them up to a value (right).

        Parameters
        ----------
        floor : the smallest value on the axis; what lies below it counts in the cumulative curve.
        bins_per_decade : how fine the histogram is.
        """
        decades = round(-numpy.log10(floor))
        edges = log_grid(floor, decades * bins_per_decade)
        totals = numpy.asarray(self.total).sum(-1)
        counts = numpy.asarray(self.counts([0.0, *edges])).sum(1)  # [sites, bins]; the first bin is below the floor
        density = counts[:, 1:] * bins_per_decade / totals[:, None]
        cumulative = counts.cumsum(1) / totals[:, None]
        names = [site_label(site) for site in self.sites]
        whole = counts.sum(0)
        left = Distribution(
            "",
            edges=edges,
            bins=[
                *(Bins(name, values, "ordered") for name, values in zip(names, density, strict=True)),
                Bins("all", whole[1:] * bins_per_decade / totals.sum(), "total"),
            ],
            x=weight_axis(floor),
            y=Axis("share of weights per decade", low=0.0),
        )
        right = Curve(
            "",
            series=[
                *(Series(name, edges, values, look="ordered") for name, values in zip(names, cumulative, strict=True)),
                Series("all", edges, whole.cumsum() / totals.sum(), look="total"),
            ],
            x=weight_axis(floor),
            y=Axis("share of weights up to this value", low=0.0, high=1.0),
            references=[Reference(bar, along="vertical") for bar in (1e-3, 1e-2)],
        )
        return Panels("distribution", charts=[left, right], across=2, legend="site")

    def sparsity_chart(self, name: str, bar: float) -> HeadMatrix:
        """The share of small weights of every head."""
        return HeadMatrix.of(name, self.sparsity(bar), self.sites, f"share of weights ≤ {bar:g}", low=0.0, high=1.0)

    def heads_chart(self, floor: float = 1e-8, bins_per_decade: int = 5) -> Panels:
        """A small histogram of every head, each scaled to its own peak; the dotted line is the median.

        Weights below ``floor`` are counted in the first bin.
        """
        decades = round(-numpy.log10(floor))
        edges = log_grid(floor, decades * bins_per_decade)
        counts = numpy.asarray(self.counts([0.0, *edges[1:]]), dtype=float)
        median = numpy.asarray(self.quantile(0.5))
        panels = [
            Distribution(
                "",
                edges=edges,
                bins=[Bins("", counts[row, head], filled=True)],
                x=weight_axis(floor, ""),
                references=[Reference(max(float(median[row, head]), floor), along="vertical")]
                if numpy.isfinite(median[row, head])
                else [],
            )
            for row, head in numpy.ndindex(counts.shape[:2])
        ]
        several = len({site.role for site in self.sites}) > 1
        return Panels(
            "histogram-of-heads",
            charts=panels,
            rows=[site_label(site) if several else str(site.layer) for site in self.sites],
            columns=[str(head) for head in range(counts.shape[1])],
            x_label=f"{WEIGHT} (a column for each head, a row for each layer, each with its own scale)",
            share_x=True,
            compact=True,
        )

    def bars_chart(self, low: float = 1e-8, points: int = 81) -> Panels:
        """For each site, the share of weights that are not above a bar: a line for each head, dashed for the site."""
        bars = log_grid(low, points - 1)
        shares = numpy.stack([numpy.asarray(self.sparsity(float(bar))) for bar in bars], -1)  # [sites, heads, points]
        totals = numpy.asarray(self.total, dtype=float)[..., None]
        whole = numpy.nansum(shares * totals, 1) / totals.sum(1)
        panels = [
            Curve(
                "",
                site_label(site),
                series=[
                    *(Series(f"head {head}", bars, line, look="ordered") for head, line in enumerate(shares[place])),
                    Series("all heads", bars, whole[place], look="total"),
                ],
                x=weight_axis(low, ""),
                y=Axis("", low=0.0, high=1.0),
            )
            for place, site in enumerate(self.sites)
        ]
        return Panels(
            "sparsity-against-bar",
            charts=panels,
            x_label="bar",
            y_label="share of weights ≤ bar",
            share_x=True,
            share_y=True,
            compact=True,
        )

    def rows_chart(self, site: Site, curves: RowCurves | None = None) -> Panels:
        """How the weights of single query rows are distributed, for each head of a site.

        Bars (left axis) are the mean of the rows' histograms. Line and bands (right axis) are the median, 50 % and 90 %
        of the rows' cumulative curves: Ji et al. 2021 (https://arxiv.org/abs/2106.01335) draw every row.

        Parameters
        ----------
        curves : measured with the floor and bins of this histogram; without them there are no lines.
        """
        row = [other.name for other in self.sites].index(site.name)
        edges = log_grid(self.floor, self.bins)
        shares = numpy.asarray(self.row_histogram())[row]
        lines = [[] for _ in shares] if curves is None else [[line] for line in curves.lines(site)]
        right = Axis("share up to the value", low=0.0, high=1.0)
        panels = [
            Distribution(
                "",
                f"head {head}",
                edges=edges,
                bins=[Bins("", share, filled=True)],
                x=weight_axis(self.floor, ""),
                y=Axis("", low=0.0, high=0.2),
                lines=lines[head],
                right=right if lines[head] else None,
            )
            for head, share in enumerate(shares)
        ]
        return Panels(
            site_file("rows", site),
            charts=panels,
            x_label=f"{WEIGHT}, {site.role} layer {site.layer}",
            y_label="share of a row's weights (bars)",
            share_x=True,
            share_y=True,
            compact=True,
        )

    def row_charts(self) -> list[Chart]:
        """What the rows of all heads are like: how sparse, how alike, around which weight."""
        title = f"mean median bin ({self.bins} bins from {self.floor:g} to 1)"
        return [
            self.sparsity_chart("row-sparsity-of-heads", self.bar),
            self.deciles_chart(),
            head_bar_panels("median-of-rows", "", [head_bars("median bin", {"": self.median_bars()}, self.sites)]),
            histogram_of_heads("median-of-rows-histogram", "", title, {"": self.median_bin()}),
            layer_curve("diversity", "", "diversity (bins)", {"": layer_mean(self.diversity())}),
        ]

    def deciles_chart(self) -> Pattern:
        """For each head, the share of rows in each tenth of row sparsity: heads down, from dense to sparse."""
        tenths = [f"{10 * tenth} %" for tenth in range(DECILES)]
        deciles = numpy.asarray(self.row_deciles())
        return Pattern(
            "sparsity-of-rows",
            matrices=[Matrix(table, site_label(site)) for table, site in zip(deciles, self.sites, strict=True)],
            keys=tenths,
            low=0.0,
            high=1.0,
            label="share of rows",
            x_label=f"share of a row's weights ≤ {self.bar:g} (lower end of each tenth)",
            y_label="head",
        )

    def median_bars(self) -> Varying:
        """The rows' median bins: mean, standard deviation and extremes."""
        counts = numpy.asarray(self.median_bins())
        seen = counts > 0
        empty = ~seen.any(-1)
        low = numpy.where(empty, numpy.nan, seen.argmax(-1))
        high = numpy.where(empty, numpy.nan, counts.shape[-1] - 1 - seen[..., ::-1].argmax(-1))
        return Varying(self.median_bin(), self.diversity(), low, high, 0.0)

    def _require_rows(self) -> None:
        if not self.rows:
            raise ParameterError("This histogram keeps no facts about rows; measure with Histogram(rows=True).")

    def _each(self, read: Callable[[dict[str, Tensor]], Tensor], missing: float = float("nan")) -> Tensor:
        return self.table([read(record.tensors) for record in self.records.values()], missing)


def _head_counts(numbers: Tensor, valid: Tensor, bins: int) -> Tensor:
    """Int64 ``[H, bins]``: how often each number occurs among the valid cells ``[H, Q, K]`` of each head."""
    heads = torch.arange(numbers.shape[0], device=numbers.device)[:, None, None]
    flat = (numbers + heads * bins)[valid]
    return torch.bincount(flat, minlength=numbers.shape[0] * bins).view(-1, bins)


def _not_above(counts: Tensor, thresholds: numpy.ndarray) -> Tensor:
    """Float64 ``[H, thresholds]``: how many of the counted values are not above each threshold."""
    reached = counts[:, :-1].cumsum(-1).numpy()
    rows = [numpy.interp(thresholds, KNOTS, row, left=0.0) for row in reached]
    found = torch.from_numpy(numpy.stack(rows))
    whole = torch.from_numpy(thresholds >= 1)
    return torch.where(whole, counts.sum(-1, keepdim=True).double(), found)
