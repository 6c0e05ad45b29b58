"""LRP: how much of the answer's relevance each head's attention gets (Voita et al. 2019, https://arxiv.org/abs/1905.09418)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Score, ScoreInputs, Scores, register
from .relevance import Relevance, Rules
from .taps import Cells, Tapped, WeightTap
from .target import explained, places_of, unlabelled


@dataclass(frozen=True, kw_only=True)
class RelevanceScore(Score):
    """Base of scores that need the relevance of attention.

    The facts of the result are the smallest and the largest total of relevance that arrived at the input of the first
    layers, over the examples: 1, where none is lost.

    Parameters
    ----------
    rules : ``original`` for those that were published. ``safe`` for those where a divisor near zero cannot explode by
        its sign and a sum does not turn the sign of a branch; heads may then get large numbers of both signs.
    cells : the sum over the cells of attention, or their mean over real queries and keys.
    """

    targets = ("predicted", "label", "id")
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    rules: Rules = "original"
    cells: Cells = "sum"

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        # Every site is tapped, because fused kernels hide the product that relevance must pass.
        tapped, tap = Tapped(given.model, given.batches), WeightTap()
        totals: list[Tensor] = []
        with tapped.attached(tap):
            values = self.reduce(self.products(tapped, tap, totals))
        reached = torch.cat(totals)
        facts = {"lowest_total": float(reached.min()), "highest_total": float(reached.max())}
        return self.scores(values, tapped.sites, facts)

    def products(self, tapped: Tapped, tap: WeightTap, totals: list[Tensor]) -> Iterator[dict[str, Tensor]]:
        """The numbers ``[B, H]`` of each batch by site name; adds the totals ``[B]`` of relevance that arrived."""
        raise NotImplementedError


@register("lrp")
@dataclass(frozen=True, kw_only=True)
class LayerRelevance(RelevanceScore):
    """Relevance that layer-wise propagation gives to a head's attention, with its sign; the whole answer has 1.

    Over the cells of a head it is half of the relevance of the head's output.

    Parameters
    ----------
    absolute : without the sign, for each example.
    """

    absolute: bool = False

    def products(self, tapped: Tapped, tap: WeightTap, totals: list[Tensor]) -> Iterator[dict[str, Tensor]]:
        """See :meth:`RelevanceScore.products`."""
        run = Relevance(tapped.model, self.rules)
        for batch in tapped.batches():
            tap.clear()
            places = places_of(tapped.model, run(**unlabelled(batch)), batch)
            relevance, reached = relevance_of(explained(places, self.target), tap, run)
            totals.append(reached)
            found = tapped.filled(tap.sums(relevance, self.cells), len(places.logits))
            yield {name: each.abs() for name, each in found.items()} if self.absolute else found


def relevance_of(numbers: Tensor, tap: WeightTap, run: Relevance) -> tuple[dict[str, Tensor], Tensor]:
    """Relevance ``[B, H, Q, K]`` of attention by site name, and its totals ``[B]`` at the input, of numbers ``[B]``."""
    wanted = [*tap.tensors.values(), *run.sources]
    found = torch.autograd.grad(numbers.sum(), wanted, allow_unused=True)
    relevance = {name: each for name, each in zip(tap.tensors, found, strict=False) if each is not None}
    return relevance, run.totals(found[len(tap.tensors) :]).cpu()
