"""Scores: one number for every head, and the orders and budgets that come of it."""

from .base import SCORES, Scores, register
from .budgets import budget, budget_size
from .correlation import RankCorrelation, rank_correlation

__all__ = ["SCORES", "RankCorrelation", "Scores", "budget", "budget_size", "rank_correlation", "register"]
