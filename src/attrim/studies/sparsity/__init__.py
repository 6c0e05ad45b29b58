"""The sparsity study: distribution, threshold pruning and quantisation of attention (https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from .study import Sparsity

__all__ = ["Sparsity"]
