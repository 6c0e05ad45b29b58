"""Arithmetic on rows of attention weights that several edits share."""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-12


def precise(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add and divide in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def normalise_rows(weights: Tensor) -> Tensor:
    """Divide every row by the sum of its absolute values; a row of zeros stays a row of zeros.

    Parameters
    ----------
    weights : ``[..., K]``.

    Notes
    -----
    The sum has the floor 1e-12, or the smallest normal number of the dtype where that is larger (float16), so that
    neither the result nor its gradient can leave the range of the dtype.
    """
    floor = max(FLOOR, torch.finfo(weights.dtype).tiny)
    wide = weights.to(precise(weights.dtype))
    mass = wide.abs().sum(-1, keepdim=True).clamp_min(floor)
    return (wide / mass).to(weights.dtype)


def allowed_keys(allowed: Tensor) -> Tensor:
    """Int64 ``[..., 1]``: how many keys each row of the bool tensor ``allowed`` ``[..., K]`` permits."""
    return allowed.sum(-1, keepdim=True)
