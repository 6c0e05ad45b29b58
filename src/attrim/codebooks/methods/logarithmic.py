"""Levels at even steps of the logarithm (methods 5-7 and 13 of Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import torch

from ..base import fixed
from ..codebook import Codebook
from ..ladder import log_ladder
from .cuts import codebook, middle_of_bin, step_below
from .linear import PRUNE

LOWEST_EXPONENT = -126
"""Of the least float32 with full precision; 8 bits and more would go on below it."""


@fixed("linear-slog")
def linear_slog(bits: int, prune: float = PRUNE) -> Codebook:
    """The nearest, on the logarithm, of 2^bits - 1 levels up to 1; what is below the lowest of them is zero.

    Notes
    -----
    The levels are steps from ``prune`` to 1 without ``prune`` itself, so that more bits prune less.
    """
    points = log_ladder(prune, 1.0, 2**bits - 1)
    return codebook(torch.cat([points[2:3], points[3::2]]), points[2::2])


@fixed("linear-slog-midval")
def linear_slog_midval(bits: int, low: float = 1e-10) -> Codebook:
    """The geometric middle of one of 2^bits bins from ``low`` to 1; the lowest bin is zero."""
    return middle_of_bin(log_ladder(low, 1.0, 2**bits))


@fixed("linear-slog-clamped-midval")
def linear_slog_clamped_midval(bits: int, prune: float = PRUNE) -> Codebook:
    """The geometric middle of one of 2^bits - 1 bins from ``prune`` to 1; what is below is zero. The paper's best."""
    points = log_ladder(prune, 1.0, 2**bits - 1)
    return codebook(points[0:-1:2], points[1::2])


@fixed("quant-8-log")
def quant_8_log(bits: int, low: float = 0.0019, high: float = 0.998) -> Codebook:
    """The next level below on the logarithm, of 2^bits from ``low`` (which is zero) to ``high``."""
    return step_below(log_ladder(low, high, 2**bits - 1))


@fixed("power-of-two")
def power_of_two(bits: int) -> Codebook:
    """The nearest power of two on the logarithm; the 2^bits - 1 largest are levels, what is below is zero."""
    lowest = max(2 - 2**bits, LOWEST_EXPONENT)
    exponents = torch.arange(lowest, 1, dtype=torch.float64)
    return codebook(torch.exp2(exponents - 0.5), torch.exp2(exponents))
