"""Codebooks fitted to the distribution of the weights: Lloyd-Max, and the calibrated range of an integer quantiser.

The range of a calibrated quantiser comes from one of two searches: a grid of ranges, or that of TensorRT's calibration
(https://developer.nvidia.com/tensorrt, "8-bit inference with TensorRT", GTC 2017), turned round: what is cut off here
are the small values. Both keep the range with the least divergence between the histograms before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, UnknownName
from ..stats.bins import BINS, KNOTS
from ..stats.histogram import Histogram
from .base import Method, fitted, named
from .codebook import Codebook, Scope
from .fixed import codebook, linear_ladder, log_ladder, quant_8_linear, quant_8_log

GRID_LOW = [step / 10000 for step in range(20)]
GRID_HIGH = [step / 1000 for step in range(990, 1001)]
GRID_BINS = 200
SEARCH_BINS = 2048
LOG_FLOOR = 1e-4
Array = NDArray[numpy.float64]
ROUNDS = 500
CLOSE = 1e-12
EXACT_LEVELS = 31
EXACT_VALUES = 640
"""So many of the largest values are told apart by the exact start: 20 octaves of a histogram."""
Search = Literal["grid", "entropy"]


@fitted("lloyd-max", "head", "layer")
def lloyd_max(values: Tensor, counts: Tensor, bits: int) -> Codebook:
    """Levels that are the means of their bins, with edges halfway between them; the lowest level is zero.

    Parameters
    ----------
    values, counts : float64 ``[N]``, growing, and how often each occurs.

    Notes
    -----
    Zero takes part but does not move.
    """
    used = (counts > 0) & (values > 0)
    values, counts = values[used], counts[used]
    if len(values) == 0:
        return codebook(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    number = min(2**bits - 1, len(values))
    sums = torch.nn.functional.pad(torch.stack([counts, counts * values]).cumsum(-1), (1, 0))
    levels = (_best_start if number <= EXACT_LEVELS else _smooth_start)(values, counts, number)
    for _ in range(ROUNDS):
        below = torch.cat([levels.new_zeros(1), levels[:-1]])
        places = torch.searchsorted(values, (below + levels) / 2)
        places = torch.cat([places, places.new_tensor([len(values)])])
        count, total = sums[:, places].diff(dim=-1)
        moved = torch.where(count > 0, total / count.clamp_min(1e-300), levels)
        moved = moved.cummax(-1).values  # rounding must not carry a level past the next one
        still = bool((moved - levels).abs().max() <= CLOSE)
        levels = moved
        if still:
            break
    below = torch.cat([levels.new_zeros(1), levels[:-1]])
    return codebook((below + levels) / 2, levels)


def _smooth_start(values: Tensor, counts: Tensor, number: int) -> Tensor:
    """Float64 ``[number]``: even quantiles of the cube root of the density, which is the limit for many levels."""
    widths = torch.diff(values, prepend=values.new_zeros(1)).clamp_min(1e-300)
    density = (counts / widths) ** (1 / 3) * widths
    share = density.cumsum(-1) / density.sum()
    wanted = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    return values[torch.searchsorted(share, wanted).clamp_max(len(values) - 1)]


def _best_start(values: Tensor, counts: Tensor, number: int) -> Tensor:
    """Float64 ``[number]``: the best levels beside zero, by dynamic programming over where their bins begin."""
    extra = max(len(values) - EXACT_VALUES, 0)  # the smallest values are taken together
    sums = torch.stack([counts, counts * values, counts * values**2]).cumsum(-1)
    sums = torch.nn.functional.pad(sums, (1, 0))[:, torch.tensor([0, *range(extra + 1, len(values) + 1)])]
    count, total, square = (row[None, :] - row[:, None] for row in sums)
    cost = (square - total**2 / count.clamp_min(1e-300)).clamp_min(0)
    # A bin must hold something: the cost of an empty one, or of one that ends before it begins, is out of reach.
    cost = cost.masked_fill(count <= 0, float("inf"))
    best, begins = sums[2], []
    for _ in range(number):
        best, begin = (best[:, None] + cost).min(0)
        begins.append(begin)
    end, levels = cost.shape[0] - 1, []
    for begin in reversed(begins):
        start = int(begin[end])
        levels.append(total[start, end] / count[start, end])
        end = start
    return torch.stack(levels[::-1])


@fitted("calibrated-linear", "layer", "head")
def calibrated_linear(values: Tensor, counts: Tensor, bits: int = 8, search: Search = "grid") -> Codebook:
    """``quant-8-linear`` with the range that the ``search`` finds."""
    return _calibrated(values, counts, bits, search, quant_8_linear, logarithmic=False)


@fitted("calibrated-log", "layer", "head")
def calibrated_log(values: Tensor, counts: Tensor, bits: int = 8, search: Search = "grid") -> Codebook:
    """``quant-8-log`` with the range that the ``search`` finds."""
    return _calibrated(values, counts, bits, search, quant_8_log, logarithmic=True)


def _calibrated(
    values: Tensor,
    counts: Tensor,
    bits: int,
    search: Search,
    make: Callable[[int, float, float], Codebook],
    logarithmic: bool,
) -> Codebook:
    if search not in get_args(Search):
        raise UnknownName("search", search, get_args(Search))
    if search == "entropy":
        return make(bits, entropy_search(values, counts, bits, logarithmic), 1.0)
    low, high = grid_search(values, counts, lambda low, high: make(bits, low, high), logarithmic)
    return make(bits, low, high)


def grid_search(
    values: Tensor, counts: Tensor, make: Callable[[float, float], Codebook], logarithmic: bool
) -> tuple[float, float]:
    """The range, of 20 x 11 ones, whose quantised values have the histogram nearest to the original one.

    Parameters
    ----------
    values, counts : float64 ``[N]``, values and how often each occurs.
    make : the codebook of a range.
    logarithmic : leave out the ranges from 0 on, which have no logarithm.
    """
    before = _histogram(values, counts)
    best = (float("inf"), GRID_LOW[-1], GRID_HIGH[-1])
    for low in GRID_LOW[1:] if logarithmic else GRID_LOW:
        for high in GRID_HIGH:
            after = _histogram(make(low, high).apply(values), counts)
            best = min(best, (mean_divergence(before, after), low, high))
    return best[1], best[2]


def entropy_search(values: Tensor, counts: Tensor, bits: int, logarithmic: bool) -> float:
    """The lower end of the range: the middle of the lowest kept of 2048 bins, where 2^bits groups lose least.

    As in TensorRT, the reference has the mass that was cut off in its outermost bin and the candidate does not, so that
    cutting off much is a loss. A group without weights counts as lossless (the released search gave up there).
    """
    half = (log_ladder if logarithmic else linear_ladder)(LOG_FLOOR if logarithmic else 0.0, 1.0, SEARCH_BINS)
    edges, middles = half[::2].contiguous(), half[1::2]
    places = (torch.bucketize(values, edges, right=True) - 1).clamp_max(SEARCH_BINS - 1)
    inside = places >= 0
    mass = torch.bincount(places[inside], counts[inside], SEARCH_BINS).numpy()
    dropped = mass.cumsum()
    best = (float("inf"), SEARCH_BINS)
    for kept in range(2**bits + 1, SEARCH_BINS):
        candidate = mass[-kept:]
        below = dropped[-kept - 1]
        if candidate[0] == 0 and below > 0:
            continue  # nothing in the candidate could stand for what was cut off
        reference = candidate.copy()
        reference[0] += below
        best = min(best, (mean_divergence(reference, _grouped(candidate, 2**bits)), kept))
    return float(middles[SEARCH_BINS - best[1]])


def mean_divergence(before: Array, after: Array) -> float:
    """Mean over the bins of the finite terms of the Kullback-Leibler divergence of two histograms; inf if none is."""
    first, second = before / max(before.sum(), 1e-300), after / max(after.sum(), 1e-300)
    finite = (second > 0) | (first == 0)
    both = (first > 0) & (second > 0)
    terms = first[both] * numpy.log(first[both] / second[both]) - first[both] + second[both]
    total = terms.sum() + second[finite & (first == 0)].sum()
    return float(total / finite.sum()) if finite.any() else float("inf")


def _grouped(mass: Array, groups: int) -> Array:
    """Cut bins into nearly equal groups and spread the mass of each over its bins that are not empty."""
    starts = numpy.linspace(0, len(mass), groups + 1).astype(int)[:-1]
    total = numpy.add.reduceat(mass, starts)
    filled = numpy.add.reduceat((mass > 0).astype(float), starts)
    sizes = numpy.diff(numpy.append(starts, len(mass)))
    return numpy.repeat(total / numpy.maximum(filled, 1), sizes) * (mass > 0)


def _histogram(values: Tensor, counts: Tensor) -> Array:
    places = (values * GRID_BINS).long().clamp(0, GRID_BINS - 1)
    return torch.bincount(places, counts, GRID_BINS).numpy()


def bin_values() -> Tensor:
    """Float64 ``[BINS]``: what stands for each bin of a histogram: 0, the middles, and 1."""
    middles = (KNOTS[:-1] + KNOTS[1:]) / 2
    values = torch.from_numpy(numpy.concatenate([[0.0], middles, [1.0]]))
    assert len(values) == BINS
    return values


def fit_histogram(
    method: Method, histogram: Histogram, scope: Scope | None, options: dict[str, Any]
) -> dict[str, Codebook]:
    """A codebook for every site of a histogram, with a leading axis ``[1, H, 1]`` where heads have their own."""
    return {
        name: _fit_site(method, name, record.site.heads, record.heads, record.tensors["counts"], scope, options)
        for name, record in histogram.records.items()
    }


def _fit_site(
    method: Method,
    name: str,
    heads: int,
    watched: tuple[int, ...],
    counts: Tensor,
    scope: Scope | None,
    options: dict[str, Any],
) -> Codebook:
    """Fit one site to the counts ``[watched heads, BINS]``."""
    groups = counts if scope == "head" else counts.sum(0, keepdim=True)
    if bool((groups.sum(-1) == 0).any()):
        raise DataError(f"The histogram of site {name!r} is empty, so no codebook can be fitted; measure it first.")
    values = bin_values()
    books = [method.build(values, row.double(), **options) for row in groups]
    size = max(book.edges.shape[-1] for book in books)
    edges, levels = (torch.stack(rows) for rows in zip(*(_padded(book, size) for book in books), strict=True))
    if scope == "head":
        # A head that was not measured has no level: its weights would become zero without a word.
        missing = sorted(set(range(heads)) - set(watched))
        if missing:
            raise DataError(f"Head {missing[0]} of site {name!r} was not measured; measure it, or use scope='layer'.")
    shape = (1, len(books), 1, -1)
    return named(Codebook(edges.view(shape), levels.view(shape)), method.registered_name, options.get("bits"), scope)


def _padded(book: Codebook, size: int) -> tuple[Tensor, Tensor]:
    """Edges ``[size]`` and values ``[size + 1]``; the codes that are added are out of reach."""
    more = size - book.edges.shape[-1]
    return (
        torch.cat([book.edges, book.edges.new_full((more,), float("inf"))]),
        torch.cat([book.values, book.values[-1:].expand(more)]),
    )
