"""Evenly spaced levels (methods 1-4 and 12 of Ji et al. 2021, https://arxiv.org/abs/2106.01335).

In the paper's names "linear" is even spacing, "slinear" and "slog" the scale that is spaced, "clamped" means with
pruning, and "midval" that a bin's middle stands for it. All codebooks have 2^bits codes, that of zero included.
"""

from __future__ import annotations

from ..base import fixed
from ..codebook import Codebook
from ..ladder import linear_ladder
from .cuts import middle_of_bin, nearest_step, step_below

PRUNE = 1e-3


@fixed("linear-slinear")
def linear_slinear(bits: int) -> Codebook:
    """The nearest of 2^bits levels from 0 to 1."""
    return nearest_step(linear_ladder(0.0, 1.0, 2**bits - 1))


@fixed("linear-slinear-midval")
def linear_slinear_midval(bits: int) -> Codebook:
    """The middle of one of 2^bits equal bins; the lowest bin is zero."""
    return middle_of_bin(linear_ladder(0.0, 1.0, 2**bits))


@fixed("linear-slinear-clamped")
def linear_slinear_clamped(bits: int, prune: float = PRUNE) -> Codebook:
    """The nearest of 2^bits levels from ``prune`` to 1, the lowest of which is zero."""
    return nearest_step(linear_ladder(prune, 1.0, 2**bits - 1))


@fixed("linear-slinear-clamped-midval")
def linear_slinear_clamped_midval(bits: int, prune: float = PRUNE) -> Codebook:
    """The middle of one of 2^bits equal bins from ``prune`` to 1; the lowest bin is zero."""
    return middle_of_bin(linear_ladder(prune, 1.0, 2**bits))


@fixed("quant-8-linear")
def quant_8_linear(bits: int, low: float = 0.0019, high: float = 0.998) -> Codebook:
    """The next level below, of 2^bits from ``low`` (which is zero) to ``high``."""
    return step_below(linear_ladder(low, high, 2**bits - 1))
