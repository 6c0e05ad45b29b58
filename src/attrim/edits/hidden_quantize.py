"""Hidden states in few bits (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import ParameterError
from .base import register
from .hidden import HiddenEdit, Where

Method = Literal["fixed-point", "linear", "log"]
INTEGER_BITS = 5
LOWEST, HIGHEST = -15.0, 25.0  # the range of the linear method
SMALLEST, LARGEST = -5.0, 4.0  # the exponents of the log method


@register("hidden-quantize")
@dataclass(frozen=True, eq=False)
class HiddenQuantize(HiddenEdit):
    """Round every number of a hidden state to few levels; gradients pass straight through.

    Parameters
    ----------
    method : ``fixed-point`` (a sign, 5 integer bits, the rest fraction), ``linear`` (even steps on [-15, 25]) or
        ``log`` (a sign, even steps of the binary logarithm from 2^-5 to 2^4).
    bits : how many bits a number has, 2 to 16; more than 6 for ``fixed-point``.
    as_coded : as the paper's released code: fixed point saturates at 32 plus the fraction and log at 16 instead of at
        the largest number that has a code, and linear does not clip at all.
    """

    method: Method
    bits: int
    as_coded: bool = False
    where: Where = field(default="input", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in get_args(Method):
            raise ParameterError(f"method must be one of {', '.join(get_args(Method))}, not {self.method!r}.")
        least = INTEGER_BITS + 2 if self.method == "fixed-point" else 2
        if not isinstance(self.bits, int) or not least <= self.bits <= 16:
            raise ParameterError(f"{self.method} needs a whole number of bits from {least} to 16, not {self.bits}.")

    def change(self, hidden: Tensor) -> Tensor:
        """See :meth:`HiddenEdit.change`."""
        function = {"fixed-point": fixed_point, "linear": linear, "log": logarithmic}[self.method]
        levels = function(hidden.detach().double(), self.bits, self.as_coded).to(hidden.dtype)
        return hidden + (levels - hidden).detach() if hidden.requires_grad else levels


def _half_up(values: Tensor) -> Tensor:
    return torch.floor(values + 0.5)


def fixed_point(values: Tensor, bits: int, as_coded: bool = False) -> Tensor:
    """Signed fixed point with 5 integer bits, rounded half away from zero and saturated."""
    step = 2.0 ** -(bits - 1 - INTEGER_BITS)
    size = values.abs()
    if as_coded:
        whole = torch.floor(size).clamp(max=2.0**INTEGER_BITS)
        rounded = whole + _half_up((size - torch.floor(size)) / step) * step
    else:
        rounded = (_half_up(size / step) * step).clamp(max=2.0**INTEGER_BITS - step)
    return rounded * values.sign()


def linear(values: Tensor, bits: int, as_coded: bool = False) -> Tensor:
    """Even steps from -15 to 25, rounded half up."""
    step = (HIGHEST - LOWEST) / 2**bits
    codes = _half_up((values - LOWEST) / step)
    if not as_coded:
        codes = codes.clamp(0, 2**bits - 1)
    return codes * step + LOWEST


def logarithmic(values: Tensor, bits: int, as_coded: bool = False) -> Tensor:
    """A sign and even steps of the binary logarithm; too small is 0, too large the largest level."""
    step = (LARGEST - SMALLEST) / (2 ** (bits - 1) - 1)
    exponents = _half_up(torch.log2(values.abs()) / step) * step
    size = torch.exp2(exponents.clamp(max=LARGEST if as_coded else math.floor(LARGEST / step) * step))
    return torch.where(exponents <= SMALLEST, 0.0, size) * values.sign()
