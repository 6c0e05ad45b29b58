"""From float64 edges and values to those of another dtype, without moving any number of that dtype to another bin."""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def round_up(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """The least number of ``dtype`` that is not below each of ``numbers`` (float64, not negative).

    A weight of that dtype reaches the number exactly when it reaches the rounded one.
    """
    near = numbers.to(dtype)
    return torch.where(near.double() < numbers, _step(near, 1), near)


def round_within(values: Tensor, edges: Tensor, dtype: torch.dtype) -> Tensor:
    """Values ``[..., E + 1]`` in another dtype; those that lie in their own bin of ``edges`` ``[..., E]`` stay in it.

    A value on its edge may round to below it, and quantising twice would then lose a level.
    """
    zero, infinity = torch.zeros_like(values[..., :1]), torch.full_like(values[..., :1], float("inf"))
    bottom, top = torch.cat([zero, edges], -1), torch.cat([edges, infinity], -1)
    inside = (values >= bottom) & (values <= top)
    near = values.to(dtype)
    kept = torch.minimum(torch.maximum(near, round_up(bottom, dtype)), _step(round_up(top, dtype), -1))
    return torch.where(inside, kept, near)


def _step(numbers: Tensor, steps: int) -> Tensor:
    """The neighbours of numbers that are not negative, ``steps`` away; 0 stays when there is nothing below it."""
    words = numbers.contiguous().view(_WORDS[numbers.dtype.itemsize])
    return (words + steps).clamp_min(0).view(numbers.dtype)
