"""The released functions whose levels depend on the weights (https://arxiv.org/abs/2106.01335).

Except for ``bin_majority`` and ``ranking_token`` they take all weights of a call together: every example of the batch,
padding included. They fail where the released code fails.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import DataError
from ..base import released
from ..groups import Groups
from ..ladder import log_ladder
from ..methods.evenly import check_mass
from ..methods.linear import PRUNE
from ..methods.ranking import GRID, cut_bins

OVERFLOW = 63
"""The released code computes 2^63 in 64-bit integers, which is negative, so the 63rd cut is one place too low."""


@released("uniform-slinear-clamped-mean")
def uniform_slinear_clamped_mean(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Middles of bins of equal population, called means; the whole top bin gets the last middle."""
    ranked = _ranked(weights, prune)
    if bits == 1 or len(ranked) < 2:
        raise DataError(
            "The released code of 'uniform-slinear-clamped-mean' fails with 1 bit and with fewer than two weights "
            f"above {prune}; leave out as_coded=True."
        )
    step = max(len(ranked) // (2**bits - 1), 1)
    edges = torch.cat([ranked.new_tensor([prune]), ranked[step::step]])
    middles = (edges[:-1] + edges[1:]) / 2
    return _assign(weights, edges, torch.cat([middles, middles[-1:]]))


@released("uniform-slog-clamped-mean")
def uniform_slog_clamped_mean(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Means of bins that halve; the largest weights get the mean of the bin before theirs."""
    return _halving(weights, _ranked(weights, prune), prune, 2**bits - 1)


@released("uniform-slog-mean")
def uniform_slog_mean(weights: Tensor, bits: int) -> Tensor:
    """The same of all weights, zeros included, which may so be lifted above zero."""
    return _halving(weights, weights.double().flatten().sort().values, 0.0, 2**bits)


@released("binarization")
def binarization(weights: Tensor, prune: float = PRUNE) -> Tensor:
    """One over the number of all weights from ``prune`` on, not over that of the row."""
    keep = weights >= prune
    if not bool(keep.any()):
        raise DataError(
            f"The released code of 'binarization' fails without a weight of at least {prune}; leave out as_coded=True."
        )
    return torch.where(keep, 1 / keep.sum().double(), 0.0)


@released("bin-majority")
def bin_majority(weights: Tensor, mass: float = 0.5) -> Tensor:
    """``mass`` over the smallest kept weight of the row, not over their number."""
    check_mass(mass)
    rows = weights.double().sort(-1, descending=True).values
    exceeds = rows.cumsum(-1) > mass
    cut = rows.gather(-1, exceeds.long().argmax(-1, keepdim=True))  # the first, hence the largest, if none exceeds
    return torch.where((weights >= cut) & (cut > 0), mass / cut.clamp_min(torch.finfo(cut.dtype).tiny), 0.0)


@released("ranking-head")
def ranking_head(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Middles between the cuts of all weights; what is above the last cut becomes 1."""
    flat = weights.reshape(1, -1)
    grid = log_ladder(prune, 1.0, GRID // 2).to(weights.device)
    cuts = grid[:-1][cut_bins(_groups(flat), grid, 2**bits - 1)[0]]
    edges = torch.cat([grid[:1], cuts])
    values = torch.cat([(edges[:-1] + edges[1:]) / 2, grid.new_ones(1)])
    codes = torch.bucketize(weights.double(), edges, right=True)
    return torch.cat([grid.new_zeros(1), values])[codes]


@released("ranking-token")
def ranking_token(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """For each row the edge one bin below the next cut; what is above the last cut becomes 1."""
    rows = weights.double().flatten(0, -2)
    grid = log_ladder(prune, 1.0, GRID // 2).to(weights.device)
    is_cut = cut_bins(_groups(rows), grid, 2**bits - 1)
    places = torch.where(is_cut, torch.arange(GRID, device=weights.device), GRID)
    following = places.flip(-1).cummin(-1).values.flip(-1)  # the place of the first cut from a bin on
    bin_of = (torch.bucketize(rows, grid, right=True) - 1).clamp(0, GRID - 1)
    # A weight in the bin of a cut is above it, so its next cut is looked for in the bins behind.
    cut = torch.nn.functional.pad(following, (0, 1), value=GRID).gather(-1, bin_of + 1)
    value = torch.where(cut < GRID, grid[(cut - 1).clamp_min(0)], 1.0)
    return torch.where(rows >= prune, value, 0.0).view(weights.shape)


def _groups(rows: Tensor) -> Groups:
    return Groups(rows.sort(-1).values, torch.full((len(rows),), rows.shape[1], device=rows.device))


def _ranked(weights: Tensor, prune: float) -> Tensor:
    flat = weights.double().flatten()
    return flat[flat > prune].sort().values


def _halving(weights: Tensor, ranked: Tensor, first: float, cuts: int) -> Tensor:
    if len(ranked) < 2:
        raise DataError(
            "The released code of the methods by population fails with fewer than two weights that are not pruned; "
            "leave out as_coded=True."
        )
    places: list[int] = []
    values: list[float] = []
    start = 0
    for cut in range(1, cuts + 1):
        end = start + (len(ranked) >> cut) - (cut == OVERFLOW)
        values.append(float(ranked[start:end].mean()) if end > start else values[-1])
        places.append(end)
        start = end
        if cut > OVERFLOW:
            break  # nothing changes from here on
    edges = torch.cat([ranked.new_tensor([first]), ranked[torch.tensor(places)]])
    return _assign(weights, edges, torch.tensor([*values, values[-1]], dtype=torch.float64))


def _assign(weights: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Add ``values[k]`` to the weights from ``edges[k]`` to the next edge, after the last of which comes 1 itself.

    So a weight of 1 gets nothing, and where edges go down some weights get two values.
    """
    exact = weights.double()
    result = torch.zeros_like(exact)
    tops = [*edges.tolist()[1:], 1.0]
    for low, high, value in zip(edges.tolist(), tops, values.tolist(), strict=True):
        if low < high:
            result[(exact >= low) & (exact < high)] += value
    return result
