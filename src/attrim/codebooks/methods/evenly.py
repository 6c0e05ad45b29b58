"""One value for all weights of a row that are kept (method 11 of Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ParameterError
from ..base import grouped
from ..groups import Groups
from .linear import PRUNE


@grouped("binarization", "row")
def binarization(groups: Groups, prune: float = PRUNE) -> tuple[Tensor, Tensor]:
    """One over their number for the weights of a row from ``prune`` on, zero for the rest."""
    edges = torch.full((len(groups.counts), 1), prune, dtype=torch.float64, device=groups.counts.device)
    return edges, _one_level(1.0, groups.counts - groups.below(edges)[:, 0])


@grouped("bin-majority", "row")
def bin_majority(groups: Groups, mass: float = 0.5) -> tuple[Tensor, Tensor]:
    """``mass`` over their number for the largest weights that exceed it together, zero for the rest of the row.

    A row that never exceeds it keeps the weights that equal its largest one.
    """
    check_mass(mass)
    rows = groups.ranked.double().nan_to_num(posinf=0.0).flip(-1)
    exceeds = rows.cumsum(-1) > mass
    found = rows.gather(1, exceeds.long().argmax(-1, keepdim=True))
    cut = torch.where(exceeds.any(-1, keepdim=True), found, groups.largest()[:, None])
    # A row of zeros has no cut: its edge is out of reach, so that its zeros stay zero.
    cut = cut.masked_fill(cut <= 0, float("inf"))
    return cut, _one_level(mass, (rows >= cut).sum(-1))


def check_mass(mass: float) -> None:
    """Refuse a mass that no row has."""
    if not 0 < mass <= 1:
        raise ParameterError(f"mass must lie above 0 and not above 1, not {mass}.")


def _one_level(share: float, kept: Tensor) -> Tensor:
    """Values ``[G, 2]``: zero, and ``share`` over the number of kept weights ``[G]``."""
    level = share / kept.clamp_min(1).double()
    return torch.stack([torch.zeros_like(level), level], -1)
