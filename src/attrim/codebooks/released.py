"""The released formulas of all methods (https://arxiv.org/abs/2106.01335), in the dtype of the weights.

Those of fixed levels differ from the codebooks at exact ties, and methods 2, 4 and 6 lift a weight of 1 above 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import DataError
from .base import released
from .fixed import PRUNE, log_ladder
from .population import GRID, Groups, check_mass, cut_bins

OVERFLOW = 63
"""The released code computes 2^63 in 64-bit integers, which is negative, so the 63rd cut is one place too low."""


@released("linear-slinear")
def linear_slinear(weights: Tensor, bits: int) -> Tensor:
    """Round to the nearest step, halves up."""
    step = 1 / (2**bits - 1)
    return _half_up(weights / step) * step


@released("linear-slinear-midval")
def linear_slinear_midval(weights: Tensor, bits: int) -> Tensor:
    """Add half a step to the step below; 1 has no bin and goes above 1."""
    return linear_slinear_clamped_midval(weights, bits, 0.0)


@released("linear-slinear-clamped")
def linear_slinear_clamped(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Round what is above the first half step, which is excluded here."""
    step = (1 - prune) / (2**bits - 1)
    return _keep(weights > prune + step / 2, _half_up((weights - prune) / step) * step + prune)


@released("linear-slinear-clamped-midval")
def linear_slinear_clamped_midval(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Add half a step to the step below; a weight on the first edge may fall half a step under it."""
    step = (1 - prune) / 2**bits
    return _keep(weights >= prune + step, torch.floor((weights - prune) / step) * step + step / 2 + prune)


@released("linear-slog")
def linear_slog(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """Round the negative logarithm to the nearest step: here a tie goes to the lower level."""
    step = -math.log2(prune) / (2**bits - 1)
    exponent = torch.log2(weights)
    return _keep(exponent >= -(2**bits - 2) * step, torch.exp2(-_half_up(-exponent / step) * step))


@released("linear-slog-midval")
def linear_slog_midval(weights: Tensor, bits: int, low: float = 1e-10) -> Tensor:
    """Add half a step to the logarithm's step below; 1 has no bin and goes far above 1."""
    step = -math.log2(low) / 2**bits
    place = torch.floor((torch.log2(weights) - math.log2(low)) / step)
    return _keep(place >= 1, torch.exp2((place + 0.5) * step) * low)


@released("linear-slog-clamped-midval")
def linear_slog_clamped_midval(weights: Tensor, bits: int, prune: float = PRUNE) -> Tensor:
    """The same from ``prune`` on; what would go above 1 gets the value of the top bin."""
    step = -math.log2(prune) / (2**bits - 1)
    place = torch.floor(torch.log2(weights / prune) / step)
    value = torch.exp2((place + 0.5) * step) * prune
    top = prune * 2 ** ((2**bits - 1.5) * step)
    return _keep(weights >= prune, torch.where(value > 1, top, value))


@released("quant-8-linear")
def quant_8_linear(weights: Tensor, bits: int, low: float = 0.0019, high: float = 0.998) -> Tensor:
    """The step below."""
    step = (high - low) / (2**bits - 1)
    value = torch.floor((weights - low) / step) * step + low
    return _keep(weights >= low + step, torch.where(weights > high, high, value))


@released("quant-8-log")
def quant_8_log(weights: Tensor, bits: int, low: float = 0.0019, high: float = 0.998) -> Tensor:
    """The logarithm's step below."""
    step = math.log2(high / low) / (2**bits - 1)
    place = torch.floor(torch.log2(weights / low) / step)
    return _keep(place >= 1, torch.where(weights > high, high, torch.exp2(place * step) * low))


@released("power-of-two")
def power_of_two(weights: Tensor, bits: int) -> Tensor:
    """Round the logarithm, halves up."""
    exponent = _half_up(torch.log2(weights))
    return _keep(exponent > -(2**bits - 1), torch.exp2(exponent))


def _half_up(numbers: Tensor) -> Tensor:
    return torch.floor(numbers + 0.5)


def _keep(keep: Tensor, values: Tensor) -> Tensor:
    return torch.where(keep, values, 0.0)


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
    """The same of all weights, zeros included: these are lifted to the first mean unless half of the weights are zero.

    The released loop takes zeros out after the first bin, which is empty where its upper edge is zero too.
    """
    ranked = weights.double().flatten().sort().values
    quantised = _halving(weights, ranked, 0.0, 2**bits)
    return quantised if float(ranked[len(ranked) // 2]) > 0 else _keep(weights > 0, quantised)


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
