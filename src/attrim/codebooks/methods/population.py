"""Bins by how many weights they hold (methods 8-10 of Ji et al. 2021, https://arxiv.org/abs/2106.01335).

In the paper's names "uniform" is an even share of the weights, "slog" one that halves from bin to bin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import grouped
from ..groups import Groups
from .linear import PRUNE

MOST_HALVES = 63
"""No group has 2^63 weights, so more cuts at halves would only find empty bins."""


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
