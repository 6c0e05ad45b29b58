"""The bins of :class:`~attrim.stats.histogram.Histogram`, read straight from the bits of a float32.

The sign bit is 0 and the order of such floats is the order of their bits as integers, so the exponent and the first
five bits of the mantissa number bins that are 32 to the octave: no logarithm, no search, powers of two are edges.
"""

from __future__ import annotations

import functools

import numpy
import torch
from torch import Tensor

from ..errors import ParameterError
from ..kernels.described import BinTable

MOST_BINS = 1_000_000
"""Of every head: more fill the memory, and no figure can show them."""

PER_OCTAVE_BITS = 5
SHIFT = 23 - PER_OCTAVE_BITS
ONE_BITS = 127 << 23
"""The bits of 1.0."""

FIRST_NORMAL = 1 << PER_OCTAVE_BITS
"""Number, among the shifted bits, of the first bin of normal floats (2^-126)."""

ZERO, UNDERFLOW, NORMAL = 0, 1, 2
ONE = NORMAL + (ONE_BITS >> SHIFT) - FIRST_NORMAL
BINS = ONE + 1
"""Exact zeros, values below 2^-126, the normal floats below 1 in 32 bins an octave, and values of 1 or more."""

KNOTS = numpy.concatenate(
    [
        [0.0],
        (numpy.arange(FIRST_NORMAL, (ONE_BITS >> SHIFT) + 1, dtype=numpy.int32) << SHIFT)
        .view(numpy.float32)
        .astype(numpy.float64),
    ]
)
"""Float64 ``[BINS - 1]``: 0, the lower edges of the normal bins, and 1; ``KNOTS[i]`` is the upper end of bin ``i``."""


def bin_numbers(values: Tensor) -> Tensor:
    """The bin of every value's magnitude (int64, same shape); an edit may have made weights negative."""
    bits = values.float().abs().contiguous().view(torch.int32).clamp(max=ONE_BITS)
    shifted = (bits >> SHIFT).to(torch.int64)
    small = torch.where(bits == 0, ZERO, UNDERFLOW)
    return torch.where(shifted < FIRST_NORMAL, small, shifted - FIRST_NORMAL + NORMAL)


def require_log_bins(name: str, floor: float, bins: int) -> None:
    """Refuse a histogram of a logarithmic axis that cannot be made, for the stat of this name."""
    if not 0 < floor < 1:
        raise ParameterError(f"{name}(floor={floor}) cannot be drawn on a logarithmic axis; give 0 < floor < 1.")
    require_bins(name, bins)


def require_bins(name: str, bins: int, what: str = "bins") -> None:
    """Refuse a number of bins, or of ``what`` else a histogram is divided into, that is none or fills the memory."""
    if not 1 <= bins <= MOST_BINS:
        raise ParameterError(f"{name}({what}={bins}) is not possible; give a number from 1 to {MOST_BINS:,}.")


def log_edges(floor: float, bins: int) -> Tensor:
    """Edges of ``bins`` equal steps of the logarithm from ``floor`` to 1, for values to which ``floor`` was added.

    The first edge lies a tenth of the floor lower, so that a zero (which the shift makes ``floor``) is in bin 0.
    Subtract ``floor`` to get edges for values that were not shifted.
    """
    edges = 10.0 ** torch.linspace(float(numpy.log10(floor)), 0.0, bins + 1, dtype=torch.float64)
    edges[0] -= floor / 10
    return edges


@functools.lru_cache(maxsize=16)
def bin_table(floor: float, bins: int, dtype: torch.dtype) -> BinTable:
    """The bins of :func:`log_edges` for the compiled pass over weights of a dtype, float32 or float64."""
    return BinTable.of(log_edges(floor, bins), floor, dtype)
