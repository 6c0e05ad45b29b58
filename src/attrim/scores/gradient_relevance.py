"""Gradient x relevance, positive cells only: the head weights of relevance maps (https://arxiv.org/abs/2012.09838)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .base import register
from .lrp import RelevanceScore, relevance_of
from .relevance import Relevance
from .taps import Tapped, WeightTap, gradients
from .target import explained, places_of, unlabelled


@register("gradient-relevance")
@dataclass(frozen=True, kw_only=True)
class GradientRelevance(RelevanceScore):
    """Gradient times relevance of a head's attention, the positive cells: what speaks for the answer and reaches it."""

    def products(self, tapped: Tapped, tap: WeightTap, totals: list[Tensor]) -> Iterator[dict[str, Tensor]]:
        """See :meth:`RelevanceScore.products`."""
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
