"""Codebooks of groups of weights: a row, a head or a layer of one example shares one, made from its own weights.

No group has weights of two examples, and padding is in none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ParameterError
from .base import Method, grouped, named
from .codebook import Codebook, Scope
from .fixed import PRUNE, log_ladder
from .rounding import round_up

AXES: dict[Scope, int] = {"layer": 1, "head": 2, "row": 3}
"""How many leading axes of weights ``[B, H, Q, K]`` number the groups."""
MOST_HALVES = 63
"""No group has 2^63 weights, so more cuts at halves would only find empty bins."""
GRID = 100
"""Bins of the grid from ``prune`` to 1; an edge of a codebook is one of its edges."""


@dataclass(frozen=True)
class Groups:
    """The weights of every group from the smallest to the largest.

    Attributes
    ----------
    ranked : ``[G, N]``, the weights that count in growing order, then infinity.
    counts : int64 ``[G]``, how many count.
    """

    ranked: Tensor
    counts: Tensor

    @classmethod
    def of(cls, weights: Tensor, valid: Tensor, scope: Scope) -> Groups:
        """The groups of weights ``[B, H, Q, K]``; only the cells of the bool tensor ``valid`` (same axes) count."""
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
        valid = valid.expand_as(wide)
        inner = AXES[scope] - 1  # the axis that becomes that of the groups
        filled = wide.masked_fill(~valid, float("inf")).flatten(0, inner).flatten(1)
        return cls(filled.sort(-1).values, valid.flatten(0, inner).flatten(1).sum(-1))

    def below(self, edges: Tensor) -> Tensor:
        """Int64 ``[G, E]``: how many weights are below each edge (float64 ``[G, E]`` or ``[E]``)."""
        exact = round_up(edges.to(self.ranked.device), self.ranked.dtype)
        found = torch.searchsorted(self.ranked, exact.expand(len(self.ranked), -1).contiguous())
        return torch.minimum(found, self.counts[:, None])

    def at(self, places: Tensor) -> Tensor:
        """Float64 ``[G, P]``: the weights at places ``[G, P]`` of the order; infinity from the end on."""
        found = self.ranked.gather(1, places.clamp(0, self.ranked.shape[1] - 1)).double()
        return found.masked_fill(places >= self.counts[:, None], float("inf"))

    def largest(self) -> Tensor:
        """Float64 ``[G]``: the largest weight, 0 where there is none."""
        return self.at(self.counts[:, None] - 1)[:, 0].masked_fill(self.counts == 0, 0.0)

    def means(self, edges: Tensor) -> Tensor:
        """Float64 ``[G, E]``: the mean of the weights from each edge to the next; the edge where there are none."""
        places = torch.cat([self.below(edges), self.counts[:, None]], -1)
        sums = torch.nn.functional.pad(self.ranked.nan_to_num(posinf=0.0).cumsum(-1, dtype=torch.float64), (1, 0))
        total, count = sums.gather(1, places).diff(dim=-1), places.diff(dim=-1)
        # Rounding must not carry a mean past the weights that it stands for.
        mean = torch.maximum(total / count.clamp_min(1), self.at(places[:, :-1]))
        mean = torch.minimum(mean, self.at(places[:, 1:] - 1))
        return torch.where(count > 0, mean, edges.nan_to_num(posinf=0.0))


def fit_groups(method: Method, weights: Tensor, valid: Tensor, scope: Scope, options: dict[str, Any]) -> Codebook:
    """The codebooks of a grouped method for weights ``[B, H, Q, K]``, as one with leading axes."""
    edges, values = method.build(Groups.of(weights, valid, scope), **options)
    axes = AXES[scope]
    shape = (*weights.shape[:axes], *[1] * (3 - axes), -1)
    book = Codebook(edges.view(shape), values.view(shape))
    return named(book, method.registered_name, options.get("bits"), scope)


@grouped("uniform-slinear-clamped-mean", "layer", "head", "row")
def uniform_slinear_clamped_mean(groups: Groups, bits: int, prune: float = PRUNE) -> tuple[Tensor, Tensor]:
    """Up to 2^bits - 1 bins with equally many of the weights from ``prune`` on; their mean stands for each bin."""
    start = _column(groups, prune)
    first = groups.below(start)
    left = groups.counts[:, None] - first
    bins = left.clamp(1, 2**bits - 1)  # a group of fewer weights than bins gets a bin for each weight
    number = torch.arange(1, int(bins.max()), device=first.device)
    places = first + number * left // bins
    return _means_from(groups, start, torch.where(number < bins, places, groups.counts[:, None]))


@grouped("uniform-slog-clamped-mean", "layer", "head", "row")
def uniform_slog_clamped_mean(groups: Groups, bits: int, prune: float = PRUNE) -> tuple[Tensor, Tensor]:
    """The lower half of the weights from ``prune`` on, the next quarter, and so on; their mean stands for each bin."""
    start = _column(groups, prune)
    return _means_from(groups, start, _halves(groups, start, bits))


@grouped("uniform-slog-mean", "layer", "head", "row")
def uniform_slog_mean(groups: Groups, bits: int) -> tuple[Tensor, Tensor]:
    """The lower half of the weights above zero, the next quarter, and so on; zero stays zero."""
    start = _column(groups, torch.finfo(torch.float64).smallest_normal)
    return _means_from(groups, start, _halves(groups, start, bits))


def _column(groups: Groups, number: float) -> Tensor:
    """Float64 ``[G, 1]``: the same number for every group."""
    return torch.full((len(groups.counts), 1), number, dtype=torch.float64, device=groups.counts.device)


def _halves(groups: Groups, start: Tensor, bits: int) -> Tensor:
    """Int64 ``[G, P]``: where the half, the quarter, ... of the weights from ``start`` ``[G, 1]`` on ends."""
    parts = torch.arange(1, min(2**bits - 1, MOST_HALVES), device=start.device)
    first = groups.below(start)
    return first + ((groups.counts[:, None] - first) >> parts).cumsum(-1)


def _means_from(groups: Groups, start: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Edges at ``start`` and at the weights at ``places``, and the means of the bins; below the first it is zero."""
    edges = torch.cat([start, groups.at(places)], -1)
    return edges, torch.cat([torch.zeros_like(start), groups.means(edges)], -1)


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
