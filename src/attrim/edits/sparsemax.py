"""Sparsemax in the place of softmax (Martins and Astudillo 2016, https://arxiv.org/abs/1602.02068)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.call import Call
from .base import Edit, register
from .entmax import entmax


@register("sparsemax")
@dataclass(frozen=True)
class Sparsemax(Edit):
    """Turn scores into weights with sparsemax, the nearest point of the simplex (https://arxiv.org/abs/1602.02068)."""

    carried = True

    def normalise(self, scores: Tensor, call: Call) -> Tensor:
        """Weights ``[B, H, Q, K]`` of the scores; zero where they are ``-inf``."""
        return entmax(scores, 2.0)
