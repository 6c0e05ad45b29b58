"""Codebooks: the few values that attention weights are reduced to, made by a method that is found by its name."""

from .base import METHODS, make_codebook
from .codebook import Codebook
from .report import Report, report

__all__ = ["METHODS", "Codebook", "Report", "make_codebook", "report"]
