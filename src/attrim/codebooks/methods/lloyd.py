"""The levels of least mean square error for a distribution (Lloyd 1982, https://doi.org/10.1109/TIT.1982.1056489)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import fitted
from ..codebook import Codebook
from .cuts import codebook

ROUNDS = 500
CLOSE = 1e-12


@fitted("lloyd-max", "head", "layer")
def lloyd_max(values: Tensor, counts: Tensor, bits: int) -> Codebook:
    """Levels that are the means of their bins, with edges halfway between them; the lowest level is zero.

    Parameters
    ----------
    values, counts : float64 ``[N]``, growing, and how often each occurs.

    Notes
    -----
    The start spreads levels by the cube root of the density, which is the best there is for many levels; the usual
    two steps then repeat until the levels stand still. Zero takes part but does not move.
    """
    used = (counts > 0) & (values > 0)
    values, counts = values[used], counts[used]
    if len(values) == 0:
        return codebook(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    number = min(2**bits - 1, len(values))
    sums = torch.nn.functional.pad(torch.stack([counts, counts * values]).cumsum(-1), (1, 0))
    levels = _start(values, counts, number)
    for _ in range(ROUNDS):
        below = torch.cat([levels.new_zeros(1), levels[:-1]])
        places = torch.searchsorted(values, (below + levels) / 2)
        places = torch.cat([places, places.new_tensor([len(values)])])
        count, total = sums[:, places].diff(dim=-1)
        moved = torch.where(count > 0, total / count.clamp_min(1e-300), levels)
        moved = moved.cummax(-1).values  # an empty bin must not be overtaken by rounding
        still = bool((moved - levels).abs().max() <= CLOSE)
        levels = moved
        if still:
            break
    below = torch.cat([levels.new_zeros(1), levels[:-1]])
    return codebook((below + levels) / 2, levels)


def _start(values: Tensor, counts: Tensor, number: int) -> Tensor:
    """Float64 ``[number]``: levels at even quantiles of the cube root of the density."""
    widths = torch.diff(values, prepend=values.new_zeros(1)).clamp_min(1e-300)
    density = (counts / widths) ** (1 / 3) * widths
    share = density.cumsum(-1) / density.sum()
    wanted = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    return values[torch.searchsorted(share, wanted).clamp_max(len(values) - 1)]
