"""The released formulas of fixed levels (https://arxiv.org/abs/2106.01335), in the dtype of the weights.

They differ from the codebooks at exact ties, and methods 2, 4 and 6 lift a weight of 1 above 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..base import released
from ..methods.linear import PRUNE


@released("linear-slinear")
def linear_slinear(weights: Tensor, bits: int) -> Tensor:
    """Round to the nearest step, halves up."""
    step = 1 / (2**bits - 1)
    return _half_up(weights / step) * step


@released("linear-slinear-midval")
def linear_slinear_midval(weights: Tensor, bits: int) -> Tensor:
    """Add half a step to the step below; 1 has no bin and goes above 1."""
    return linear_slinear_clamped_midval(weights, bits, 0.0)


@released("linear-slinear-clamped")
def linear_slinear_clamped(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Round what is above the first half step, which is excluded here."""
    step = (1 - prune) / (2**bits - 1)
    return _keep(weights > prune + step / 2, _half_up((weights - prune) / step) * step + prune)


@released("linear-slinear-clamped-midval")
def linear_slinear_clamped_midval(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Add half a step to the step below; a weight on the first edge may fall half a step under it."""
    step = (1 - prune) / 2**bits
    return _keep(weights >= prune + step, torch.floor((weights - prune) / step) * step + step / 2 + prune)


@released("linear-slog")
def linear_slog(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Round the negative logarithm to the nearest step: here a tie goes to the lower level."""
    step = -math.log2(prune) / (2**bits - 1)
    exponent = torch.log2(weights)
    return _keep(exponent >= -(2**bits - 2) * step, torch.exp2(-_half_up(-exponent / step) * step))


@released("linear-slog-midval")
def linear_slog_midval(weights: Tensor, bits: int, low: float = 1e-10) -> Tensor:
    """Add half a step to the logarithm's step below; 1 has no bin and goes far above 1."""
    step = -math.log2(low) / 2**bits
    place = torch.floor((torch.log2(weights) - math.log2(low)) / step)
    return _keep(place >= 1, torch.exp2((place + 0.5) * step) * low)


@released("linear-slog-clamped-midval")
def linear_slog_clamped_midval(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """The same from ``prune`` on; what would go above 1 gets the value of the top bin."""
    step = -math.log2(prune) / (2**bits - 1)
    place = torch.floor(torch.log2(weights / prune) / step)
    value = torch.exp2((place + 0.5) * step) * prune
    top = prune * 2 ** ((2**bits - 1.5) * step)
    return _keep(weights >= prune, torch.where(value > 1, top, value))


@released("quant-8-linear")
def quant_8_linear(weights: Tensor, bits: int, low: float = 0.0019, high: float = 0.998) -> Tensor:
    """The step below."""
    step = (high - low) / (2**bits - 1)
    value = torch.floor((weights - low) / step) * step + low
    return _keep(weights >= low + step, torch.where(weights > high, high, value))


@released("quant-8-log")
def quant_8_log(weights: Tensor, bits: int, low: float = 0.0019, high: float = 0.998) -> Tensor:
    """The logarithm's step below."""
    step = math.log2(high / low) / (2**bits - 1)
    place = torch.floor(torch.log2(weights / low) / step)
    return _keep(place >= 1, torch.where(weights > high, high, torch.exp2(place * step) * low))


@released("power-of-two")
def power_of_two(weights: Tensor, bits: int) -> Tensor:
    """Round the logarithm, halves up."""
    exponent = _half_up(torch.log2(weights))
    return _keep(exponent > -(2**bits - 1), torch.exp2(exponent))


def _half_up(numbers: Tensor) -> Tensor:
    return torch.floor(numbers + 0.5)


def _keep(keep: Tensor, values: Tensor) -> Tensor:
    return torch.where(keep, values, 0.0)
