"""The prune study (Attention Pruning, Rugina et al. 2020, https://arxiv.org/abs/2012.02030)."""

from .study import Prune

__all__ = ["Prune"]
