"""Zero the small numbers of hidden states (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..errors import ParameterError
from .base import register
from .hidden import HiddenEdit


@register("hidden-threshold")
@dataclass(frozen=True, eq=False)
class HiddenThreshold(HiddenEdit):
    """Keep the numbers of a hidden state whose magnitude is strictly above a bar and zero the rest.

    Parameters
    ----------
    bar : the bar; 0 changes nothing.
    """

    bar: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.bar) and self.bar >= 0):
            raise ParameterError(f"bar must be a number that is not negative, not {self.bar}.")

    def change(self, hidden: Tensor) -> Tensor:
        """See :meth:`HiddenEdit.change`."""
        return hidden_threshold(hidden, self.bar)


def hidden_threshold(hidden: Tensor, bar: float) -> Tensor:
    """Hidden states of any shape with zeros where their magnitude is not strictly above ``bar``."""
    return hidden.masked_fill(hidden.abs() <= bar, 0.0)
