"""Constant families made of average attention (Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..edits.offset import TAIL, offset_curve
from ..errors import ShapeError
from ..grid import gather_offsets
from ..select import Site
from ..stats.mean import Mean
from .base import FAMILIES, Family


def average(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The average attention of each cell; zero where no text had such a cell."""
    assert mean is not None
    matrix = mean.matrix(site)
    if min(matrix.shape[1:]) < length:
        raise ShapeError(
            f"The averages of site {site.name!r} cover {matrix.shape[1]} x {matrix.shape[2]} positions, not {length}; "
            "measure with a layout of that length, choose a smaller length, or use the family 'offset'."
        )
    return matrix[:, :length, :length]


def offset(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The average attention of each relative position, for any length."""
    assert mean is not None
    slots = torch.arange(length)[None]
    return gather_offsets(offset_curve(mean, site.name), slots, slots, TAIL)[0]


FAMILIES.register("average")(Family(average, measured=True))
FAMILIES.register("offset")(Family(offset, measured=True))
# Starts from the average; the matrices are then trained with the probe, through Constant(..., train_constants=True).
FAMILIES.register("learned")(Family(average, measured=True, trained=True))
