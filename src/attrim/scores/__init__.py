"""Scores: one number for every head, and the orders and budgets that come of it."""

from ..core.registry import SCORES
from .base import Scores, register
from .orders import RankCorrelation, budget, budget_size, rank_correlation

__all__ = ["SCORES", "RankCorrelation", "Scores", "budget", "budget_size", "rank_correlation", "register"]
