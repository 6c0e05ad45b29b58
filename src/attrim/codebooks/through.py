"""The gradient of values that stand for weights: there is none, so it is passed straight through.

Bengio et al. 2013, https://arxiv.org/abs/1308.3432.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def straight_through(weights: Tensor, values: Tensor) -> Tensor:
    """The ``values``, with a gradient as if those that are not zero were the ``weights`` themselves."""
    if not (weights.requires_grad and torch.is_grad_enabled()):
        return values
    return _StraightThrough.apply(weights, values)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(values != 0)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return gradients[0].masked_fill(~kept, 0.0), None
