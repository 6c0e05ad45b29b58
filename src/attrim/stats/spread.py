"""Stats that tell how a few facts vary: mean, standard deviation and extremes for each head.

A stat of your own is shortest as a :class:`Spread`: name the facts and compute them; the rest is done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Chart, Table
from ..core.site import Site
from ..errors import UnknownName
from ..kernels.described import describe
from .base import Rule, SiteStat, finite, register
from .display import Varying, head_bar_panels, head_bars, head_table
from .integers import add_words, from_wide, to_fixed
from .moments import majority


@dataclass(eq=False)
class Spread(SiteStat):
    """Base of stats that gather facts about rows or examples; subclasses name the facts and write :meth:`gather`.

    Every method gives float64 ``[sites, heads]`` for one fact. What is added up is fixed point, so that the order of
    the examples does not matter.

    Attributes
    ----------
    facts : the names of the facts.
    each : what has these facts: every query ``row`` with an allowed key, or every ``example``.
    labels : fact to what to call it, of those that are shown; by default all of them, by their names.
    chart_name : stem of the names of charts and tables; by default the registered name.
    extremes : whether the smallest and largest values are drawn.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "sum": "wide", "squares": "wide", "maximum": "maximum", "minimum": "minimum",
    }  # fmt: skip
    facts: ClassVar[tuple[str, ...]]
    each: ClassVar[Literal["row", "example"]] = "row"
    labels: ClassVar[Mapping[str, str]] = {}
    chart_name: ClassVar[str] = ""
    extremes: ClassVar[bool] = True

    def gather(self, weights: Tensor, valid: Tensor) -> Tensor:
        """Compute the facts of one example: ``[H, facts, Q]`` for rows, ``[H, facts, 1]`` for examples.

        What is NaN has no such fact, and counts in :meth:`missing`. The result must not depend on how far the example
        is padded.

        Parameters
        ----------
        weights : float64 ``[H, Q, K]`` with zeros on the cells that do not count.
        valid : bool ``[H, Q, K]``, the cells that count.
        """
        raise NotImplementedError

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            one = call.for_example(example).valid[0]
            valid = one.expand(tensor.shape[1:])
            found = self.gather_compiled(tensor[example], valid, call.site)
            if found is None:
                found = self.gather(finite(tensor[example], valid, call.site).double(), valid)
            real = one.any(-1) if self.each == "row" else one.flatten(1).any(-1, keepdim=True)
            self._add(kept, found.double(), real.expand(len(found), -1))

    def gather_compiled(self, weights: Tensor, valid: Tensor, site: Site) -> Tensor | None:
        """The same facts as :meth:`gather` by a compiled pass; None where there is none, as here.

        Parameters
        ----------
        weights : ``[H, Q, K]`` as the model computed them, with anything on the cells that do not count.
        """
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "gather" in vars(cls) and "gather_compiled" not in vars(cls):
            cls.gather_compiled = Spread.gather_compiled  # type: ignore[method-assign]  # the parent's facts are others

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        shape = heads, len(self.facts)
        return {
            "missing": torch.zeros(heads, dtype=torch.int64),
            "count": torch.zeros(heads, dtype=torch.int64),
            "sum": torch.zeros(*shape, 2, dtype=torch.int64),
            "squares": torch.zeros(*shape, 2, dtype=torch.int64),
            "maximum": torch.full(shape, -torch.inf, dtype=torch.float64),
            "minimum": torch.full(shape, torch.inf, dtype=torch.float64),
        }

    def _add(self, kept: dict[str, Tensor], values: Tensor, real: Tensor) -> None:
        """Add facts ``[H, facts, N]``, of which ``real`` ``[H, N]`` count, to the tensors of a site."""
        reached = ~values.isnan().any(1)
        kept["missing"] += (real & ~reached).sum(-1).cpu()
        real = real & reached
        chosen = real[:, None].expand_as(values)
        values = torch.where(chosen, values, 0.0)
        kept["count"] += real.sum(-1).cpu()
        add_words(kept["sum"], to_fixed(values).cpu())
        add_words(kept["squares"], to_fixed(values.square()).cpu())
        highest, lowest = (values.masked_fill(~chosen, end) for end in (-torch.inf, torch.inf))
        torch.maximum(kept["maximum"], highest.amax(-1).cpu(), out=kept["maximum"])
        torch.minimum(kept["minimum"], lowest.amin(-1).cpu(), out=kept["minimum"])

    def mean(self, fact: str) -> Tensor:
        """The mean of a fact."""
        place = self._place(fact)
        return self.table(
            from_wide(record.tensors["sum"])[:, place] / record.tensors["count"] for record in self.records.values()
        )

    def std(self, fact: str) -> Tensor:
        """The standard deviation of a fact."""
        place = self._place(fact)
        squares = self.table(
            from_wide(record.tensors["squares"])[:, place] / record.tensors["count"] for record in self.records.values()
        )
        return (squares - self.mean(fact).square()).clamp(min=0).sqrt()

    def highest(self, fact: str) -> Tensor:
        """The largest value of a fact."""
        place = self._place(fact)
        return self.table(record.tensors["maximum"][:, place] for record in self.records.values())

    def lowest(self, fact: str) -> Tensor:
        """The smallest value of a fact."""
        place = self._place(fact)
        return self.table(record.tensors["minimum"][:, place] for record in self.records.values())

    def missing(self) -> Tensor:
        """The share of those that should count but have no such facts."""
        return self.table(
            record.tensors["missing"].double() / (record.tensors["missing"] + record.tensors["count"])
            for record in self.records.values()
        )

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The mean of every fact, for every head."""
        del tokenizer
        return [
            head_table(f"{self._stem}-{fact}", f"Mean {label}", self.mean(fact), self.sites, "general", 2)
            for fact, label in self._shown.items()
        ]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """Mean, standard deviation and extremes of every fact, for every head."""
        del tokenizer
        bars = [head_bars(label, {"": varying}, self.sites) for label, varying in self.varying().items()]
        return [head_bar_panels(self._stem, "", bars)]

    def varying(self) -> dict[str, Varying]:
        """The facts that are shown, by what to call them; none of them can be below zero."""
        return {
            label: Varying(
                self.mean(fact),
                self.std(fact),
                self.lowest(fact) if self.extremes else None,
                self.highest(fact) if self.extremes else None,
                0.0,
            )
            for fact, label in self._shown.items()
        }

    @property
    def _shown(self) -> Mapping[str, str]:
        return self.labels or {fact: fact for fact in self.facts}

    @property
    def _stem(self) -> str:
        return self.chart_name or self.registered_name

    def _place(self, fact: str) -> int:
        if fact not in self.facts:
            raise UnknownName("fact", fact, self.facts)
        return self.facts.index(fact)


@register("extremes")
@dataclass(eq=False)
class Extremes(Spread):
    """How the maximum, minimum, mean and standard deviation of an example's weights vary over the examples.

    Unlike in the paper's code, padding is never counted.
    """

    facts: ClassVar[tuple[str, ...]] = ("maximum", "minimum", "mean", "std")
    each: ClassVar[Literal["row", "example"]] = "example"
    labels: ClassVar[Mapping[str, str]] = {
        "maximum": "largest weight", "minimum": "smallest weight", "std": "standard deviation",
    }  # fmt: skip
    chart_name: ClassVar[str] = "extremes-of-heads"

    def gather(self, weights: Tensor, valid: Tensor) -> Tensor:
        """See :meth:`Spread.gather`."""
        # The sums must not depend on how far the example is padded, so only the cells that count are added.
        return torch.stack([_facts(head[chosen]) for head, chosen in zip(weights, valid, strict=True)])[..., None]

    def gather_compiled(self, weights: Tensor, valid: Tensor, site: Site) -> Tensor | None:
        """See :meth:`Spread.gather_compiled`."""
        facts = describe(weights, valid, site, extremes=True)
        return None if facts is None or facts.extremes is None else facts.extremes[..., None]


def _facts(weights: Tensor) -> Tensor:
    """Float64 ``[4]`` of the weights ``[N]`` of one head; zeros if there are none."""
    if not weights.numel():
        return weights.new_zeros(4)
    return torch.stack([weights.max(), weights.min(), weights.mean(), weights.std(correction=0)])


@register("majority")
@dataclass(eq=False)
class Majority(Spread):
    """How tokens to majority vary over query rows, as a number (``tokens``) and as a share of the row (``share``).

    The number is how many of a row's largest values together exceed one half (the paper's code counts from 0). Rows
    that never get there, as an edit may leave them, are in :meth:`missing`.
    """

    facts: ClassVar[tuple[str, ...]] = ("tokens", "share")
    labels: ClassVar[Mapping[str, str]] = {"tokens": "tokens to majority", "share": "share of the row"}
    chart_name: ClassVar[str] = "tokens-to-majority"
    extremes: ClassVar[bool] = False

    def gather(self, weights: Tensor, valid: Tensor) -> Tensor:
        """See :meth:`Spread.gather`."""
        tokens, reached = majority(to_fixed(weights))
        return self._of_rows(tokens, reached, valid.sum(-1))

    def gather_compiled(self, weights: Tensor, valid: Tensor, site: Site) -> Tensor | None:
        """See :meth:`Spread.gather_compiled`."""
        facts = describe(weights, valid, site, majority=True)
        if facts is None or facts.majority is None:
            return None
        return self._of_rows(facts.majority, facts.majority > 0, facts.sizes)

    @staticmethod
    def _of_rows(tokens: Tensor, reached: Tensor, sizes: Tensor) -> Tensor:
        number = tokens.double().masked_fill(~reached, torch.nan)
        return torch.stack([number, number / sizes.clamp(min=1)], 1)
