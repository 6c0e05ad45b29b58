"""How sure a head is of its first choice (Voita et al. 2019, https://arxiv.org/abs/1905.09418)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from ..core.call import Call
from ..edits.base import Edit
from .base import Score, ScoreInputs, Scores, register
from .taps import Tapped
from .target import unlabelled


@dataclass(frozen=True, eq=False)
class RowMaxima(Edit):
    """Changes nothing, and keeps the mean of the largest weight of each row.

    Parameters
    ----------
    skip_end : see :class:`Confidence`.
    means : filled while the model runs: ``[B, H]`` by site name.
    """

    skip_end: bool = True
    means: dict[str, Tensor] = field(default_factory=dict)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The same weights ``[B, H, Q, K]``."""
        queries, keys = call.queries, call.keys
        asked, answering = call.site.streams
        if self.skip_end and answering != "vision":
            keys = _without_last(keys)
            queries = _without_last(queries) if asked == answering else queries
        largest = weights.detach().masked_fill(~keys[:, None, None, :], 0).amax(-1)
        rows = queries[:, None, :]
        self.means[call.site.name] = (largest * rows).sum(-1) / rows.sum(-1).clamp(min=1)
        return weights


@register("confidence")
@dataclass(frozen=True, kw_only=True)
class Confidence(Score):
    """Mean over the tokens of the largest weight in a head's row, from 0 to 1; needs no labels.

    Parameters
    ----------
    skip_end : leave the last real token of a text out, as query and as key: many heads rest there. The regions of
        a model's vision part have no such token; set it to false for models that see nothing but images.
    """

    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    skip_end: bool = True

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        tapped, maxima = Tapped(given.model, given.batches, given.select), RowMaxima(self.skip_end)
        with tapped.attached(maxima):
            values = self.reduce(self._means(tapped, maxima))
        return self.scores(values, tapped.sites)

    def _means(self, tapped: Tapped, maxima: RowMaxima) -> Iterator[dict[str, Tensor]]:
        for batch in tapped.batches():
            maxima.means.clear()
            tapped.model(**unlabelled(batch))
            yield {name: mean.double().cpu() for name, mean in maxima.means.items()}


def _without_last(real: Tensor) -> Tensor:
    """Bool ``[B, L]`` without the last True of each row."""
    after = real.flip(-1).cumsum(-1).flip(-1)  # how many real tokens there are from here on
    return real & (after > 1)
