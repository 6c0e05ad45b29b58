"""What removing more and more heads does to a score, and how two ways of doing it compare over the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runs.result import Columns, Interval, Result
from ...scores.base import Scope
from ...tasks.base import Task

RESAMPLES, LEVEL = 1000, 0.95
BLOCK = 2_000_000
"""Values that are gathered at once while resampling; bounds the memory whatever the number of examples."""


@dataclass(frozen=True)
class PruningStep:
    """One point of a curve.

    Attributes
    ----------
    share : the step as it was asked for.
    removed : how many units are removed.
    score : the first metric of the task.
    low, high : ends of its bootstrap interval over examples.
    right, wrong : the metric over the examples that the unpruned model answers rightly and wrongly; None where the task
        does not tell, or there are no such examples.
    """

    share: float
    removed: int
    score: float
    low: float
    high: float
    right: float | None = None
    wrong: float | None = None


@dataclass(frozen=True)
class PruningCurve:
    """What removing more and more heads does.

    Attributes
    ----------
    direction : empty for random orders, where both are the same.
    seed : of a random order.
    area : the mean of the metric over all steps, with the interval over examples.
    right_area, wrong_area : the same over those that the unpruned model answers rightly and wrongly.
    """

    scope: Scope
    score: str
    direction: str
    seed: int | None
    steps: tuple[PruningStep, ...]
    area: Interval
    right_area: float | None = None
    wrong_area: float | None = None

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return curve_name(self.scope, self.score, self.direction, self.seed)


@dataclass(frozen=True)
class Difference:
    """Area of one score minus that of another, over the same examples; of random orders the mean over seeds."""

    scope: Scope
    direction: str
    one: str
    other: str
    area: Interval


def curve_name(scope: str, score: str, direction: str, seed: int | None) -> str:
    """What tells a curve from the others."""
    return "/".join(filter(None, (scope, score, direction, "" if seed is None else f"seed-{seed}")))


class Comparison:
    """Curves compared on the same resampled examples, so that every difference is paired.

    Parameters
    ----------
    results : name of the curve to the result of every step.
    hits : bool ``[N]``, which examples the unpruned model answers rightly; None where the task does not tell.
    """

    def __init__(
        self, task: Task, results: Mapping[str, Mapping[float, Result]], hits: NDArray[np.bool_] | None
    ) -> None:
        self.metric = next(iter(task.metrics.values()))
        self.results, self.hits = results, hits
        unique = {id(result): result for steps in results.values() for result in steps.values()}
        self._drawn = dict(zip(unique, self._resampled(list(unique.values())), strict=True))

    def _resampled(self, results: Sequence[Result]) -> NDArray[np.float64]:
        """Float64 ``[results, resamples]``: the metric of every result on the same draws of examples."""
        size = len(next(iter(results[0].columns.values())))
        generator = np.random.default_rng(0)
        values = np.empty((len(results), RESAMPLES))
        block = max(1, BLOCK // size)
        for start in range(0, RESAMPLES, block):
            index = generator.integers(size, size=(min(block, RESAMPLES - start), size))
            for row, result in zip(values, results, strict=True):
                row[start : start + len(index)] = self.metric({k: v[index] for k, v in result.columns.items()})
        return values

    def curve(
        self, scope: Scope, score: str, direction: str, seed: int | None, name: str, counts: Mapping[float, int]
    ) -> PruningCurve:
        """One curve with its intervals."""
        steps = []
        for step, result in self.results[name].items():
            low, high = self._ends(self._drawn[id(result)])
            value = float(self.metric(result.columns))
            parts = (self._part(result, right) for right in (True, False))
            steps.append(PruningStep(step, counts[step], value, low, high, *parts))
        areas = [[getattr(step, part) for step in steps] for part in ("right", "wrong")]
        means = [None if None in each else float(np.mean(each)) for each in areas]
        area = self._interval(float(np.mean([step.score for step in steps])), self._areas(name))
        return PruningCurve(scope, score, "" if seed is not None else direction, seed, tuple(steps), area, *means)

    def differences(self, curves: Sequence[PruningCurve]) -> tuple[Difference, ...]:
        """Every score against every later one, for each scope and direction."""
        found = []
        for scope in dict.fromkeys(curve.scope for curve in curves):
            own = [curve for curve in curves if curve.scope == scope]
            for direction in dict.fromkeys(curve.direction for curve in own if curve.direction):
                groups: dict[str, list[PruningCurve]] = {}
                for curve in own:
                    if curve.direction in (direction, ""):
                        groups.setdefault(curve.score, []).append(curve)
                names = list(groups)
                for place, one in enumerate(names):
                    for other in names[place + 1 :]:
                        drawn = self._mean_area(groups[one]) - self._mean_area(groups[other])
                        value = _mean(groups[one]) - _mean(groups[other])
                        found.append(Difference(scope, direction, one, other, self._interval(value, drawn)))
        return tuple(found)

    def _areas(self, name: str) -> NDArray[np.float64]:
        return np.mean([self._drawn[id(result)] for result in self.results[name].values()], axis=0)

    def _mean_area(self, curves: Sequence[PruningCurve]) -> NDArray[np.float64]:
        return np.mean([self._areas(curve.name) for curve in curves], axis=0)

    def _part(self, result: Result, right: bool) -> float | None:
        """The metric over the examples that the unpruned model answers rightly, or over the others."""
        chosen = None if self.hits is None else self.hits == right
        if chosen is None or not chosen.any():
            return None
        part: Columns = {name: column[chosen] for name, column in result.columns.items()}
        return float(self.metric(part))

    @staticmethod
    def _ends(drawn: NDArray[np.float64]) -> tuple[float, float]:
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def _interval(self, value: float, drawn: NDArray[np.float64]) -> Interval:
        return Interval(value, *self._ends(drawn), LEVEL)


def _mean(curves: Sequence[PruningCurve]) -> float:
    return float(np.mean([curve.area.value for curve in curves]))
