"""What a set of trainings says: agreements of probes, and how long proxies stay ahead of real attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import DataError
from .readings import METRICS, Course, Overtaken, ProbeAgreement, Readings, agree, chances, overtaken
from .trainings import Trained

MATCH = "top 5% match"
COMPARED = {
    "unif": "alpha of the gold run, ranked by beta of the uniform run",
    "px": "embedding proxy, ranked by beta of the uniform run",
    "logistic": "logistic proxy, ranked by beta of the uniform run",
    "counts": "count proxy, ranked by beta of the uniform run",
    "grad": "delta of the gold run, ranked by beta of the uniform run",
    "normal": "alpha of the gold run, ranked by beta of ordinary runs",
    "alpha": "alpha of the gold run, ranked by alpha of ordinary runs",
}
"""What is compared under each key: the chooser, and the ranker."""


@dataclass(frozen=True)
class Intervened:
    """What runs with something done to attention do, mean over their seeds.

    Attributes
    ----------
    alpha, beta : of these runs as rankers of the gold run's alpha.
    performance : of these runs.
    first : the first steps at which beta and alpha are above the bar that ``Summary.beta_first`` is about.
    """

    alpha: Course
    beta: Course
    performance: Course
    first: dict[str, int | None]


@dataclass(frozen=True)
class Summary:
    """The results of one data set, metric, split and performance.

    Attributes
    ----------
    selected_on : the data whose accuracy chose the checkpoint of the gold run: ``held-out``, or the split itself as in
        the released code.
    gold_step : that checkpoint.
    best_perf : performance of the gold run there.
    courses : every agreement of ``COMPARED`` but ``alpha`` over the checkpoints of the ranker; ``best`` is that run's
        best one, or that of the mean performance of several runs.
    agreements : the same, and ``alpha``, at the maximum, with interval and chance.
    xi : where ordinary runs overtake each maximum.
    alpha_course : alpha of the gold run against alpha of the ordinary runs, mean over these.
    alpha_courses : the same, run by run.
    performance_course : performance of the ordinary runs, mean over these.
    own_delta : of the gold run, its own alpha ranked by its own delta, over its checkpoints; None without delta.
    baseline : what chance gives on average when alpha of the ordinary runs ranks.
    beta_first : the first steps at which beta, and alpha, of the ordinary runs agree with the gold alpha half as well
        as alpha ever does.
    interventions : the same for runs with something done to attention, by the names of the interventions.
    """

    dataset: str
    metric: str
    split: str
    performance: str
    selected_on: str
    gold_step: int
    best_perf: float
    courses: dict[str, Course]
    agreements: dict[str, ProbeAgreement]
    xi: dict[str, Overtaken]
    alpha_course: Course
    alpha_courses: list[Course]
    performance_course: Course
    own_delta: Course | None
    baseline: float
    beta_first: dict[str, int | None]
    interventions: dict[str, Intervened] = field(default_factory=dict)

    @property
    def every_course(self) -> dict[str, Course]:
        """The courses by the keys of ``COMPARED``."""
        return {**self.courses, "alpha": self.alpha_course}

    def details(self) -> dict[str, dict[str, Any]]:
        """Every agreement with interval, chance, last value, value at the best checkpoint, and the step of xi."""
        found: dict[str, dict[str, Any]] = {}
        for key, course in self.every_course.items():
            one = self.agreements.get(key)
            found[key] = {
                "maximum": course.maximum,
                "maximum_step": course.maximum_step,
                "interval": None if one is None else [one.low, one.high],
                "chance": None if one is None else one.chance,
                "last": course.last,
                "at_best": None if course.best is None else course.at_best,
                "best_step": course.best,
                "xi_step": self.xi[key].step if key in self.xi else None,
                "values": list(course.values),
            }
        return found

    def released(self) -> dict[str, Any]:
        """The values under the keys of the released code."""
        found: dict[str, Any] = {f"agr_{key}": course.maximum for key, course in self.courses.items()}
        found |= {f"xi_{key}": one.performance for key, one in self.xi.items()}
        return {
            **found,
            "best_perf": self.best_perf,
            "baseline": self.baseline,
            "alpha_corrs": list(self.alpha_course.values),
            "alpha_perfs": list(self.performance_course.values),
            "iterations": list(self.alpha_course.steps),
        }


def mean_agreement(chooser: Readings, ranker: Readings, metric: str) -> float:
    """The mean over all predictions that have a number."""
    numbers = METRICS[metric](chooser, ranker)
    known = numbers[~np.isnan(numbers)]
    if not known.size:
        # An exactly even alpha ranks nothing: there is no rank correlation with it.
        return 0.0
    return float(known.mean())


def summarise(
    dataset: str,
    gold: Trained,
    uniform: Trained,
    others: Sequence[Trained],
    proxies: Mapping[str, Readings],
    changed: Mapping[str, Sequence[Trained]] | None = None,
    *,
    split: str = "val",
    metric: str = MATCH,
    performance: str = "acc",
    scale: float = 1.0,
    selected_on: str = "held-out",
    resamples: int = 1000,
) -> Summary:
    """Compare everything with everything that the paper compares.

    Parameters
    ----------
    proxies : readings of the split by the keys of ``COMPARED`` (px, logistic, counts).
    changed : the runs of each intervention.
    scale : what performances are multiplied with (100 for per cent).
    """
    if not others:
        raise DataError("Agreements of attention need at least one ordinary run beside the gold one.")
    choice = "acc" if selected_on == "held-out" else performance
    gold_step = gold.best_step(selected_on, choice)
    best_uniform = uniform.best_step(selected_on, choice)
    alpha = gold.readings("alpha", gold_step, split)

    def course(chooser: Readings, ranker: Trained, kind: str, best: int | None = None) -> Course:
        values = [mean_agreement(chooser, ranker.readings(kind, step, split), metric) for step in ranker.steps]
        return Course(ranker.steps, tuple(values), best)

    choosers: dict[str, Readings] = {"unif": alpha, **proxies}
    own_delta = None
    if gold.training.delta:
        choosers["grad"] = gold.readings("grad", gold_step, split)
        pairs = [(gold.readings("alpha", step, split), gold.readings("grad", step, split)) for step in gold.steps]
        own_delta = Course(gold.steps, tuple(mean_agreement(*pair, metric) for pair in pairs))
    courses = {key: course(chooser, uniform, "beta", best_uniform) for key, chooser in choosers.items()}
    # The best checkpoint of several runs is that of their mean performance, on the data that chooses.
    best_others = Course.mean([other.performance(selected_on, choice) for other in others]).maximum_step
    courses["normal"] = Course.mean([course(alpha, other, "beta") for other in others], best_others)
    agreements = {
        key: agree(
            choosers[key], uniform.readings("beta", courses[key].maximum_step, split), metric, resamples=resamples
        )
        for key in choosers
    }
    alpha_courses = [course(alpha, other, "alpha") for other in others]
    alpha_course = Course.mean(alpha_courses, best_others)
    for key, kind, step in (
        ("normal", "beta", courses["normal"].maximum_step),
        ("alpha", "alpha", alpha_course.maximum_step),
    ):
        rankers = [other.readings(kind, step, split) for other in others]
        agreements[key] = agree(alpha, rankers, metric, resamples=resamples)

    def performances(runs: Sequence[Trained]) -> list[Course]:
        return [_scaled(one.performance(split, performance), scale) for one in runs]

    chance = [float(chances(other.readings("alpha", step, split)).mean()) for other in others for step in other.steps]
    baseline = float(np.mean(chance)) if metric == MATCH else 0.0
    bar = (baseline + alpha_course.maximum) / 2

    def intervened(runs: Sequence[Trained]) -> Intervened:
        both = {kind: Course.mean([course(alpha, one, kind) for one in runs]) for kind in ("beta", "alpha")}
        first = {kind: one.crossing(bar) for kind, one in both.items()}
        return Intervened(both["alpha"], both["beta"], Course.mean(performances(runs)), first)

    return Summary(
        dataset=dataset,
        metric=metric,
        split=split,
        performance=performance,
        selected_on=selected_on,
        gold_step=gold_step,
        best_perf=_scaled(gold.performance(split, performance), scale).values[gold.steps.index(gold_step)],
        courses=courses,
        agreements=agreements,
        xi={key: overtaken(alpha_courses, performances(others), one.maximum) for key, one in courses.items()},
        alpha_course=alpha_course,
        alpha_courses=alpha_courses,
        performance_course=Course.mean(performances(others)),
        own_delta=own_delta,
        baseline=baseline,
        beta_first={"beta": courses["normal"].crossing(bar), "alpha": alpha_course.crossing(bar)},
        interventions={label: intervened(runs) for label, runs in (changed or {}).items()},
    )


def _scaled(course: Course, scale: float) -> Course:
    return Course(course.steps, tuple(scale * value for value in course.values), course.best)
