"""Codebooks whose levels do not depend on the weights: evenly spaced, logarithmic, clamped, powers of two.

All edges and values lie on evenly spaced points between two ends, which are computed exactly and rounded once.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import torch
from torch import Tensor

from ..errors import ParameterError
from .base import fixed
from .codebook import Codebook

DIGITS = 50
"""Working precision: a tie such as 0.01 in a grid from 0.001 to 1 lands on the very float64 that a user writes."""
PRUNE = 1e-3
LOWEST_EXPONENT = -126
"""Of the least float32 with full precision; 8 bits and more would go on below it."""


def linear_ladder(low: float, high: float, steps: int) -> Tensor:
    """Float64 ``[2 * steps + 1]``: ``low`` to ``high`` in half steps, so even places are steps and odd ones middles."""
    _check(low, high)
    with localcontext() as context:
        context.prec = DIGITS
        first, half = _exact(low), (_exact(high) - _exact(low)) / (2 * steps)
        return _tensor([first + half * place for place in range(2 * steps + 1)])


def log_ladder(low: float, high: float, steps: int) -> Tensor:
    """Float64 ``[2 * steps + 1]``: the same with even steps of the logarithm; the middles are geometric ones."""
    _check(low, high)
    if low <= 0:
        raise ParameterError(f"A logarithmic grid cannot begin at {low}; give a number above 0 (prune=... or low=...).")
    with localcontext() as context:
        context.prec = DIGITS
        ratio = (_exact(high) / _exact(low)) ** (Decimal(1) / (2 * steps))
        points = [_exact(low)]
        for _ in range(2 * steps):
            points.append(points[-1] * ratio)
        return _tensor(points)


def _check(low: float, high: float) -> None:
    if not 0 <= low < high <= 1:
        raise ParameterError(f"The range of a codebook must lie within 0 and 1, not from {low} to {high}.")


def _exact(number: float) -> Decimal:
    """The decimal number that is written as this float: 0.001 is one thousandth."""
    return Decimal(repr(float(number)))


def _tensor(points: list[Decimal]) -> Tensor:
    return torch.tensor([float(point) for point in points], dtype=torch.float64)


def codebook(edges: Tensor, values: Tensor) -> Codebook:
    """Edges ``[..., E]``, and values ``[..., E]`` above each of them; below the first it is zero."""
    return Codebook(edges, torch.cat([torch.zeros_like(values[..., :1]), values], -1))


def nearest_step(points: Tensor) -> Codebook:
    """Steps stand for what is nearest to them; the first step is zero."""
    return codebook(points[1::2], points[2::2])


def middle_of_bin(points: Tensor) -> Codebook:
    """Middles stand for what is between two steps; the first bin is zero."""
    return codebook(points[2:-1:2], points[3::2])


def step_below(points: Tensor) -> Codebook:
    """Steps stand for what is above them up to the next one; the first step is zero."""
    return codebook(points[2::2], points[2::2])


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
