"""Where the range of a quantiser should begin and end, from the distribution of the weights.

Two searches: a grid of ranges, and the one of TensorRT's calibration
(https://developer.nvidia.com/tensorrt, "8-bit inference with TensorRT", GTC 2017), turned round: what is cut off
here are the small values. Both keep the range with the least divergence between the histograms before and after.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from .codebook import Codebook
from .ladder import linear_ladder, log_ladder

GRID_LOW = [step / 10000 for step in range(20)]
GRID_HIGH = [step / 1000 for step in range(990, 1001)]
GRID_BINS = 200
SEARCH_BINS = 2048
LOG_FLOOR = 1e-4
Array = NDArray[numpy.float64]


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
