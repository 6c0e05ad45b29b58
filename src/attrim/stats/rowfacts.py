"""Facts about single query rows: sections 3 and 4 of Ji et al. 2021 (https://arxiv.org/abs/2106.01335) look at them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .fixed import ONE

DECILES = 10


@dataclass
class RowFacts:
    """Integers that add up over rows; only rows with at least one valid cell count.

    Attributes
    ----------
    row_counts : ``[H, bins]``, 2^36 shared equally among the values of each row.
    row_deciles : ``[H, 10]``, rows by the share of their values that are not above the bar.
    row_medians : ``[H, bins]``, rows by the first bin at which half of their values are reached.
    """

    row_counts: Tensor
    row_deciles: Tensor
    row_medians: Tensor

    @staticmethod
    def shapes(heads: int, bins: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {"row_counts": (heads, bins), "row_deciles": (heads, DECILES), "row_medians": (heads, bins)}

    def add_to(self, kept: dict[str, Tensor]) -> None:
        """Add every tensor to its namesake."""
        for item in fields(self):
            kept[item.name] += getattr(self, item.name).cpu()


def row_facts(weights: Tensor, valid: Tensor, edges: Tensor, floor: float, bar: float) -> RowFacts:
    """The facts about the rows of one example.

    Parameters
    ----------
    weights, valid : ``[H, Q, K]``.
    edges : float64 ``[bins + 1]`` for values to which ``floor`` was added.
    """
    bins = len(edges) - 1
    counts = row_counts(weights, valid, edges, floor)
    sizes = counts.sum(-1)
    real = sizes > 0
    medians = (2 * counts.cumsum(-1) < sizes[..., None]).sum(-1)
    small = ((weights <= bar) & valid).sum(-1)
    deciles = (DECILES * small // sizes.clamp(min=1)).clamp(max=DECILES - 1)
    return RowFacts(row_shares(counts), _occurrences(deciles, real, DECILES), _occurrences(medians, real, bins))


def row_shares(counts: Tensor) -> Tensor:
    """Int64 ``[H, bins]``: the sum of the rows' histograms ``[H, Q, bins]``, 2^36 shared among each row's values."""
    return (counts * (ONE // counts.sum(-1, keepdim=True).clamp(min=1))).sum(1)


def row_counts(weights: Tensor, valid: Tensor, edges: Tensor, floor: float) -> Tensor:
    """Int64 ``[H, Q, bins]``: the histogram of every row; parameters as in :func:`row_facts`."""
    bins = len(edges) - 1
    places = torch.searchsorted(edges, weights.double() + floor, right=True) - 1
    places = torch.where(valid, places.clamp(0, bins - 1), bins)  # one more bin takes the cells that do not count
    counts = torch.zeros(*weights.shape[:2], bins + 1, dtype=torch.int64, device=weights.device)
    return counts.scatter_add_(-1, places, torch.ones_like(places))[..., :bins]


def _occurrences(numbers: Tensor, real: Tensor, bins: int) -> Tensor:
    """Int64 ``[H, bins]``: how often each number occurs among the real rows ``[H, Q]``."""
    found = torch.zeros(numbers.shape[0], bins, dtype=torch.int64, device=numbers.device)
    return found.scatter_add_(1, numbers.clamp(max=bins - 1), real.to(torch.int64))
