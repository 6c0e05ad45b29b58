"""The one record of every probe: a score for each key of each prediction; and how well two of them agree.

Probes are compared within a prediction (one label, or one target token). What is compared with what has a role: the
**chooser** says which key it would choose, the **ranker** has to have that key among its highest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, ParameterError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TOP = 5
"""Per cent of a prediction's keys that count as the highest."""


@dataclass(frozen=True, eq=False)
class Readings:
    """What a probe says about some predictions; padding is cut away.

    Attributes
    ----------
    scores : float64 ``[cells]``, one prediction after another.
    lengths : int64 ``[predictions]``, how many keys each has.
    sentences : int64 ``[predictions]``, the example that each belongs to, in ascending order; a translation has one
        prediction for each target token.
    """

    scores: Floats
    lengths: Integers
    sentences: Integers

    def __post_init__(self) -> None:
        bad = int((~np.isfinite(self.scores)).sum())
        if bad:
            raise DataError(
                f"A probe gave {bad} numbers of {self.scores.size} that are not finite; compute in float32 or float64, "
                "and check the weights of the checkpoint."
            )
        if not len(self.lengths) or int(self.lengths.min()) < 1 or int(self.lengths.sum()) != self.scores.size:
            raise DataError("Readings need at least one prediction, and each prediction at least one key.")
        if len(self.sentences) != len(self.lengths) or bool((np.diff(self.sentences) < 0).any()):
            raise DataError("Readings need the example of each prediction, in order.")

    @classmethod
    def of(cls, matrices: Iterable[Any], masks: Iterable[Any] | None = None) -> Readings:
        """The readings of examples, from a matrix ``[queries, keys]`` (or a vector ``[keys]``) for each.

        Parameters
        ----------
        masks : bool of the same shapes, False where there is no query or no key; None cuts nothing.
        """
        scores: list[Floats] = []
        lengths: list[int] = []
        sentences: list[int] = []
        matrices = list(matrices)
        for number, (matrix, mask) in enumerate(zip(matrices, masks or [None] * len(matrices), strict=True)):
            rows = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
            cells = np.ones(rows.shape, bool) if mask is None else np.atleast_2d(np.asarray(mask, dtype=bool))
            for row, real in zip(rows, cells, strict=True):
                if real.any():
                    scores.append(row[real])
                    lengths.append(int(real.sum()))
                    sentences.append(number)
        flat = np.concatenate(scores) if scores else np.zeros(0)
        return cls(flat, np.array(lengths, dtype=np.int64), np.array(sentences, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def __neg__(self) -> Readings:
        return Readings(-self.scores, self.lengths, self.sentences)

    @property
    def starts(self) -> Integers:
        """Where each prediction begins, int64 ``[predictions]``."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    def rows(self) -> list[Floats]:
        """The scores of each prediction."""
        return np.split(self.scores, self.starts[1:])

    def choices(self) -> Integers:
        """The key with the highest score of each prediction, the first of equal ones, int64 ``[predictions]``."""
        starts = self.starts
        highest = np.repeat(np.maximum.reduceat(self.scores, starts), self.lengths)
        places = np.where(self.scores == highest, np.arange(self.scores.size), self.scores.size)
        return np.minimum.reduceat(places, starts) - starts

    def above(self) -> Integers:
        """How many scores of the same prediction are above each one, int64 ``[cells]``."""
        owner = np.repeat(np.arange(len(self)), self.lengths)
        order = np.lexsort((-self.scores, owner))
        sorted_scores, sorted_owner = self.scores[order], owner[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (sorted_scores[1:] != sorted_scores[:-1]) | (sorted_owner[1:] != sorted_owner[:-1])
        first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        found = np.empty(len(order), dtype=np.int64)
        found[order] = first - self.starts[sorted_owner]
        return found

    def fits(self, other: Readings) -> None:
        """Raise an error when the two are not about the same predictions."""
        if not (np.array_equal(self.lengths, other.lengths) and np.array_equal(self.sentences, other.sentences)):
            raise DataError("Two probes are about other predictions; read them from the same examples.")


def keys_that_count(lengths: Integers, percent: int | None = TOP, most: int | None = None) -> Integers:
    """How many keys of each prediction count as its highest: the ceiling of a share of them, or ``most``."""
    if (percent is None) == (most is None):
        raise ParameterError("Give either a percentage of the keys or a number of them.")
    if most is not None:
        return np.full_like(lengths, most)
    assert percent is not None
    # In integers: the ceiling of a product of floats is wrong for 7 % of 100.
    found: Integers = -(-percent * lengths // 100)
    return found


def matches(chooser: Readings, ranker: Readings, percent: int | None = TOP, most: int | None = None) -> Floats:
    """1.0 where the chooser's key is among the ranker's highest, else 0.0; float64 ``[predictions]``.

    Keys with equal scores in the ranker favour a match. Not symmetric.
    """
    chooser.fits(ranker)
    place = ranker.starts + chooser.choices()
    higher = np.add.reduceat(ranker.scores > np.repeat(ranker.scores[place], ranker.lengths), ranker.starts)
    return (higher < keys_that_count(ranker.lengths, percent, most)).astype(np.float64)


def chances(ranker: Readings, percent: int | None = TOP, most: int | None = None) -> Floats:
    """How likely a key that is drawn at random matches, exactly and with ties; float64 ``[predictions]``."""
    enough = ranker.above() < np.repeat(keys_that_count(ranker.lengths, percent, most), ranker.lengths)
    found: Floats = np.add.reduceat(enough, ranker.starts) / ranker.lengths
    return found


def kendall(first: Readings, second: Readings) -> Floats:
    """Kendall's tau-b of each prediction, float64 ``[predictions]``; NaN where one of the two is constant."""
    from scipy.stats import kendalltau

    first.fits(second)
    pairs = zip(first.rows(), second.rows(), strict=True)
    constant = np.nan
    return np.array(
        [constant if len(one) < 2 or np.ptp(one) == 0 or np.ptp(two) == 0 else kendalltau(one, two).statistic
         for one, two in pairs]
    )  # fmt: skip


METRICS: dict[str, Callable[[Readings, Readings], Floats]] = {"top 5% match": matches, "kendall tau": kendall}
"""How two probes are compared, by the names of the original's results."""


@dataclass(frozen=True)
class ProbeAgreement:
    """How well two probes agree.

    Attributes
    ----------
    value : mean over all predictions that have a number.
    low, high : ends of the 95 % interval over sentences, drawn with replacement, each with all its predictions.
    chance : what a chooser that draws keys at random gets.
    predictions, skipped : how many there are, and how many have no number (a constant probe has no rank correlation).
    """

    value: float
    low: float
    high: float
    chance: float
    predictions: int
    skipped: int = 0


def agree(
    chooser: Readings,
    ranker: Readings | Sequence[Readings],
    metric: str = "top 5% match",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> ProbeAgreement:
    """How well the chooser's key is ranked by the ranker, with an interval that is clustered by sentence.

    Several rankers (the same probe of runs with other seeds) are averaged, prediction by prediction.
    """
    rankers = [ranker] if isinstance(ranker, Readings) else list(ranker)
    every = np.array([METRICS[metric](chooser, one) for one in rankers])
    known = ~np.isnan(every).all(0)
    if not known.any():
        raise DataError(f"No prediction has a {metric}: every probe is constant.")
    chance = float(np.mean([chances(one) for one in rankers])) if metric == "top 5% match" else 0.0
    numbers = np.nanmean(every[:, known], axis=0)
    low, high = bootstrap(numbers, chooser.sentences[known], resamples, seed)
    return ProbeAgreement(float(numbers.mean()), low, high, chance, int(known.sum()), int((~known).sum()))


def bootstrap(numbers: Floats, sentences: Integers, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of ``numbers`` over sentences that are drawn with replacement."""
    _, owner = np.unique(sentences, return_inverse=True)
    totals, counts = np.bincount(owner, numbers), np.bincount(owner)
    generator = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = generator.integers(len(totals), size=len(totals))
        means.append(totals[drawn].sum() / counts[drawn].sum())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Course:
    """A number over the checkpoints of a training.

    Attributes
    ----------
    steps : updates that were done at each checkpoint.
    values : one for each.
    best : the checkpoint at which the run performed best, chosen on other data or on these; None where none is meant.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: int | None = None

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.values):
            raise DataError(f"A course needs a number for each of its {len(self.steps)} steps, not {len(self.values)}.")

    @property
    def maximum(self) -> float:
        """The largest number, which favours courses with many checkpoints."""
        return max(self.values)

    @property
    def maximum_step(self) -> int:
        """The first step that has the largest number."""
        return self.steps[self.values.index(self.maximum)]

    @property
    def last(self) -> float:
        """The number at the last checkpoint."""
        return self.values[-1]

    @property
    def at_best(self) -> float:
        """The number at the best checkpoint."""
        if self.best is None:
            raise DataError("This course knows no best checkpoint.")
        return self.values[self.steps.index(self.best)]

    @classmethod
    def mean(cls, courses: Sequence[Course], best: int | None = None) -> Course:
        """The mean over runs, which must have the same checkpoints."""
        if len({course.steps for course in courses}) != 1:
            raise DataError("Runs with other checkpoints cannot be averaged; train them with the same schedule.")
        values = np.mean([course.values for course in courses], axis=0)
        return cls(courses[0].steps, tuple(values.tolist()), best)

    def crossing(self, bar: float) -> int | None:
        """The first step whose number is above the bar; None when there is none."""
        return next((step for step, value in zip(self.steps, self.values, strict=True) if value > bar), None)


@dataclass(frozen=True)
class Overtaken:
    """When real attention became a better predictor of the final attention than a proxy (xi of the paper).

    Attributes
    ----------
    performance : of the real runs at that checkpoint; None when they never did.
    step : of that checkpoint; None when they never did.
    """

    performance: float | None
    step: int | None


def overtaken(agreements: Sequence[Course], performances: Sequence[Course], bar: float) -> Overtaken:
    """Where the mean agreement of some runs is above ``bar`` for the first time, strictly."""
    course, performance = Course.mean(agreements), Course.mean(performances)
    if course.steps != performance.steps:
        raise DataError("ProbeAgreement and performance are of other checkpoints; read both from the same ones.")
    step = course.crossing(bar)
    return Overtaken(None if step is None else performance.values[course.steps.index(step)], step)
