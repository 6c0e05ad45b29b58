"""The distribution of numbers that are not attention weights: hidden states, queries, keys, values, scores, outputs.

The error-bar and histogram figures of Ji et al. 2021 (https://arxiv.org/abs/2106.01335) are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy
import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Axis, Bins, Chart, Column, Distribution, Panels, Series, Table
from ..errors import DataError, ParameterError
from .base import Rule, SiteStat, finite, register
from .bins import require_bins
from .display import Varying, head_bar_panels, head_bars, site_label
from .integers import add_words, from_wide, to_fixed

Moment = Literal["layer_input", "layer_output", "query", "key", "value", "scores", "weights", "output"]
LARGEST = 8192.0
"""The square of a larger number does not fit into fixed point."""


@register("values")
@dataclass(eq=False)
class Values(SiteStat):
    """Maximum, minimum, mean, standard deviation and an evenly spaced histogram at any moment of an attention call.

    Hidden states have one "head". Only real tokens count, and only allowed cells of scores and weights.

    Parameters
    ----------
    moment : what to watch.
    low, high, bins : the histogram; what lies outside is counted apart.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "maximum": "maximum", "minimum": "minimum", "sum": "wide", "squares": "wide",
    }  # fmt: skip
    moment: Moment = "layer_output"
    low: float = -5.0
    high: float = 5.0
    bins: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moment not in get_args(Moment):
            raise ParameterError(f"moment must be one of {', '.join(get_args(Moment))}, not {self.moment!r}.")
        require_bins("Values", self.bins)
        if not self.low < self.low + (self.high - self.low) / self.bins:
            raise ParameterError(f"A histogram from {self.low} to {self.high} in {self.bins} bins is empty.")
        if not (self.low >= -LARGEST and self.high <= LARGEST):
            raise ParameterError(
                f"A histogram may reach from -{LARGEST:g} to {LARGEST:g}, not {self.low} to {self.high}."
            )

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {
            "counts": torch.zeros(heads, self.bins + 2, dtype=torch.int64),
            "sum": torch.zeros(heads, 2, dtype=torch.int64),
            "squares": torch.zeros(heads, 2, dtype=torch.int64),
            "maximum": torch.full((heads,), -torch.inf, dtype=torch.float64),
            "minimum": torch.full((heads,), torch.inf, dtype=torch.float64),
        }

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            numbers = finite(tensor[example], valid, call.site).double()
            if numbers.abs().max() > LARGEST:
                raise DataError(
                    f"The {self.moment} at {call.site.name!r} exceeds {LARGEST:g}, too much for exact sums."
                )
            torch.maximum(kept["maximum"], _most(numbers, valid).cpu(), out=kept["maximum"])
            torch.minimum(kept["minimum"], -_most(-numbers, valid).cpu(), out=kept["minimum"])
            add_words(kept["sum"], to_fixed(numbers).flatten(1).cpu())
            add_words(kept["squares"], to_fixed(numbers.square()).flatten(1).cpu())
            kept["counts"] += self._counts(numbers, valid).cpu()

    def _counts(self, numbers: Tensor, valid: Tensor) -> Tensor:
        """Int64 ``[H, bins + 2]``: numbers below, in every bin, and above; ``high`` itself is in the last bin."""
        place = torch.floor((numbers - self.low) * (self.bins / (self.high - self.low))).clamp(-1, self.bins) + 1
        place = torch.where(numbers == self.high, self.bins, place).long()
        heads = torch.arange(len(numbers), device=numbers.device)[:, None, None] * (self.bins + 2)
        return torch.bincount((place + heads)[valid], minlength=len(numbers) * (self.bins + 2)).view(len(numbers), -1)

    @property
    def total(self) -> Tensor:
        """Int64 ``[sites, heads]``: how many numbers were counted."""
        return self._each(lambda kept: kept["counts"].sum(-1), 0)

    def maximum(self) -> Tensor:
        """Float64 ``[sites, heads]``: the largest number."""
        return self._each(lambda kept: kept["maximum"])

    def minimum(self) -> Tensor:
        """Float64 ``[sites, heads]``: the smallest number."""
        return self._each(lambda kept: kept["minimum"])

    def mean(self) -> Tensor:
        """Float64 ``[sites, heads]``: the mean."""
        return self._each(lambda kept: from_wide(kept["sum"]) / kept["counts"].sum(-1))

    def std(self) -> Tensor:
        """Float64 ``[sites, heads]``: the standard deviation."""
        squares = self._each(lambda kept: from_wide(kept["squares"]) / kept["counts"].sum(-1))
        return (squares - self.mean().square()).clamp(min=0).sqrt()

    def histogram(self) -> Tensor:
        """Float64 ``[sites, heads, bins]``: the share of all numbers in each bin."""
        return self._each(lambda kept: kept["counts"][:, 1:-1].double() / kept["counts"].sum(-1, keepdim=True))

    def outside(self) -> Tensor:
        """Float64 ``[sites, heads]``: the share of numbers that lie outside the histogram."""
        return self._each(lambda kept: kept["counts"][:, [0, -1]].sum(-1).double() / kept["counts"].sum(-1))

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """Mean, standard deviation and extremes of every site, all heads together."""
        del tokenizer
        names = ("mean", "std", "smallest", "largest")
        columns = [Column("role"), Column("layer"), Column("numbers", "count")]
        columns += [*(Column(name, "general", 4) for name in names), Column("outside", "percent", 2)]
        rows = []
        for place, site in enumerate(self.sites):
            total = self.total[place].double()
            share = total / total.sum()
            mean = float((self.mean()[place].nan_to_num() * share).sum())
            squares = (self.std()[place].square() + self.mean()[place].square()).nan_to_num()
            std = max(float((squares * share).sum()) - mean**2, 0.0) ** 0.5
            ends = [float(numpy.nanmin(self.minimum()[place])), float(numpy.nanmax(self.maximum()[place]))]
            outside = float((self.outside()[place].nan_to_num() * share).sum())
            rows.append([site.role, site.layer, int(total.sum()), mean, std, *ends, outside])
        title = f"{self._text.capitalize()} (outside: beyond {self.low:g} to {self.high:g})"
        return [Table(f"values-{self._file}", title, columns=columns, rows=rows)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """Mean, standard deviation and extremes of every head, and a histogram of every site."""
        del tokenizer
        varying = Varying(self.mean(), self.std(), self.minimum(), self.maximum())
        bars = head_bars(self._text, {"": varying}, self.sites)
        return [head_bar_panels(f"probe-{self._file}", "", [bars]), self.histogram_chart()]

    def histogram_chart(self) -> Panels:
        """A histogram and a cumulative curve for each site, all heads together.

        The titles give the extremes and the share outside of the axis.
        """
        totals = numpy.asarray(self.total).sum(1)
        counts = numpy.nan_to_num(numpy.asarray(self.histogram() * self.total[..., None])).sum(1)
        outside = numpy.nansum(numpy.asarray(self.outside()) * numpy.asarray(self.total), 1) / totals
        low, high = numpy.nanmin(numpy.asarray(self.minimum()), 1), numpy.nanmax(numpy.asarray(self.maximum()), 1)
        edges = numpy.linspace(self.low, self.high, self.bins + 1)
        below = [int(record.tensors["counts"][:, 0].sum()) for record in self.records.values()]
        panels = [
            Distribution(
                "",
                f"{site_label(site)}\n{low[place]:.1f} to {high[place]:.1f}, {100 * outside[place]:.2g} % outside",
                edges=edges,
                bins=[Bins("", counts[place] / totals[place], filled=True)],
                x=Axis("", low=self.low, high=self.high),
                lines=[Series("", edges[1:], (below[place] + counts[place].cumsum()) / totals[place])],
                right=Axis("", low=0.0, high=1.0),
            )
            for place, site in enumerate(self.sites)
        ]
        return Panels(
            f"probe-{self._file}-histogram",
            charts=panels,
            x_label=self._text,
            y_label="share (bars), share up to the value (line)",
            share_x=True,
            share_y=True,
            compact=True,
        )

    @property
    def _text(self) -> str:
        return self.moment.replace("_", " ")

    @property
    def _file(self) -> str:
        return self.moment.replace("_", "-")

    def _each(self, read: Callable[[dict[str, Tensor]], Tensor], missing: float = float("nan")) -> Tensor:
        return self.table([read(record.tensors) for record in self.records.values()], missing)


def _most(numbers: Tensor, valid: Tensor) -> Tensor:
    return numbers.masked_fill(~valid, -torch.inf).amax((1, 2))
