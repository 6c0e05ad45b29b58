"""Compare the orders that scores give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..errors import DataError
from .base import Scores


@dataclass(frozen=True, eq=False)
class RankCorrelation:
    """How well every two of K scores agree.

    Attributes
    ----------
    names : of the scores.
    spearman, kendall : float64 ``[K, K]`` from -1 to 1, Spearman's rho and Kendall's tau-b; NaN where a score gives all
        heads the same number.
    """

    names: tuple[str, ...]
    spearman: NDArray[np.float64]
    kendall: NDArray[np.float64]

    def rows(self) -> list[tuple[str, str, float, float]]:
        """Each pair once: both names, rho and tau."""
        places = zip(*np.triu_indices(len(self.names), 1), strict=True)
        return [
            (self.names[one], self.names[other], float(self.spearman[one, other]), float(self.kendall[one, other]))
            for one, other in places
        ]


def rank_correlation(scores: Mapping[str, Scores]) -> RankCorrelation:
    """Correlate the scores of the same heads with each other, by rank."""
    names = tuple(scores)
    heads = {name: [(site.name, each.scored(site)) for site in each.sites] for name, each in scores.items()}
    for name in names[1:]:
        if heads[name] != heads[names[0]]:
            raise DataError(f"The scores {names[0]!r} and {name!r} are of different heads; score one model with both.")
    rows = [np.concatenate([each.values[site.name].numpy() for site in each.sites]) for each in scores.values()]
    spearman, kendall = np.ones((2, len(rows), len(rows)))
    for one, left in enumerate(rows):
        for other, right in enumerate(rows):
            vary = len(set(left)) > 1 and len(set(right)) > 1  # scipy would warn and give NaN, too
            spearman[one, other] = stats.spearmanr(left, right).statistic if vary else np.nan
            kendall[one, other] = stats.kendalltau(left, right).statistic if vary else np.nan
    return RankCorrelation(names, spearman, kendall)
