"""Sparse attention that the model itself chooses: entmax in the place of softmax.

Attention Pruning (https://arxiv.org/abs/2012.02030) is compared and combined with 1.5-entmax (Peters et al. 2019,
https://arxiv.org/abs/1905.05702).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from .base import Edit, register
from .rows import precise


@register("entmax")
@dataclass(frozen=True)
class Entmax(Edit):
    """Turn scores into weights with alpha-entmax, which gives small scores the weight zero (arXiv 1905.05702).

    Gradients flow to the scores, so a model can be trained with it.

    Parameters
    ----------
    alpha : above 1: near 1 it is close to softmax, 2 is sparsemax. 1.5 and 2 are computed exactly by sorting, other
        values by bisection.
    """

    carried = True

    alpha: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha > 1):
            raise ParameterError(f"alpha must be a number above 1, not {self.alpha}; at 1 entmax is softmax.")

    def normalise(self, scores: Tensor, call: Call) -> Tensor:
        """Weights ``[B, H, Q, K]`` of the scores; zero where they are ``-inf``."""
        return entmax(scores, self.alpha)


def entmax(scores: Tensor, alpha: float = 1.5) -> Tensor:
    """The alpha-entmax of scores ``[..., K]`` over the last axis.

    A cell with ``-inf`` gets zero, and so does a row of nothing else, in the gradient too.
    """
    from entmax import entmax15, entmax_bisect, sparsemax  # here, because it takes part in a few runs only

    gone = torch.isneginf(scores)
    empty = gone.all(-1, keepdim=True)
    wide = scores.to(precise(scores.dtype)).masked_fill(empty, 0.0)
    # The functions cannot take -inf. What is 1 / (alpha - 1) below the largest score of its row has the weight zero.
    floor = wide.detach().amax(-1, keepdim=True) - 100 / min(alpha - 1, 1.0)
    wide = torch.where(gone & ~empty, floor, wide)
    if alpha == 1.5:
        weights = entmax15(wide, dim=-1)
    elif alpha == 2:
        weights = sparsemax(wide, dim=-1)
    else:
        weights = entmax_bisect(wide, alpha, dim=-1)
    return weights.masked_fill(gone, 0.0).to(scores.dtype)
