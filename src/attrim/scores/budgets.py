"""How many heads of an order to take: budgets are its first entries, so that each holds all smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from ..errors import ParameterError

T = TypeVar("T")
Budget = int | float | str
ALL = "all"


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
        # Through the text, because 0.29 of 100 heads is 29, and the float is a little less.
        number = (
            Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1) if text != ALL else Fraction(total)
        )
    except (ValueError, ZeroDivisionError):
        number = Fraction(-1)
    if isinstance(k, bool) or number < 0 or number > (1 if share else total):
        raise ParameterError(
            f"{k!r} is no budget of {total} heads; give a number from 0 to {total}, a share such as 1/2, or all."
        )
    return int(number * total) if share else int(number)
