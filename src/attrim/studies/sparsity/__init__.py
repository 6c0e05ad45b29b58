"""The sparsity study: distribution, threshold pruning and quantisation of attention (https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from .claims import Claim, claims
from .measuring import check_row_bar
from .study import Findings, sparsity
from .sweep import Setting, Sweep

__all__ = ["Claim", "Findings", "Setting", "Sweep", "check_row_bar", "claims", "sparsity"]
