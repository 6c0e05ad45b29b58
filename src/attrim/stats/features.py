"""How the extremes of attention vary from example to example (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..call import Call
from .base import register
from .sitewise import finite
from .spread import Spread


@register("features")
@dataclass(eq=False)
class Features(Spread):
    """How the maximum, minimum, mean and standard deviation of an example's weights vary over the examples.

    Unlike in the paper's code, padding counts nowhere.
    """

    facts: ClassVar[tuple[str, ...]] = ("maximum", "minimum", "mean", "std")

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            weights = finite(tensor[example], valid, call.site).double()
            # The sums must not depend on how far the example is padded, so only the cells that count are added.
            facts = [_facts(head[chosen]) for head, chosen in zip(weights, valid, strict=True)]
            real = valid.flatten(1).any(-1, keepdim=True)
            self.add(kept, torch.stack(facts)[..., None], real)


def _facts(weights: Tensor) -> Tensor:
    """Float64 ``[4]`` of the weights ``[N]`` of one head; zeros if there are none."""
    if not weights.numel():
        return weights.new_zeros(4)
    return torch.stack([weights.max(), weights.min(), weights.mean(), weights.std(correction=0)])
