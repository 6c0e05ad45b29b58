"""The constant study (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from .study import ConstantHeads

__all__ = ["ConstantHeads"]
