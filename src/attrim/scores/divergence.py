"""How far a head's attention is from its constant: a score that needs no training and no labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.call import Call
from ..edits.base import Edit
from ..edits.constant import Constant
from ..measurement import measure
from ..stats.base import Rule, SiteStat, finite
from ..stats.integers import add_words, from_wide, to_fixed
from .base import Score, ScoreInputs, Scores, register


@dataclass(eq=False)
class RowDivergence(SiteStat):
    """Mean Jensen-Shannon divergence between each row of attention and what an edit makes of it, in nats.

    Only rows of real queries with an allowed key count, and all of them the same. A row that the edit leaves empty
    counts as one that has nothing in common with the attention, log 2. The model computes without the edit.

    Parameters
    ----------
    edit : an edit of weights, such as ``Constant(mean)``. Two stats merge when they have the very same one.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"divergence": "wide"}
    edit: Edit

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {
            "rows": torch.zeros(heads, dtype=torch.int64),
            "divergence": torch.zeros(heads, 2, dtype=torch.int64),
        }

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            valid = one.valid[0].expand(tensor.shape[1:])
            weights = tensor[example : example + 1].double()
            constants = finite(self.edit.edit_weights(weights, one)[0], valid, call.site)
            rows = row_divergence(finite(weights[0], valid, call.site), constants)
            real = valid.any(-1)
            kept["rows"] += real.sum(-1).cpu()
            add_words(kept["divergence"], to_fixed(torch.where(real, rows, 0.0)).cpu())

    def values(self) -> dict[str, Tensor]:
        """The mean over rows, float64 ``[heads watched]`` by site name."""
        return {
            name: from_wide(record.tensors["divergence"]) / record.tensors["rows"].clamp(min=1)
            for name, record in self.records.items()
        }


def row_divergence(left: Tensor, right: Tensor) -> Tensor:
    """Jensen-Shannon divergence between rows ``[..., K]`` that sum to 1: ``[...]``, from 0 to log 2 (in nats).

    A row of zeros has nothing in common with any other, so it gives log 2.
    """
    middle = (left + right) / 2
    # Where both are zero the logarithm is never taken: xlogy(0, y) is 0.
    parts = [torch.special.xlogy(side, side / middle.clamp(min=1e-300)).sum(-1) for side in (left, right)]
    empty = (left.sum(-1) == 0) | (right.sum(-1) == 0)
    return ((parts[0] + parts[1]) / 2).clamp(0, math.log(2)).masked_fill(empty, math.log(2))


@register("divergence")
@dataclass(frozen=True, kw_only=True)
class Divergence(Score):
    """Mean Jensen-Shannon divergence between the rows of a head's attention and its constant; needs no labels."""

    needs = frozenset({"batches", "constants"})

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        constants = given.constants
        stat = RowDivergence(constants if isinstance(constants, Edit) else Constant(constants))
        measure(given.model, given.batches, stat, given.select, progress=given.progress)
        return self.scores(stat.values(), {record.site: record.heads for record in stat.records.values()})
