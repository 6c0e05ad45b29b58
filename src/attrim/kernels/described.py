"""Facts about the rows of attention weights that are there, by one compiled pass.

The meaning is that of the plain versions in torch beside the stats that ask for them, which run where this does not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from ..core.call import not_finite
from ..core.site import Site
from . import team
from .feed import BinBuffers
from .operations import RULES, LookUp, LookupTable, RowOperation

LARGEST_TABLE = 1 << 16
"""Cells of a table of bins; with more it leaves the processor's cache."""


@dataclass(frozen=True, eq=False)
class BinTable:
    """Bins of magnitudes for float32 or float64, cut into cells by the first bits of a number.

    Numbers that are not negative are ordered as their bits are. A cell knows how many edges lie below it, so that a
    number is compared with the edges of its own cell only.

    Attributes
    ----------
    lowest : int32 ``[cells]``, how many edges lie below each cell.
    edges : float32 or float64 ``[bins]``, the smallest number above each bin; the last is NaN, which nothing reaches.
    base, top : the bits of the first and the last cell, of a float64 the upper 32.
    shift : how many of these bits do not matter for the cell.
    most : how many edges a cell has at most.
    steps : of float32 with one edge in a cell, uint64 ``[cells]``: added to the bits of a number in the cell, the upper
        half of the sum is its bin.
    """

    lowest: numpy.ndarray
    edges: numpy.ndarray
    base: int
    top: int
    shift: int
    most: int
    steps: numpy.ndarray | None = None

    @classmethod
    def of(cls, edges: Tensor, floor: float, dtype: torch.dtype) -> BinTable:
        """The bins of float64 edges ``[bins + 1]`` for magnitudes to which ``floor`` was added in float64.

        Numbers below the first or not below the last edge are in the first and the last bin.
        """
        kind = numpy.dtype(numpy.float64 if dtype == torch.float64 else numpy.float32)
        own = _first_numbers(edges.numpy()[1:-1], floor, kind)
        bits = own.view(numpy.int64) >> 32 if kind.itemsize == 8 else own.view(numpy.int32).astype(numpy.int64)
        shift = 20 if kind.itemsize == 8 else 23
        base, top = (int(bits[0]), int(bits[-1])) if len(bits) else (0, 0)
        while shift > 0 and len(numpy.unique(bits >> shift)) < len(bits):
            if (top >> (shift - 1)) - (base >> (shift - 1)) >= LARGEST_TABLE:
                break
            shift -= 1
        base = base >> shift << shift
        starts = base + (numpy.arange(((top - base) >> shift) + 1) << shift)
        lowest = numpy.searchsorted(bits, starts)
        most = int(numpy.diff(numpy.append(lowest, len(bits))).max())
        own = numpy.append(own, kind.type(numpy.nan))
        steps = None
        if kind.itemsize == 4 and most <= 1:
            steps = (lowest.astype(numpy.uint64) + 1 << 32) - own.view(numpy.uint32)[lowest]
        return cls(lowest.astype(numpy.int32), own, base, top, shift, most, steps)

    @classmethod
    def of_codes(cls, table: LookupTable) -> BinTable:
        """The codes of a codebook as bins of float32; negative numbers are in the first."""
        return cls(table.lowest, table.edges, table.base, table.top, table.shift, most=1)

    def parameters(self) -> team.BinTableParameters:
        """The table as compiled.c wants it; its arrays must outlive this."""
        arrays = {name: getattr(self, name).ctypes.data for name in ("lowest", "edges")}
        steps = None if self.steps is None else self.steps.ctypes.data
        return team.BinTableParameters(
            **arrays, steps=steps, bins=len(self.edges), base=self.base, top=self.top, shift=self.shift, most=self.most
        )


def _first_numbers(edges: numpy.ndarray, floor: float, kind: numpy.dtype) -> numpy.ndarray:
    """For each edge the smallest number of a kind, 0 or above, that is not below it when ``floor`` is added to it."""
    number = numpy.clip(edges - floor, 0, None).astype(kind)
    reaches = lambda value: value.astype(numpy.float64) + floor >= edges
    zero, infinity = kind.type(0), kind.type(numpy.inf)
    while True:  # rounding is off by a few numbers at most
        less = numpy.nextafter(number, zero)
        lower = (number > 0) & reaches(less)
        if not lower.any():
            break
        number = numpy.where(lower, less, number)
    while not (enough := reaches(number)).all():
        number = numpy.where(enough, number, numpy.nextafter(number, infinity))
    return number


@dataclass(frozen=True, kw_only=True)
class EditedRows:
    """What an edit, computed in float64, makes of the rows of one example.

    Attributes
    ----------
    distance : float64 ``[H, Q]``, the Jensen-Shannon distance of the counts from those before the edit.
    sums : int64 ``[H, Q]``, the sums in the fixed point of ``attrim.stats.integers``.
    shares : int64 ``[H, bins]``, as in :class:`Described`.
    """

    distance: Tensor
    sums: Tensor
    shares: Tensor

    def parameters(self, operation: RowOperation) -> team.RowEditParameters:
        """What the operation is, and that its facts are written here; both must outlive this."""
        parameters = team.RowEditParameters(
            renormalize=operation.renormalize,
            distance=self.distance.data_ptr(),
            sums=self.sums.data_ptr(),
            shares=self.shares.data_ptr(),
        )
        if isinstance(operation, LookUp):
            parameters.kind, parameters.values = team.LOOK_UP, operation.table.exact.ctypes.data
            parameters.codes = BinTable.of_codes(operation.table).parameters()
        else:
            parameters.kind, parameters.bar = team.KEEP_ABOVE, operation.bar
            parameters.relative_to = RULES.index(operation.relative_to)
        return parameters


@dataclass(frozen=True, kw_only=True)
class Described:
    """What was asked for about the rows of one example; None for everything else.

    Attributes
    ----------
    sizes : int64 ``[H, Q]``, how many cells count.
    small : int64 ``[H, Q, bars]``, how many magnitudes are not above each bar.
    counts : int32 ``[H, Q, bins]``, how many magnitudes are in each bin.
    distance : float64 ``[H, Q]``, the Jensen-Shannon distance of the counts from those before an edit.
    shares : int64 ``[H, bins]``, the sum of the rows' histograms: of each row, 1 in fixed point shared by its cells.
    medians : int64 ``[H, bins]``, rows by the first bin at which half of their cells are reached.
    edited : the rows after each edit.
    sums : int64 ``[H, Q]``, the sums in the fixed point of ``attrim.stats.integers``.
    majority : int64 ``[H, Q]``, how many of the largest weights exceed one half together; 0 where all do not.
    extremes : float64 ``[H, 4]``, largest, smallest, mean and standard deviation of a head's cells; zeros without any.
    """

    sizes: Tensor
    small: Tensor | None = None
    counts: Tensor | None = None
    distance: Tensor | None = None
    shares: Tensor | None = None
    medians: Tensor | None = None
    edited: Sequence[EditedRows] = ()
    sums: Tensor | None = None
    majority: Tensor | None = None
    extremes: Tensor | None = None


def describe(
    weights: Tensor,
    valid: Tensor,
    site: Site,
    *,
    bars: Sequence[float] | None = None,
    table: BinTable | None = None,
    counts: bool = False,
    before: Tensor | None = None,
    curves: Tensor | None = None,
    shares: bool = False,
    medians: bool = False,
    edits: Sequence[RowOperation] = (),
    wide_table: BinTable | None = None,
    into: BinBuffers | None = None,
    sums: bool = False,
    majority: bool = False,
    extremes: bool = False,
) -> Described | None:
    """Facts about the rows of one example; refuses NaN and infinity among the cells that count.

    Parameters
    ----------
    weights : ``[H, Q, K]``, float32; for what depends on ``table`` and for sums also float64.
    valid : bool ``[H|1, Q, K]``, the cells that count.
    bars : for ``small``, rounded to float32.
    table : the bins, made for the dtype of the weights.
    counts, shares, medians, sums, majority, extremes : which facts are wanted.
    before : int32 ``[H, Q, bins]``, the counts of the same rows before an edit, for ``distance``.
    curves : int64 ``[H, bins, levels + 1]``: for each bin, the rows are added by the share of their cells up to it,
        rounded to the nearest of the levels from 0 to 1.
    edits : for ``edited``; only of float32 weights.
    wide_table : with ``edits``, the same bins for float64.
    into : the histogram of all cells is added to it; its heads are those of the weights.

    Returns
    -------
    facts : None where the compiled pass does not apply, and the plain version must run.
    """
    wide = weights.dtype == torch.float64
    if not team.available() or weights.device.type != "cpu" or weights.dtype not in (torch.float32, torch.float64):
        return None
    if wide and (bars is not None or into is not None or majority or extremes or edits):
        return None
    weights = weights if weights.stride(-1) == 1 else weights.contiguous()
    valid = valid if valid.stride(-1) == 1 else valid.contiguous()
    valid = valid.expand(weights.shape)
    heads, queries, keys = weights.shape
    bins = 0 if table is None else len(table.edges)

    def array(wanted: bool, *last: int, dtype: torch.dtype = torch.int64) -> Tensor | None:
        return torch.empty(heads, *last, dtype=dtype) if wanted else None

    def totals(wanted: bool) -> Tensor | None:
        return torch.zeros(heads, bins, dtype=torch.int64) if wanted else None

    limits = numpy.array(bars or (), dtype=numpy.float32).astype(numpy.float64)
    sizes = torch.empty(heads, queries, dtype=torch.int64)
    found = {
        "small": array(bars is not None, queries, len(limits)),
        "counts": array(counts, queries, bins, dtype=torch.int32),
        "distance": array(before is not None, queries, dtype=torch.float64),
        "shares": totals(shares),
        "medians": totals(medians),
        "sums": array(sums, queries),
        "majority": array(majority, queries),
        "extremes": array(extremes, 4, dtype=torch.float64),
    }
    edited = [
        EditedRows(
            distance=torch.empty(heads, queries, dtype=torch.float64),
            sums=torch.empty(heads, queries, dtype=torch.int64),
            shares=torch.zeros(heads, bins, dtype=torch.int64),
        )
        for _ in edits
    ]
    pairs = zip(edited, edits, strict=True)
    own = (team.RowEditParameters * len(edits))(*(rows.parameters(edit) for rows, edit in pairs))
    following, failed = numpy.zeros(1, dtype=numpy.int64), numpy.zeros(1, dtype=numpy.int64)
    parameters = team.RowParameters(
        next=following.ctypes.data,
        path=team.path(),
        wide=wide,
        weights=weights.data_ptr(),
        valid=valid.data_ptr(),
        heads=heads,
        queries=queries,
        keys=keys,
        weight_steps=weights.stride()[:2],
        valid_steps=valid.stride()[:2],
        bars=limits.ctypes.data,
        bar_count=len(limits),
        edits=ctypes.addressof(own),
        edit_count=len(edits),
        sizes=sizes.data_ptr(),
        failed=failed.ctypes.data,
        **{name: tensor.data_ptr() for name, tensor in found.items() if tensor is not None},
    )
    if table is not None:
        parameters.table = table.parameters()
    if wide_table is not None:
        parameters.wide_table = wide_table.parameters()
    if before is not None:
        parameters.before = before.data_ptr()
    if into is not None:
        parameters.histogram, parameters.below_uniform = into.counts.data_ptr(), into.below_uniform.data_ptr()
    if curves is not None:
        parameters.curves, parameters.levels = curves.data_ptr(), curves.shape[-1] - 1
    team.run("describe_rows", parameters)
    if failed[0] == team.NO_NUMBERS:
        raise not_finite(site)
    if failed[0] == team.NO_MEMORY:
        raise MemoryError(f"There is no memory left to describe the attention of {site.name!r}.")
    return None if failed[0] else Described(sizes=sizes, edited=edited, **found)
