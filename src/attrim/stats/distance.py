"""How far edited attention is from the original, row by row (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy
import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Chart, Column, Panels, Table
from ..core.registry import EDITS
from ..core.site import Site
from ..core.text import parse
from ..kernels.described import EditedRows, describe
from .base import Rule, SiteStat, finite, register
from .bins import bin_table, require_log_bins
from .display import row_overlays
from .integers import add_words, from_wide, lasting_zeros, to_fixed
from .rowfacts import plain_row_counts, row_shares

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
        super().__post_init__()
        require_log_bins("RowDistance", self.floor, self.bins)
        given = self.edits
        self._edits = given if isinstance(given, Mapping) else {text: parse(EDITS, text) for text in given}
        self.edits = tuple(self._edits)  # what is saved, and what other stats are compared with

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
        for example in range(tensor.shape[0]):
            one = call.for_example(example)
            rows, before, after = self._described(tensor[example], one, edits)
            kept["rows"] += rows.sum(-1).cpu()
            kept["before"] += before.cpu()
            for place, edited in after.items():
                kept["after"][:, place] += edited.shares.cpu()
                add_words(kept["distance"][:, place], to_fixed(edited.distance).cpu())
                add_words(kept["row_sum"][:, place], edited.sums.cpu())

    def _described(
        self, weights: Tensor, call: Call, edits: Sequence[Edit]
    ) -> tuple[Tensor, Tensor, dict[int, EditedRows]]:
        """Which rows ``[H, Q]`` of one example's weights ``[H, Q, K]`` count, their shares, and what becomes of them.

        Edits compute in float64, so that the numbers say what they do and not how the model's dtype rounds it.
        """
        valid = call.valid[0].expand(weights.shape)
        tables = {dtype: bin_table(self.floor, self.bins, dtype) for dtype in (torch.float32, torch.float64)}
        compiled = [edit.compiles(call) if weights.dtype == torch.float32 else None for edit in edits]
        operations = {place: operation for place, operation in enumerate(compiled) if operation is not None}
        facts = describe(
            weights,
            valid,
            call.site,
            table=tables.get(weights.dtype),
            counts=None in compiled,
            shares=True,
            edits=list(operations.values()),
            wide_table=tables[torch.float64],
        )
        if facts is None or facts.shares is None:
            plain = plain_row_counts(finite(weights.double(), valid, call.site), valid, self.floor, self.bins)
            real, shares, found = plain.sum(-1) > 0, row_shares(plain), dict[int, EditedRows]()
            counts: Tensor | None = plain
        else:
            real, shares, found = facts.sizes > 0, facts.shares, dict(zip(operations, facts.edited, strict=True))
            counts = facts.counts
        if counts is not None:
            wide = weights.double()[None]
            for place in set(range(len(edits))) - found.keys():
                edited = edits[place].edit_weights(wide, call)[0]
                found[place] = self._edited(edited, valid, call.site, counts)
        return real, shares, found

    def _edited(self, weights: Tensor, valid: Tensor, site: Site, before: Tensor) -> EditedRows:
        """Facts about the float64 rows ``[H, Q, K]`` after an edit, whose histograms ``before`` it are given."""
        facts = None
        if before.dtype == torch.int32:  # what the compiled pass counted
            table = bin_table(self.floor, self.bins, torch.float64)
            facts = describe(weights, valid, site, table=table, before=before, shares=True, sums=True)
        if facts is None or facts.distance is None or facts.sums is None or facts.shares is None:
            weights = finite(weights, valid, site)
            counts = plain_row_counts(weights, valid, self.floor, self.bins)
            sums, distance = to_fixed(weights).sum(-1), jensen_shannon(before, counts)
            return EditedRows(distance=distance, sums=sums, shares=row_shares(counts))
        return EditedRows(distance=facts.distance, sums=facts.sums, shares=facts.shares)

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

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The distance and the row sums of every edit, the mean over all heads."""
        del tokenizer
        distance, sums = (
            numpy.nanmean(numpy.asarray(table), axis=(0, 1)) for table in (self.distance(), self.row_sum())
        )
        columns = [Column("edit"), Column("Jensen-Shannon distance", "number", 4), Column("sum of a row", "number", 4)]
        rows = list(zip(self.edits, distance.tolist(), sums.tolist(), strict=True))
        return [Table("row-distance", "How far edited rows are from the original ones", columns=columns, rows=rows)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The rows' histograms after each edit over the original ones, all heads together."""
        del tokenizer
        return [self.overlay_chart("edited-rows")] if self.edits else []

    def overlay_chart(self, name: str, place: int | None = None, head: int | None = None) -> Panels:
        """The rows' histograms after each edit over the original ones: of all heads, or of one.

        Parameters
        ----------
        place, head : number of the site among :attr:`sites`, and of the head.
        """
        tables = [numpy.asarray(table) for table in (self.rows_before(), self.rows_after(), self.distance())]
        if place is None or head is None:
            before, after, distance = (numpy.nanmean(table, axis=(0, 1)) for table in tables)
            title = "all heads"
        else:
            before, after, distance = (table[place, head] for table in tables)
            title = f"layer {self.sites[place].layer} head {head}"
        names = [f"{edit.removeprefix('quantize:')}: {far:.2f}" for edit, far in zip(self.edits, distance, strict=True)]
        edited = dict(zip(names, after, strict=True))
        return row_overlays(name, f"{title}; behind each name the JS distance", before, edited, self.floor)

    @classmethod
    def load(cls, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`state`; can be merged, and watches more calls if its edits can be made from text."""
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


def jensen_shannon(left: Tensor, right: Tensor) -> Tensor:
    """Jensen-Shannon distance between counts ``[..., bins]``: float64 ``[...]``, from 0 to sqrt(log 2)."""
    left, right = (side.double() / side.sum(-1, keepdim=True).clamp(min=1) for side in (left, right))
    return _divergence(left, right).clamp(min=0).sqrt()


def row_divergence(left: Tensor, right: Tensor) -> Tensor:
    """Jensen-Shannon divergence between rows ``[..., K]`` that sum to 1: ``[...]``, from 0 to log 2 (in nats).

    A row of zeros has nothing in common with any other, so it gives log 2.
    """
    empty = (left.sum(-1) == 0) | (right.sum(-1) == 0)
    return _divergence(left, right).clamp(0, math.log(2)).masked_fill(empty, math.log(2))


def _divergence(left: Tensor, right: Tensor) -> Tensor:
    """Half the Kullback-Leibler divergence of each side from the middle, ``[...]``; rounding may take it below 0."""
    middle = (left + right) / 2
    # Where both are zero the logarithm is never taken: xlogy(0, y) is 0.
    parts = [torch.special.xlogy(side, side / middle.clamp(min=1e-300)).sum(-1) for side in (left, right)]
    return (parts[0] + parts[1]) / 2
