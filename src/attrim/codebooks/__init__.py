"""Codebooks: the few values that attention weights are reduced to, made by a method that is found by its name."""

from ..core.registry import METHODS
from .base import make_codebook
from .codebook import Codebook
from .report import Report, report

__all__ = ["METHODS", "Codebook", "Report", "make_codebook", "report"]
