"""Single numbers for every head: extremes, mean, spread, entropy, tokens to majority and row sums.

The first four and tokens to majority follow Ji et al. 2021 (https://arxiv.org/abs/2106.01335).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Chart, HeadMatrix, Table
from ..kernels.feed import FACTS, Extent, RowBuffers
from .base import Rule, SiteStat, finite, register
from .display import Varying, head_bar_panels, head_bars, head_table
from .integers import FRACTION_BITS, ONE, add_wide, from_fixed, from_wide, to_fixed

MAJORITY = ONE // 2 + (1 << (FRACTION_BITS - 22))
"""Half a row's mass; the slack of 2^-22 keeps float32 rounding from making exactly half look like more than half."""

SUMMARY = ("maximum", "minimum", "mean", "std", "entropy", "tokens_to_majority")


@register("moments")
@dataclass(eq=False)
class Moments(SiteStat):
    """Maximum, minimum, mean and standard deviation of the values; entropy, majority and sums of the rows.

    Every method gives float64 ``[sites, heads]``. Only cells whose query and key are real and allowed count, and only
    rows that have such a cell. What is added up is fixed point, so that the order of the examples does not matter.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "maximum": "maximum",
        "minimum": "minimum",
        "sum": "wide",
        "squares": "wide",
        "entropy": "wide",
        "row_error": "wide",
        "largest_row_error": "maximum",
    }

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        tensors = {
            name: torch.zeros(heads, dtype=torch.int64)
            for name in ("cells", "rows", "reached", "majority", "largest_row_error")
        }
        tensors |= {
            name: torch.zeros(heads, 2, dtype=torch.int64) for name in ("sum", "squares", "entropy", "row_error")
        }
        tensors["maximum"] = torch.full((heads,), -torch.inf, dtype=torch.float64)
        tensors["minimum"] = torch.full((heads,), torch.inf, dtype=torch.float64)
        return tensors

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            # Contiguous, because elementwise functions may round differently on strided memory.
            weights = finite(tensor[example], valid, call.site).double().contiguous()
            self._add_cells(kept, weights, valid)
            self._add_rows(kept, to_fixed(weights), valid)

    def compiles(self, call: Call) -> type[RowBuffers]:
        """See :meth:`Stat.compiles`."""
        return RowBuffers

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> RowBuffers:
        """See :meth:`Stat.buffers`.

        The fused pass takes the entropy of a row from its scores, in float32: it differs from that of :meth:`watch` in
        about the seventh digit. Everything else is what :meth:`watch` would count of the same weights.
        """
        kept = self.record(call.site, heads).tensors
        return RowBuffers.zeros(heads, lambda facts: self._add_facts(kept, facts))

    @staticmethod
    def _add_facts(kept: dict[str, Tensor], facts: Tensor) -> None:
        found = dict(zip(FACTS, facts.unbind(1), strict=True))
        for name in ("cells", "rows", "reached", "majority"):
            kept[name] += found[name]
        for name in ("sum", "squares", "entropy", "row_error"):
            add_wide(kept[name], found[name])
        for name, larger in (
            ("largest_row_error", torch.maximum),
            ("maximum", torch.maximum),
            ("minimum", torch.minimum),
        ):
            value = found[name]
            if name != "largest_row_error":
                value = value.clamp(max=torch.iinfo(torch.int32).max).to(torch.int32).view(torch.float32).double()
            kept[name].copy_(torch.where(found["rows"] > 0, larger(kept[name], value), kept[name]))

    @staticmethod
    def _add_cells(kept: dict[str, Tensor], weights: Tensor, valid: Tensor) -> None:
        kept["cells"] += valid.sum((1, 2)).cpu()
        highest = weights.masked_fill(~valid, -torch.inf).amax((1, 2)).cpu()
        lowest = weights.masked_fill(~valid, torch.inf).amin((1, 2)).cpu()
        torch.maximum(kept["maximum"], highest, out=kept["maximum"])
        torch.minimum(kept["minimum"], lowest, out=kept["minimum"])
        add_wide(kept["squares"], to_fixed(weights.square()).sum((1, 2)).cpu())
        add_wide(kept["entropy"], to_fixed(torch.special.entr(weights)).sum((1, 2)).cpu())

    @staticmethod
    def _add_rows(kept: dict[str, Tensor], fixed: Tensor, valid: Tensor) -> None:
        real = valid.any(-1)
        sums = fixed.sum(-1)
        add_wide(kept["sum"], sums.sum(-1).cpu())
        errors = torch.where(real, (sums - ONE).abs(), 0)
        add_wide(kept["row_error"], errors.sum(-1).cpu())
        torch.maximum(kept["largest_row_error"], errors.amax(-1).cpu(), out=kept["largest_row_error"])
        tokens, reached = majority(fixed)
        reached &= real
        kept["rows"] += real.sum(-1).cpu()
        kept["reached"] += reached.sum(-1).cpu()
        kept["majority"] += torch.where(reached, tokens, 0).sum(-1).cpu()

    def maximum(self) -> Tensor:
        """The largest value."""
        return self._each(lambda kept: kept["maximum"])

    def minimum(self) -> Tensor:
        """The smallest value."""
        return self._each(lambda kept: kept["minimum"])

    def mean(self) -> Tensor:
        """The mean value."""
        return self._each(lambda kept: from_wide(kept["sum"]) / kept["cells"])

    def std(self) -> Tensor:
        """The standard deviation of the values."""

        def of_heads(kept: dict[str, Tensor]) -> Tensor:
            mean = from_wide(kept["sum"]) / kept["cells"]
            return (from_wide(kept["squares"]) / kept["cells"] - mean.square()).clamp(min=0).sqrt()

        return self._each(of_heads)

    def entropy(self) -> Tensor:
        """The mean entropy of the rows, in nats."""
        return self._each(lambda kept: from_wide(kept["entropy"]) / kept["rows"])

    def tokens_to_majority(self) -> Tensor:
        """How many of a row's largest values it takes to exceed half its mass: the mean over rows that ever do."""
        return self._each(lambda kept: kept["majority"].double() / kept["reached"])

    def not_reached(self) -> Tensor:
        """The share of rows whose values sum to no more than a half (an edit can do that)."""
        return self._each(lambda kept: 1 - kept["reached"].double() / kept["rows"])

    def row_error(self) -> Tensor:
        """The mean distance of the rows' sums from 1."""
        return self._each(lambda kept: from_wide(kept["row_error"]) / kept["rows"])

    def largest_row_error(self) -> Tensor:
        """The largest distance of a row's sum from 1."""
        return self._each(lambda kept: from_fixed(kept["largest_row_error"]))

    def summary(self) -> dict[str, Any]:
        """See :meth:`Stat.summary`: the sites and every number of every head."""
        return {
            "sites": [site.name for site in self.sites],
            **{name: getattr(self, name)().tolist() for name in SUMMARY},
        }

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """Entropy and tokens to majority of every head."""
        del tokenizer
        return [
            head_table("entropy", "Entropy of the rows (nats)", self.entropy(), self.sites),
            head_table("tokens-to-majority", "Tokens to majority", self.tokens_to_majority(), self.sites, digits=1),
        ]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """Entropy and tokens to majority of every head as heat maps; mean, spread and extremes as error bars."""
        del tokenizer
        weights = Varying(self.mean(), self.std(), self.minimum(), self.maximum(), 0.0)
        majority = self.tokens_to_majority()
        return [
            HeadMatrix.of("entropy-of-heads", self.entropy(), self.sites, "entropy of the rows (nats)", low=0.0),
            HeadMatrix.of("tokens-to-majority-of-heads", majority, self.sites, "tokens to majority", low=0.0),
            head_bar_panels("moments-of-heads", "", [head_bars("attention weight", {"": weights}, self.sites)]),
        ]

    def _each(self, read: Callable[[dict[str, Tensor]], Tensor]) -> Tensor:
        return self.table([read(record.tensors) for record in self.records.values()])


def majority(fixed: Tensor) -> tuple[Tensor, Tensor]:
    """How many of a row's largest values exceed half of 1 together, and whether the row has so much at all.

    Parameters
    ----------
    fixed : int64 ``[..., K]``, weights as fixed point with zeros on the cells that do not count.
    """
    running = fixed.sort(-1, descending=True).values.cumsum(-1)
    return (running <= MAJORITY).sum(-1) + 1, running[..., -1] > MAJORITY
