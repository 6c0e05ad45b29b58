"""Scores: one number for every head, and the orders and budgets that come of it. One score a file."""

from typing import Any

from ..core.order import budget, budget_size
from ..core.registry import SCORES
from .base import Score, ScoreInputs, Scores, register
from .orders import RankCorrelation, rank_correlation

__all__ = [
    "SCORES",
    "RankCorrelation",
    "Score",
    "ScoreInputs",
    "Scores",
    "budget",
    "budget_size",
    "rank_correlation",
    "register",
]


def __getattr__(name: str) -> Any:
    return SCORES.attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *SCORES.by_class_name()})
