"""How sure average attention is: how many texts stand behind a cell, and whether two halves of the data agree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from ..stats.mean import Mean


@dataclass(frozen=True)
class Counts:
    """How many examples stand behind the cells of a site's averages.

    Attributes
    ----------
    cells : cells of the stored size.
    unseen : those that no example had.
    lowest, median, highest : examples behind a cell that some example had.
    """

    cells: int
    unseen: int
    lowest: int
    median: float
    highest: int


def count_summary(mean: Mean) -> dict[str, Counts]:
    """For every site, how many examples its cells have (the smallest number, where masks differ between heads)."""
    summary = {}
    for site in mean.sites:
        counts = mean.counts(site).amin(0).flatten()
        seen = counts[counts > 0]
        if not len(seen):
            raise DataError(f"Nothing was measured at site {site.name!r}; measure texts first.")
        summary[site.name] = Counts(
            cells=len(counts),
            unseen=len(counts) - len(seen),
            lowest=int(seen.min()),
            median=float(seen.double().quantile(0.5)),
            highest=int(seen.max()),
        )
    return summary


def split_half(mean_a: Mean, mean_b: Mean) -> dict[str, Tensor]:
    """Correlate the averages of two halves of the data.

    Parameters
    ----------
    mean_a, mean_b : measured with the same model and layout on examples that do not overlap.

    Returns
    -------
    site name to float64 ``[H]``: the Pearson correlation over the cells that both halves have; NaN for a head whose
    averages do not vary. With r between halves, the average over both correlates about ``sqrt(2 r / (1 + r))`` with
    that over endless data (Spearman-Brown).
    """
    if [site.name for site in mean_a.sites] != [site.name for site in mean_b.sites]:
        raise DataError("The two halves were measured at different sites; use one model and one selection for both.")
    result = {}
    for site in mean_a.sites:
        left, right = mean_a.matrix(site), mean_b.matrix(site)
        rows, columns = (min(sizes) for sizes in zip(left.shape[1:], right.shape[1:], strict=True))
        both = (mean_a.counts(site)[:, :rows, :columns] > 0) & (mean_b.counts(site)[:, :rows, :columns] > 0)
        result[site.name] = torch.stack(
            [
                _correlation(one[:rows, :columns][mask], other[:rows, :columns][mask])
                for one, other, mask in zip(left, right, both.expand(len(left), -1, -1), strict=True)
            ]
        )
    return result


def _correlation(left: Tensor, right: Tensor) -> Tensor:
    """Pearson correlation of two vectors; NaN where one of them does not vary."""
    left, right = left - left.mean(), right - right.mean()
    return (left * right).sum() / (left.square().sum() * right.square().sum()).sqrt()
