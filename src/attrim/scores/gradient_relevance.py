"""Gradient x relevance, positive cells only: the head weights of relevance maps (https://arxiv.org/abs/2012.09838)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .base import Score, ScoreInputs, Scores, register
from .lrp import relevance_of, total_facts
from .relevance import Relevance, Rules
from .taps import Cells, Tapped, WeightTap, gradients
from .target import explained, places_of, unlabelled


@register("gradient-relevance")
@dataclass(frozen=True, kw_only=True)
class GradientRelevance(Score):
    """Gradient times relevance of a head's attention, the positive cells: what speaks for the answer and reaches it.

    Parameters
    ----------
    rules, cells : see :class:`~attrim.scores.lrp.LayerRelevance`, whose facts the result has too.
    """

    targets = ("predicted", "label", "id")
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    rules: Rules = "original"
    cells: Cells = "sum"

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        tapped, tap = Tapped(given.model, given.batches), WeightTap()
        totals: list[Tensor] = []
        with tapped.attached(tap):
            values = self.reduce(self._products(tapped, tap, totals))
        return self.scores(values, tapped.sites, total_facts(totals))

    def _products(self, tapped: Tapped, tap: WeightTap, totals: list[Tensor]) -> Iterator[dict[str, Tensor]]:
        run = Relevance(tapped.model, self.rules)
        for batch in tapped.batches():
            tap.clear()
            inputs = unlabelled(batch)
            places = places_of(tapped.model, tapped.model(**inputs), batch)
            slopes = gradients(explained(places, self.target).sum(), tap.tensors)
            tap.clear()
            places = places_of(tapped.model, run(**inputs), batch)
            relevance, reached = relevance_of(explained(places, self.target), tap, run)
            totals.append(reached)
            # Relevance passes wherever a gradient does.
            products = {name: (slopes[name] * each).clamp(min=0) for name, each in relevance.items()}
            yield tapped.filled(tap.sums(products, self.cells), len(places.logits))
