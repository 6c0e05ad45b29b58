"""How far a head's attention is from its constant: a score that needs no training and no labels."""

from __future__ import annotations

from dataclasses import dataclass

from ..edits.base import Edit
from ..edits.constant import Constant
from ..measurement import measure
from ..stats.distance import RowDivergence
from .base import Score, ScoreInputs, Scores, register


@register("divergence")
@dataclass(frozen=True, kw_only=True)
class Divergence(Score):
    """Mean Jensen-Shannon divergence between the rows of a head's attention and its constant; needs no labels."""

    needs = frozenset({"batches", "constants"})
    units = ("head", "site", "block")

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        constants = given.constants
        stat = RowDivergence(constants if isinstance(constants, Edit) else Constant(constants))
        measure(given.model, given.batches, stat, given.select, progress=given.progress)
        return self.scores(stat.values(), {record.site: record.heads for record in stat.records.values()})
