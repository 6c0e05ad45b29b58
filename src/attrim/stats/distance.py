"""How far edited attention is from the original, row by row (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from ..core.call import Call
from ..core.registry import EDITS
from ..core.text import parse
from .base import Rule, SiteStat, finite, register
from .bins import log_edges
from .integers import add_words, from_wide, lasting_zeros, to_fixed
from .rowfacts import row_counts, row_shares

if TYPE_CHECKING:
    from ..edits.base import Edit


@register("row-distance")
@dataclass(eq=False)
class RowDistance(SiteStat):
    """The histograms of a row's weights before and after an edit: their Jensen-Shannon distance, and the row's sum.

    The distance is the square root of the divergence, natural logarithm, as in the paper; unlike there, all examples
    count. The edits are applied to the weights that the stat sees; the model computes without them.

    Parameters
    ----------
    edits : edits of weights as texts, such as ``quantize:linear-slog-clamped-midval,bits=3``, or by names of your own.
    floor, bins : the logarithmic histogram, as in :class:`~attrim.stats.histogram.Histogram`.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"distance": "wide", "row_sum": "wide"}
    edits: Sequence[str] | Mapping[str, Edit] = ()
    floor: float = 1e-10
    bins: int = 100
    _edits: Mapping[str, Edit | None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.edits
        self._edits = given if isinstance(given, Mapping) else {text: parse(EDITS, text) for text in given}
        self.edits = tuple(self._edits)  # what is saved, and what other stats are compared with

    @cached_property
    def _edges(self) -> Tensor:
        return log_edges(self.floor, self.bins)

    @cached_property
    def _ready(self) -> list[Edit]:
        return [edit or parse(EDITS, name) for name, edit in self._edits.items()]

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        shape = heads, len(self.edits), 2
        return {
            "rows": torch.zeros(heads, dtype=torch.int64),
            "distance": torch.zeros(*shape, dtype=torch.int64),
            "row_sum": torch.zeros(*shape, dtype=torch.int64),
            "before": lasting_zeros(heads, self.bins),
            "after": lasting_zeros(heads, len(self.edits), self.bins),
        }

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        edits = self._ready  # an edit that cannot be made is an error before anything is counted
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
            kept["before"] += row_shares(before).cpu()
            for place, edit in enumerate(edits):
                edited = finite(edit.edit_weights(weights, one)[0], valid, call.site)
                after = row_counts(edited, valid, edges, self.floor)
                distance = jensen_shannon(before, after)
                kept["after"][:, place] += row_shares(after).cpu()
                add_words(kept["distance"][:, place], to_fixed(torch.where(real, distance, 0.0)).cpu())
                add_words(kept["row_sum"][:, place], to_fixed(edited).sum(-1).cpu())

    def distance(self) -> Tensor:
        """Float64 ``[sites, heads, edits]``: the mean distance over rows."""
        return self._mean("distance")

    def row_sum(self) -> Tensor:
        """Float64 ``[sites, heads, edits]``: the mean sum of a row after the edit."""
        return self._mean("row_sum")

    def rows_before(self) -> Tensor:
        """Float64 ``[sites, heads, bins]``: the mean of the rows' own histograms; every row weighs the same."""
        return self._shares("before")

    def rows_after(self) -> Tensor:
        """Float64 ``[sites, heads, edits, bins]``: the same after each edit."""
        return self._shares("after")

    @classmethod
    def load(cls, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`state`; it can be read and merged, but not go on with edits that have own names."""
        # Made from text only when they are needed, for those that hold tensors cannot be.
        unknown = dict.fromkeys(fields["options"]["edits"])
        return super().load(tensors, {**fields, "options": {**fields["options"], "edits": unknown}})

    def _shares(self, name: str) -> Tensor:
        shares = (record.tensors[name].double() for record in self.records.values())
        return self.table(counts / counts.sum(-1, keepdim=True) for counts in shares)

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
