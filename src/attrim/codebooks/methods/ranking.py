"""Bins by rank on a logarithmic grid (a removed method of the code of Ji et al., https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import grouped
from ..groups import Groups
from ..ladder import log_ladder
from .linear import PRUNE

GRID = 100
"""Bins of the grid from ``prune`` to 1; an edge of a codebook is one of its edges."""


@grouped("ranking-token", "row")
@grouped("ranking-head", "head", "layer")
def ranking(groups: Groups, bits: int, prune: float = PRUNE) -> tuple[Tensor, Tensor]:
    """Up to 2^bits - 1 bins with about as many of the weights from ``prune`` on; their middle stands for each bin.

    The top bin reaches up to the largest weight of the group.
    """
    grid = log_ladder(prune, 1.0, GRID // 2).to(groups.ranked.device)
    start = grid[:1].expand(len(groups.counts), 1)
    is_cut = torch.nn.functional.pad(cut_bins(groups, grid, 2**bits - 1), (0, 1))
    # Where the grid has no cut stands the next one again: no weight lies between equal edges.
    cuts = torch.where(is_cut, grid, float("inf")).flip(-1).cummin(-1).values.flip(-1)[:, :-1]
    edges = torch.cat([start, cuts], -1)
    above = torch.cat([cuts, torch.full_like(start, float("inf"))], -1)
    above = torch.minimum(above, groups.largest()[:, None]).nan_to_num()
    middles = ((edges + above) / 2).nan_to_num(posinf=0.0)
    return edges, torch.cat([torch.zeros_like(start), middles], -1)


def cut_bins(groups: Groups, grid: Tensor, bins: int) -> Tensor:
    """Bool ``[G, GRID]``: the bins of the grid in which the share of weights first exceeds 1/bins, 2/bins, ..."""
    below = groups.below(grid)
    first = below[:, :1]
    below[:, -1] = groups.counts  # the last bin holds weights of exactly 1 too
    total = groups.counts[:, None] - first
    reached = (below - first) * bins  # whole numbers: a share equal to i/bins does not exceed it
    passed = ((reached - 1) // total.clamp_min(1)).clamp(0, bins - 1)
    return passed.diff(dim=-1) > 0
