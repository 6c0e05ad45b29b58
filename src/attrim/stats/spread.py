"""The shared part of stats that tell how a few facts vary: mean, standard deviation and extremes for each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import UnknownName
from .fixed import add_words, from_wide, to_fixed
from .sitewise import Rule, SiteStat


@dataclass(eq=False)
class Spread(SiteStat):
    """Base of stats that gather facts about rows or examples; subclasses name the facts and write ``watch``.

    Every method gives float64 ``[sites, heads]`` for one fact. What is added up is fixed point, so that the order of
    the examples does not matter.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "sum": "wide", "squares": "wide", "maximum": "maximum", "minimum": "minimum",
    }  # fmt: skip
    facts: ClassVar[tuple[str, ...]]

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

    def add(self, kept: dict[str, Tensor], values: Tensor, real: Tensor, missing: Tensor | None = None) -> None:
        """Add facts to the tensors of a site.

        Parameters
        ----------
        values : float64 ``[H, facts, N]``.
        real : bool ``[H, N]``, which of the N count.
        missing : bool ``[H, N]``, those that should count but have no such facts.
        """
        chosen = real[:, None].expand_as(values)
        values = torch.where(chosen, values, 0.0)
        kept["count"] += real.sum(-1).cpu()
        if missing is not None:
            kept["missing"] += missing.sum(-1).cpu()
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

    def _place(self, fact: str) -> int:
        if fact not in self.facts:
            raise UnknownName("fact", fact, self.facts)
        return self.facts.index(fact)
