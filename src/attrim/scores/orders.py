"""What is done with orders of heads: take their first entries (a budget holds all smaller ones), and compare them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..errors import DataError, ParameterError, shorten
from .base import Scores

T = TypeVar("T")
Budget = int | float | str
ALL = "all"
LONGEST = 40
"""Characters of a budget."""


def budget(order: Sequence[T], k: Budget) -> list[T]:
    """The first heads of an order.

    Parameters
    ----------
    order : all heads, as :meth:`attrim.scores.Scores.order` gives them.
    k : see :func:`budget_size`.
    """
    return list(order[: budget_size(k, len(order))])


def budget_size(k: Budget, total: int) -> int:
    """How many heads a budget is.

    Parameters
    ----------
    k : a whole number is a number of heads; a float, or a text with a point, slash or per cent sign, is a share of
        all heads, rounded down; ``all`` is all of them.
    """
    share = isinstance(k, float) or (isinstance(k, str) and any(sign in k for sign in "./%"))
    text = str(k).strip()
    try:
        if len(text) > LONGEST or re.search(r"e[+-]?\d{4}", text, re.IGNORECASE):
            raise ValueError(text)  # 1e999999999 as a fraction fills the memory
        # Through the text, because 0.29 of 100 heads is 29, and the float is a little less.
        number = (
            Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1) if text != ALL else Fraction(total)
        )
    except (ValueError, ZeroDivisionError):
        number = Fraction(-1)
    if isinstance(k, bool) or number < 0 or number > (1 if share else total):
        raise ParameterError(
            f"{shorten(k)} is not a budget of {total} heads; give a number from 0 to {total}, a share such as 1/2, or "
            "all."
        )
    return int(number * total) if share else int(number)


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
