"""Figures fit for a paper: each function takes stats or numbers and returns a matplotlib figure; ``save`` writes it."""

from __future__ import annotations

from .distribution import distribution
from .heads import head_histograms, head_map
from .style import save
from .tradeoff import Point, score_against_sparsity

__all__ = ["Point", "distribution", "head_histograms", "head_map", "save", "score_against_sparsity"]
