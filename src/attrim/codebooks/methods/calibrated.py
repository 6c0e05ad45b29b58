"""Even levels over a range that is calibrated on a data set (Bhandare et al. 2019, https://arxiv.org/abs/1906.00532)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

from ...errors import UnknownName
from ..base import fitted
from ..calibrate import entropy_search, grid_search
from ..codebook import Codebook
from .linear import quant_8_linear
from .logarithmic import quant_8_log

Search = Literal["grid", "entropy"]


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
