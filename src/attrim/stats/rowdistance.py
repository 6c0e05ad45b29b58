"""How far edited attention is from the original, row by row (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..call import Call
from ..edits.base import Edit
from ..edits.parse import parse_edit
from .base import register
from .bins import log_edges
from .fixed import add_words, from_wide, to_fixed
from .rowfacts import row_counts
from .sitewise import Rule, SiteStat, finite


@register("row-distance")
@dataclass(eq=False)
class RowDistance(SiteStat):
    """Jensen-Shannon distance between the histograms of a row's weights before and after an edit, and the row's sum.

    The distance is the square root of the divergence, natural logarithm, as in the paper; unlike there, all examples
    count. The edits are applied to the weights that the stat sees; the model computes without them.

    Parameters
    ----------
    edits : edits of weights as texts, such as ``quantize:linear-slog-clamped-midval,bits=3``.
    floor, bins : the logarithmic histogram, as in :class:`~attrim.stats.histogram.Histogram`.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"distance": "wide", "row_sum": "wide"}
    edits: Sequence[str] = ()
    floor: float = 1e-10
    bins: int = 100
    _edits: list[Edit] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.edits = tuple(self.edits)
        self._edits = [parse_edit(text) for text in self.edits]

    @cached_property
    def _edges(self) -> Tensor:
        return log_edges(self.floor, self.bins)

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        shape = heads, len(self.edits), 2
        return {
            "rows": torch.zeros(heads, dtype=torch.int64),
            "distance": torch.zeros(*shape, dtype=torch.int64),
            "row_sum": torch.zeros(*shape, dtype=torch.int64),
        }

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        edges = self._edges.to(tensor.device)
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            valid = one.valid[0].expand(tensor.shape[1:])
            # In float64, so that the numbers say what the edit does and not how the model's dtype rounds it.
            weights = tensor[example : example + 1].double()
            before = row_counts(finite(weights[0], valid, call.site), valid, edges, self.floor)
            real = valid.any(-1)
            kept["rows"] += real.sum(-1).cpu()
            for place, edit in enumerate(self._edits):
                edited = edit.edit_weights(weights, one)[0]
                edited = finite(edited, valid, call.site)
                distance = jensen_shannon(before, row_counts(edited, valid, edges, self.floor))
                add_words(kept["distance"][:, place], to_fixed(torch.where(real, distance, 0.0)).cpu())
                add_words(kept["row_sum"][:, place], to_fixed(edited).sum(-1).cpu())

    def distance(self) -> Tensor:
        """Float64 ``[sites, heads, edits]``: the mean distance over rows."""
        return self._mean("distance")

    def row_sum(self) -> Tensor:
        """Float64 ``[sites, heads, edits]``: the mean sum of a row after the edit."""
        return self._mean("row_sum")

    def _mean(self, name: str) -> Tensor:
        return self.table(
            from_wide(record.tensors[name]) / record.tensors["rows"][:, None] for record in self.records.values()
        )


def jensen_shannon(left: Tensor, right: Tensor) -> Tensor:
    """Jensen-Shannon distance between counts ``[..., bins]``: float64 ``[...]``, from 0 to sqrt(log 2)."""
    left, right = (side.double() / side.sum(-1, keepdim=True).clamp(min=1) for side in (left, right))
    middle = (left + right) / 2
    divergence = sum(torch.special.xlogy(side, side / middle.clamp(min=1e-300)).sum(-1) for side in (left, right)) / 2
    return torch.as_tensor(divergence).clamp(min=0).sqrt()
