"""How many attention weights are exactly zero: what an evaluation reports beside its metrics."""

from __future__ import annotations

from torch import Tensor

from ..core.call import Call
from .base import Stat


class ZeroCount(Stat):
    """Counts the valid attention cells of every site and how many of them are exactly zero."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """Add the cells of one call, weights ``[B, H, Q, K]``."""
        valid = call.valid.expand(tensor.shape[0], tensor.shape[1], -1, -1)
        zeros, total = self.counts.get(call.site.name, (0, 0))
        self.counts[call.site.name] = zeros + int(((tensor == 0) & valid).sum()), total + int(valid.sum())

    @property
    def zeros(self) -> int:
        """The zeros of all sites."""
        return sum(zeros for zeros, _ in self.counts.values())

    @property
    def total(self) -> int:
        """The cells of all sites."""
        return sum(total for _, total in self.counts.values())
