"""The constant study (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from .design import BUDGETS, Design
from .study import Findings, constant

__all__ = ["BUDGETS", "Design", "Findings", "constant"]
