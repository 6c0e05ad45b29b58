"""The levels of least mean square error for a distribution (Lloyd 1982, https://doi.org/10.1109/TIT.1982.1056489).

The two steps of Lloyd and Max find a minimum near the start. For few levels the start is already the best of all, from
dynamic programming (Gronlund et al. 2017, https://arxiv.org/abs/1701.07204).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import fitted
from ..codebook import Codebook
from .cuts import codebook

ROUNDS = 500
CLOSE = 1e-12
EXACT_LEVELS = 31
EXACT_VALUES = 640
"""So many of the largest values are told apart by the exact start: 20 octaves of a histogram."""


@fitted("lloyd-max", "head", "layer")
def lloyd_max(values: Tensor, counts: Tensor, bits: int) -> Codebook:
    """Levels that are the means of their bins, with edges halfway between them; the lowest level is zero.

    Parameters
    ----------
    values, counts : float64 ``[N]``, growing, and how often each occurs.

    Notes
    -----
    Zero takes part but does not move.
    """
    used = (counts > 0) & (values > 0)
    values, counts = values[used], counts[used]
    if len(values) == 0:
        return codebook(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    number = min(2**bits - 1, len(values))
    sums = torch.nn.functional.pad(torch.stack([counts, counts * values]).cumsum(-1), (1, 0))
    levels = (_best_start if number <= EXACT_LEVELS else _smooth_start)(values, counts, number)
    for _ in range(ROUNDS):
        below = torch.cat([levels.new_zeros(1), levels[:-1]])
        places = torch.searchsorted(values, (below + levels) / 2)
        places = torch.cat([places, places.new_tensor([len(values)])])
        count, total = sums[:, places].diff(dim=-1)
        moved = torch.where(count > 0, total / count.clamp_min(1e-300), levels)
        moved = moved.cummax(-1).values  # rounding must not carry a level past the next one
        still = bool((moved - levels).abs().max() <= CLOSE)
        levels = moved
        if still:
            break
    below = torch.cat([levels.new_zeros(1), levels[:-1]])
    return codebook((below + levels) / 2, levels)


def _smooth_start(values: Tensor, counts: Tensor, number: int) -> Tensor:
    """Float64 ``[number]``: even quantiles of the cube root of the density, which is the limit for many levels."""
    widths = torch.diff(values, prepend=values.new_zeros(1)).clamp_min(1e-300)
    density = (counts / widths) ** (1 / 3) * widths
    share = density.cumsum(-1) / density.sum()
    wanted = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    return values[torch.searchsorted(share, wanted).clamp_max(len(values) - 1)]


def _best_start(values: Tensor, counts: Tensor, number: int) -> Tensor:
    """Float64 ``[number]``: the best levels beside zero, by dynamic programming over where their bins begin."""
    extra = max(len(values) - EXACT_VALUES, 0)  # the smallest values are taken together
    sums = torch.stack([counts, counts * values, counts * values**2]).cumsum(-1)
    sums = torch.nn.functional.pad(sums, (1, 0))[:, torch.tensor([0, *range(extra + 1, len(values) + 1)])]
    count, total, square = (row[None, :] - row[:, None] for row in sums)
    cost = (square - total**2 / count.clamp_min(1e-300)).clamp_min(0)
    # A bin must hold something: the cost of an empty one, or of one that ends before it begins, is out of reach.
    cost = cost.masked_fill(count <= 0, float("inf"))
    best, begins = sums[2], []
    for _ in range(number):
        best, begin = (best[:, None] + cost).min(0)
        begins.append(begin)
    end, levels = cost.shape[0] - 1, []
    for begin in reversed(begins):
        start = int(begin[end])
        levels.append(total[start, end] / count[start, end])
        end = start
    return torch.stack(levels[::-1])
