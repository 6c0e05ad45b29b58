"""From points at half steps (see :mod:`attrim.codebooks.ladder`) to codebooks: three ways to cut them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..codebook import Codebook


def codebook(edges: Tensor, values: Tensor) -> Codebook:
    """Edges ``[..., E]``, and values ``[..., E]`` above each of them; below the first it is zero."""
    return Codebook(edges, torch.cat([torch.zeros_like(values[..., :1]), values], -1))


def nearest_step(points: Tensor) -> Codebook:
    """Steps stand for what is nearest to them; the first step is zero."""
    return codebook(points[1::2], points[2::2])


def middle_of_bin(points: Tensor) -> Codebook:
    """Middles stand for what is between two steps; the first bin is zero."""
    return codebook(points[2:-1:2], points[3::2])


def step_below(points: Tensor) -> Codebook:
    """Steps stand for what is above them up to the next one; the first step is zero."""
    return codebook(points[2::2], points[2::2])
