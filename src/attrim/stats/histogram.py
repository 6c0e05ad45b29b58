"""How attention values are distributed, for every head (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from ..kernels.feed import Bins, Extent
from .base import SiteStat, finite, register
from .bins import BINS, KNOTS, ONE, ZERO, bin_numbers, log_edges
from .integers import lasting_zeros
from .rowfacts import RowFacts, row_facts


@register("histogram")
@dataclass(eq=False)
class Histogram(SiteStat):
    """Counts of attention values, 32 bins an octave from 2^-126 to 1, with bins of their own for exact 0 and for 1.

    One pass serves every threshold: what is asked about a value between two edges is interpolated inside that one
    bin, which is 2 to 3 % wide. Only cells whose query and key are real and allowed count.

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
        if not 0 < self.floor < 1:
            raise ParameterError(
                f"Histogram(floor={self.floor}) cannot be drawn on a logarithmic axis; give 0 < floor < 1."
            )
        if self.bins < 1:
            raise ParameterError(f"Histogram(bins={self.bins}) has no bin; give at least 1.")

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        shapes = {"counts": (heads, BINS), "below_uniform": (heads,)}
        if self.rows:
            shapes |= RowFacts.shapes(heads, self.bins)
        return {name: lasting_zeros(*shape) for name, shape in shapes.items()}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        edges = log_edges(self.floor, self.bins).to(tensor.device) if self.rows else None
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            valid = one.valid[0].expand(tensor.shape[1:])
            weights = finite(tensor[example].float(), valid, call.site)
            kept["counts"] += _head_counts(bin_numbers(weights), valid, BINS).cpu()
            uniform = valid.sum(-1, keepdim=True).double().reciprocal().float()
            kept["below_uniform"] += ((weights < uniform) & valid).sum((1, 2)).cpu()
            if edges is not None:
                row_facts(weights, valid, edges, self.floor, self.bar).add_to(kept)

    def compiles(self, call: Call) -> type[Bins] | None:
        """See :meth:`Stat.compiles`."""
        return None if self.rows else Bins

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> Bins:
        """See :meth:`Stat.buffers`."""
        kept = self.record(call.site, heads).tensors
        return Bins(heads, kept["counts"], kept["below_uniform"])

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
