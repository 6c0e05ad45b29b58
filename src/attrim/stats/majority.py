"""How many tokens hold most of a row, for every head (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..call import Call
from .base import register
from .fixed import to_fixed
from .moments import majority
from .sitewise import finite
from .spread import Spread


@register("majority")
@dataclass(eq=False)
class Majority(Spread):
    """How tokens to majority vary over query rows, as a number (``tokens``) and as a share of the row (``share``).

    The number is how many of a row's largest values together exceed one half (the paper's code counts from 0). Rows
    that never get there, as an edit may leave them, are in :meth:`missing`.
    """

    facts: ClassVar[tuple[str, ...]] = ("tokens", "share")

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            weights = finite(tensor[example], valid, call.site)
            sizes = valid.sum(-1)
            tokens, reached = majority(to_fixed(weights))
            values = torch.stack([tokens.double(), tokens.double() / sizes.clamp(min=1)], 1)
            real = sizes > 0
            self.add(kept, values, reached & real, ~reached & real)
