"""Attention spread evenly over the allowed keys: what is left when a head no longer looks at its input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.call import Call
from .base import Edit, register
from .rows import allowed_keys, precise


@register("uniform")
@dataclass(frozen=True)
class Uniform(Edit):
    """Replace attention by 1/n over the n allowed keys of each row; a row with no allowed key gives zeros."""

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """Weights ``[B, H, Q, K]`` to even ones."""
        return uniform(call.allowed, weights.dtype).expand_as(weights)


def uniform(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Even weights of the shape of the bool tensor ``allowed`` ``[..., K]``."""
    return (allowed.to(precise(dtype)) / allowed_keys(allowed).clamp_min(1)).to(dtype)
