"""Evenly spaced points between two ends, rounded once: the edges and values of all fixed codebooks lie on them."""

from __future__ import annotations

from decimal import Decimal, localcontext

import torch
from torch import Tensor

from ..errors import ParameterError

DIGITS = 50
"""Working precision: a tie such as 0.01 in a grid from 0.001 to 1 lands on the very float64 that a user writes."""


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
