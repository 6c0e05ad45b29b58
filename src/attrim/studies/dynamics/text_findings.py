"""What the experiments on texts found: agreements, how long proxies stay ahead, and whether beta came before alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.charts import Axis, Chart, Column, Curve, Reference, Series, Table, TrainingSteps, file_name
from ..findings import Findings
from .readings import Course
from .summary import COMPARED, Intervened, Summary
from .text_studies import TextStudy


@dataclass(frozen=True, eq=False, kw_only=True)
class TextFindings(Findings):
    """The summaries of all data sets, metrics, splits and performances."""

    study: TextStudy
    summaries: list[Summary]

    @property
    def main(self) -> list[Summary]:
        """The summaries that charts show: the match on the test data, with the checkpoint chosen by held-out data."""
        found = [one for one in self.summaries if one.split == "val" and one.performance == "acc"]
        return [one for one in found if one.metric == found[0].metric and one.selected_on == found[0].selected_on]

    def tables(self) -> list[Table]:
        """Agreements at their maximum; xi; interventions; intervals and whole courses."""
        keys = [key for key in COMPARED if any(key in one.every_course for one in self.summaries)]
        ahead = [key for key in keys if key != "alpha"]
        found = [self._agreements(keys), self._overtaken(ahead)]
        if any(one.interventions for one in self.summaries):
            found.append(self._interventions())
        return [*found, self._intervals(), self._courses()]

    def _agreements(self, keys: Sequence[str]) -> Table:
        columns = [*_LABELS, *(Column(key, "number", 3) for key in keys), Column("chance", "number", 3)]
        rows = [
            [
                *_labels(one),
                *(one.every_course[key].maximum if key in one.every_course else None for key in keys),
                one.baseline,
            ]
            for one in self.summaries
        ]
        caption = "; ".join(f"{key}: {COMPARED[key]}" for key in keys)
        caption += ". At the checkpoint of the ranking run at which the agreement is highest, as in the released code."
        return Table("agreements", "Agreement of probes", columns=columns, rows=rows, caption=caption)

    def _overtaken(self, keys: Sequence[str]) -> Table:
        columns = [*_LABELS, *(Column(key, "number", 3) for key in keys), Column("best", "number", 3)]
        rows = [
            [*_labels(one), *(one.xi[key].performance if key in one.xi else None for key in keys), one.best_perf]
            for one in self.summaries
        ]
        caption = (
            "Performance of the ordinary runs when their own attention agrees better with that of the gold run than "
            "the agreement above; a dash when it never does. Best: the gold run at its chosen checkpoint."
        )
        return Table("xi", "How long each stays ahead (xi)", columns=columns, rows=rows, caption=caption)

    def _interventions(self) -> Table:
        columns = [Column("data"), Column("attention"), Column("beta from", "count"), Column("alpha from", "count")]
        columns += [Column(name, "number", 3) for name in ("highest alpha", "last alpha", "last performance")]
        rows: list[list[Any]] = []
        for one in self.main:
            ordinary = Intervened(one.alpha_course, one.courses["normal"], one.performance_course, one.beta_first)
            for label, runs in {"ordinary": ordinary, **one.interventions}.items():
                steps = [runs.first["beta"], runs.first["alpha"]]
                numbers = [runs.alpha.maximum, runs.alpha.last, runs.performance.last]
                rows.append([one.dataset, label, *steps, *numbers])
        caption = (
            "Runs with the same seeds, compared with the final attention of the gold run, which nothing was done to. "
            "From: the first checkpoint at which beta, or alpha, agrees with it half as well as ordinary runs ever do."
        )
        title = "Runs with something done to attention"
        return Table("interventions", title, columns=columns, rows=rows, caption=caption)

    def _intervals(self) -> Table:
        columns = [
            Column("data"),
            Column("metric"),
            Column("chosen on"),
            Column("compared"),
            Column("maximum", "number", 3),
        ]
        columns += [Column("interval"), Column("at step", "count"), Column("chance", "number", 3)]
        columns += [Column("last", "number", 3), Column("at best", "number", 3), Column("xi at step", "count")]
        rows: list[list[Any]] = []
        for one in self.summaries:
            labels = [one.dataset, f"{one.metric}, {one.split}, {one.performance}", one.selected_on]
            for key, found in one.details().items():
                ends = found["interval"]
                between = None if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
                rows.append(
                    [*labels, key, found["maximum"], between, found["maximum_step"], found["chance"], found["last"],
                     found["at_best"], found["xi_step"]]
                )  # fmt: skip
        title = "Every agreement with its interval, last value, and value at the ranking run's best checkpoint"
        return Table("intervals", title, columns=columns, rows=rows, detail=True)

    def _courses(self) -> Table:
        columns = [Column("data"), Column("metric"), Column("split"), Column("chosen on"), Column("course")]
        columns += [Column("step", "count"), Column("value", "number", 4)]
        rows = [
            [one.dataset, one.metric, one.split, one.selected_on, name, step, value]
            for one in self.summaries
            for name, course in _named(one).items()
            for step, value in zip(course.steps, course.values, strict=True)
        ]
        return Table("courses", "Every course", columns=columns, rows=rows, detail=True)

    def charts(self) -> list[Chart]:
        """Alpha to alpha over steps with the proxies as lines; beta before alpha; courses of the uniform run."""
        found: list[Chart] = []
        gold = "agreement with the gold alpha"
        for one in self.main:
            ends = [float(one.alpha_course.steps[0]), float(one.alpha_course.steps[-1])]
            highest = {key: course.maximum for key, course in one.courses.items() if key != "normal"}
            levels = [Series(f"{_LINES[key]} {value:.3f}", ends, [value, value]) for key, value in highest.items()]
            crowd = [
                Series(f"run {place}", course.steps, course.values, look="muted")
                for place, course in enumerate(one.alpha_courses)
                if len(one.alpha_courses) > 1
            ]
            found.append(
                Curve(
                    file_name("alpha-to-alpha", one.dataset), one.dataset,
                    series=[*crowd, _series("alpha of ordinary runs", one.alpha_course), *levels],
                    x=Axis("step", "whole"), y=_share(gold),
                    references=[Reference(one.baseline, f"chance {one.baseline:.3f}")],
                )
            )  # fmt: skip
            events = [
                Reference(float(step), f"{name} at step {step}", series=name)
                for name, step in one.beta_first.items()
                if step is not None
            ]
            series = [_series("beta", one.courses["normal"]), _series("alpha", one.alpha_course)]
            scale = 100.0 if self.study.pairs else 1.0  # accuracy of translations is in per cent
            performance = [value / scale for value in one.performance_course.values]
            series.append(Series("accuracy", one.performance_course.steps, performance))
            found.append(
                TrainingSteps(
                    file_name("beta-before-alpha", one.dataset),
                    one.dataset,
                    series=series,
                    y=_share("agreement with the gold alpha; accuracy"),
                    events=events,
                )
            )
            ranked = [_series(_LINES[key], course) for key, course in one.courses.items() if key != "normal"]
            found.append(
                TrainingSteps(
                    file_name("ranked-by-uniform", one.dataset),
                    one.dataset,
                    series=ranked,
                    y=_share("agreement with beta of the uniform run"),
                )
            )
            if one.interventions:
                changed = [_series(label, runs.alpha) for label, runs in one.interventions.items()]
                found.append(
                    TrainingSteps(
                        file_name("interventions", one.dataset), one.dataset,
                        series=[_series("ordinary", one.alpha_course), *changed], y=_share(gold),
                    )
                )  # fmt: skip
        return found

    def sentences(self) -> list[str]:
        """Whether beta of even attention foretells attention, above chance and with an interval."""
        said = []
        for one in self.main:
            agreement, xi = one.agreements["unif"], one.xi["unif"]
            verdict = "above" if agreement.low > agreement.chance else "not clearly above"
            when = (
                f"at step {xi.step}, at a performance of {xi.performance:.3f}"
                if xi.performance is not None
                else "never"
            )
            steps = one.beta_first
            first = (
                f"beta came at step {steps['beta']} and alpha at step {steps['alpha']}"
                if None not in steps.values()
                else "beta and alpha did not both come"
            )
            said.append(
                f"{one.dataset}: the final attention agrees with beta of a network with uniform attention in "
                f"{agreement.value:.3f} [{agreement.low:.3f}, {agreement.high:.3f}] of {agreement.predictions:,} "
                f"predictions, {verdict} chance ({agreement.chance:.3f}); ordinary runs overtake it {when} (best "
                f"{one.best_perf:.3f}); {first}."
            )
        return said

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`; the values have the keys of the released code."""
        return {
            "results": [
                {
                    "dataset": one.dataset,
                    "metric": one.metric,
                    "split": one.split,
                    "performance": _performance(self.study, one),
                    "selected_on": one.selected_on,
                    "gold_step": one.gold_step,
                    **one.released(),
                    "details": one.details(),
                    "beta_before_alpha": one.beta_first,
                    "interventions": {
                        label: {
                            "alpha_corrs": list(runs.alpha.values), "beta_corrs": list(runs.beta.values),
                            "perfs": list(runs.performance.values), "from": runs.first,
                        }
                        for label, runs in one.interventions.items()
                    },
                }
                for one in self.summaries
            ]
        }  # fmt: skip


_LINES = {
    "unif": "beta, uniform attention",
    "px": "embedding proxy",
    "logistic": "logistic proxy",
    "counts": "count proxy",
    "grad": "delta",
}
"""What the legends of figures call the keys of ``COMPARED``."""
_LABELS = [Column("data"), Column("metric"), Column("split"), Column("chosen on")]


def _labels(one: Summary) -> list[str]:
    metric = one.metric if one.performance == "acc" else f"{one.metric}, {one.performance}"
    return [one.dataset, metric, one.split, one.selected_on]


def _performance(study: TextStudy, one: Summary) -> str:
    """The name of a performance in the results of the released code."""
    prefix = {"val": "val" if study.pairs else "test", "train": "train"}[one.split]
    return f"{prefix}_{one.performance}"


def _named(one: Summary) -> dict[str, Course]:
    found = {"alpha to alpha": one.alpha_course, "performance": one.performance_course, **one.courses}
    for label, runs in one.interventions.items():
        found |= {f"{label} {kind}": getattr(runs, kind) for kind in ("alpha", "beta", "performance")}
    return found if one.own_delta is None else {**found, "own delta": one.own_delta}


def _series(name: str, course: Course) -> Series:
    return Series(name, course.steps, course.values)


def _share(label: str) -> Axis:
    return Axis(label, low=-0.03, high=1.03)
