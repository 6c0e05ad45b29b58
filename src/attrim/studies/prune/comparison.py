"""What removed cells cost: scores over seeds, and paired differences to the dense model and between kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...edits.ranking import PatternFacts
from ...runs.result import Columns, Interval, Metric, Result, paired_bootstrap
from ...tasks.base import Task
from .sets import OWN
from .study import DENSE, TOGETHER


@dataclass(frozen=True)
class PrunePoint:
    """One row of the table: a model with cells removed, the same for all seeds but for what the seeds change.

    Attributes
    ----------
    kind : what is removed; ``dense`` for nothing.
    role : where it is removed; ``together`` for everywhere.
    retrained : whether the model was trained with it. Dense models are.
    """

    kind: str = DENSE
    tau: float = 0.0
    retrained: bool = False
    normaliser: str = "softmax"
    role: str = TOGETHER

    @property
    def name(self) -> str:
        """What it is called in the names of results."""
        if self.kind == DENSE:
            return f"{self.normaliser}/{DENSE}"
        how = "retrained" if self.retrained else "pruned"
        return f"{self.normaliser}/{self.role}/{self.kind}/{self.tau:g}/{how}"


@dataclass(frozen=True, eq=False)
class PruneOutcome:
    """What one seed of a point gave.

    Attributes
    ----------
    results : by data set.
    facts, window : how sparse it was, as of a removal.
    shared : whether all seeds have this same one.
    """

    results: Mapping[str, Result]
    facts: PatternFacts | None = None
    window: str = ""
    shared: bool = False


PruneOutcomes = dict[PrunePoint, dict[int, PruneOutcome]]
"""Of each point, what every seed gave."""


@dataclass(frozen=True)
class PrunedRow:
    """One row of the table: a point with the numbers of all its seeds.

    Attributes
    ----------
    seeds : those that it has results of.
    sparsity : how sparse the pattern of each seed is; none for a dense model.
    windows : size and first tokens of the windows of all seeds, as ``5+1``, where the point has some.
    metrics : data set to metric to the value of each seed.
    zeros : share of the held-out data's attention weights that are zero, of each seed.
    seconds : of the evaluation on the held-out data, of each seed.
    change : data set to the first metric minus that of the dense model (of dense models, minus that of the first
        normaliser's): the mean over seeds, each against the dense model of its own seed, with its paired bootstrap
        interval over examples.
    ahead : data set to kind to the first metric minus that of the other kind, for ap.
    """

    point: PrunePoint
    seeds: tuple[int, ...]
    sparsity: tuple[PatternFacts, ...]
    windows: tuple[str, ...]
    metrics: dict[str, dict[str, tuple[float, ...]]]
    zeros: tuple[float, ...]
    seconds: tuple[float, ...]
    change: dict[str, Interval] = field(default_factory=dict)
    ahead: dict[str, dict[str, Interval]] = field(default_factory=dict)

    def scores(self, metric: str, data: str = OWN) -> tuple[float, ...]:
        """A metric of every seed on a data set."""
        return self.metrics[data][metric]

    @property
    def effective(self) -> float | None:
        """The share of the cells that is removed, the mean over seeds; None for a dense model."""
        return float(np.mean([facts.effective for facts in self.sparsity])) if self.sparsity else None

    @property
    def kept_mass(self) -> float | None:
        """The share of the average attention on cells that are kept, the mean over seeds; None for a dense model."""
        return float(np.mean([facts.kept_mass for facts in self.sparsity])) if self.sparsity else None


class Comparing:
    """Makes rows of outcomes; intervals are computed once.

    Parameters
    ----------
    task : says what the metrics are.
    """

    def __init__(self, task: Task) -> None:
        self.metric: Metric = next(iter(task.metrics.values()))
        self._known: dict[tuple[str, ...], Interval] = {}

    def rows(self, outcomes: PruneOutcomes) -> tuple[PrunedRow, ...]:
        """A row for each point, in their order."""
        return tuple(self._row(point, own, outcomes) for point, own in outcomes.items())

    def _row(self, point: PrunePoint, own: Mapping[int, PruneOutcome], outcomes: PruneOutcomes) -> PrunedRow:
        sets = list(next(iter(own.values())).results)
        results = {data: [outcome.results[data] for outcome in own.values()] for data in sets}
        row = PrunedRow(
            point=point,
            seeds=tuple(own),
            sparsity=tuple(outcome.facts for outcome in own.values() if outcome.facts is not None),
            windows=tuple(dict.fromkeys(outcome.window for outcome in own.values() if outcome.window)),
            metrics={
                data: {name: tuple(result.metrics[name] for result in each) for name in each[0].metrics}
                for data, each in results.items()
            },
            zeros=tuple(result.zero_share for result in results[OWN]),
            seconds=tuple(result.seconds for result in results[OWN]),
        )
        # Another normaliser is compared with the first, and everything else with the dense model of its own.
        models = [other for other in outcomes if other.kind == DENSE]
        dense = next(each for each in models if point.kind == DENSE or each.normaliser == point.normaliser)
        if dense == point:
            return row
        for data in sets:
            row.change[data] = self.difference(own, outcomes[dense], data)
            row.ahead[data] = {
                other.kind: self.difference(own, outcomes[other], data)
                for other in outcomes
                if point.kind == "ap" and other.kind != "ap" and replace(other, kind="ap") == point
            }
        return row

    def difference(self, own: Mapping[int, PruneOutcome], other: Mapping[int, PruneOutcome], data: str) -> Interval:
        """The mean over seeds of the first metric minus that of the other, with its interval over examples.

        Where one side has a single model for all seeds, every seed is compared with it.
        """
        seeds = [seed for seed in dict.fromkeys((*own, *other)) if _has(own, seed) and _has(other, seed)]
        pairs = [(_of(other, seed).results[data], _of(own, seed).results[data]) for seed in seeds]
        names = tuple(result.name for pair in pairs for result in pair)
        if names not in self._known:
            before, after = ([pair[side] for pair in pairs] for side in (0, 1))
            self._known[names] = paired_bootstrap(
                pooled(self.metric, len(pairs)), _side_by_side(before), _side_by_side(after)
            )
        return self._known[names]


def pooled(metric: Metric, count: int) -> Metric:
    """The mean of a metric over ``count`` models, whose columns have their number before their names.

    In a bootstrap all models have the same examples, so that it knows how sure the mean is for these models.
    """

    def mean(columns: Columns) -> Any:
        names = [name.partition("/")[2] for name in columns if name.startswith("0/")]
        return np.mean(
            [metric({name: columns[f"{number}/{name}"] for name in names}) for number in range(count)], axis=0
        )

    return mean


def _side_by_side(results: Sequence[Result]) -> dict[str, Any]:
    return {
        f"{number}/{name}": column for number, result in enumerate(results) for name, column in result.columns.items()
    }


def _has(outcomes: Mapping[int, PruneOutcome], seed: int) -> bool:
    return seed in outcomes or any(outcome.shared for outcome in outcomes.values())


def _of(outcomes: Mapping[int, PruneOutcome], seed: int) -> PruneOutcome:
    return outcomes[seed] if seed in outcomes else next(iter(outcomes.values()))
