"""Gradient x attention: how much each head argues for an answer (https://arxiv.org/abs/2103.15679 for the product)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .base import Score, ScoreInputs, Scores, register
from .taps import Cells, OutputTap, Tapped, gradients
from .target import explained, places_of, unlabelled


@register("gradient-attention")
@dataclass(frozen=True, kw_only=True)
class GradientAttention(Score):
    """Gradient times attention of the explained logit, with its sign; heads that argue for the answer are large.

    The sum over the cells of a head's attention is the derivative of the logit by a factor before the head, so that
    its negative is, to first order, what removing the head does. It is computed from the head's output, so the model
    stays on its fused attention kernel, for all examples of a batch at once.

    Parameters
    ----------
    cells : the sum over the cells of attention, or their mean, which divides by the number of real queries and keys:
        that makes the heads of long sequences small where streams have different lengths.
    absolute : without the sign, for each example: heads that argue against the answer count as those that do for it.
    """

    targets = ("predicted", "label", "id")
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    cells: Cells = "sum"
    absolute: bool = False

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        tapped, tap = Tapped(given.model, given.batches, given.select), OutputTap()
        with tapped.attached(tap):
            values = self.reduce(self._products(tapped, tap))
        return self.scores(values, tapped.sites)

    def _products(self, tapped: Tapped, tap: OutputTap) -> Iterator[dict[str, Tensor]]:
        for batch in tapped.batches():
            tap.clear()
            places = places_of(tapped.model, tapped.model(**unlabelled(batch)), batch)
            slopes = gradients(explained(places, self.target).sum(), tap.tensors)
            # Over the cells it is the same as gradient x output over the numbers of the output.
            products = {name: slope * tap.tensors[name].detach() for name, slope in slopes.items()}
            found = tapped.filled(tap.sums(products, self.cells), len(places.logits))
            yield {name: each.abs() for name, each in found.items()} if self.absolute else found
