"""What the copying experiments found: who learnt to copy, whose attention is aligned, and which came first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ...core.charts import Axis, Chart, Column, Curve, Panels, Point, Reference, Series, Table, TrainingSteps, file_name
from ..findings import Findings
from .copying import ALIGNED, GOOD, Evaluated, aligned, first_above, succeeded
from .copying_runs import Screened, of_verdict
from .study import DynamicsCopy, DynamicsMultihead

Courses = Mapping[str, Sequence[Evaluated]]
VERDICTS = ("good", "bad", "undecided", "not needed")
BAR = 0.5
"""Alpha or beta has come when more than this share of the steps is aligned."""

NUMBERS: dict[str, Callable[[Evaluated], float | None]] = {
    "accuracy": lambda one: one.accuracy,
    "alpha": lambda one: max(one.aligned),
    "beta": lambda one: one.beta,
}


def share_interval(hits: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    middle = (hits + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * math.sqrt(hits * (total - hits) / total + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def group(courses: Courses) -> dict[tuple[str, str], dict[str, Sequence[Evaluated]]]:
    """The courses by condition and intervention, and by seed inside of each."""
    found: dict[tuple[str, str], dict[str, Sequence[Evaluated]]] = {}
    for name, course in courses.items():
        condition, intervention, seed = name.split("/")
        found.setdefault((condition, intervention), {})[seed] = course
    return found


def lines(courses: Courses, what: str, name: str) -> list[Series]:
    """Every course as a grey line, and their mean under a name."""
    number = NUMBERS[what]
    every = [[(one.step, number(one)) for one in course if number(one) is not None] for course in courses.values()]
    crowd = [
        Series(f"{name} {place}", [step for step, _ in one], [value for _, value in one], look="muted")
        for place, one in enumerate(every)
        if one and len(every) > 1
    ]
    steps = sorted({step for one in every for step, _ in one})
    # A course that ended early keeps its last number.
    middle = [mean([[value for at, value in one if at <= step][-1] or 0.0 for one in every if one]) for step in steps]
    return [*crowd, Series(name, steps, middle)]


@dataclass(frozen=True, eq=False, kw_only=True)
class CopyFindings(Findings):
    """The course of every training, and the co-occurrence ratio of every condition."""

    study: DynamicsCopy
    courses: dict[str, list[Evaluated]]
    ratios: dict[str, float]

    def tables(self) -> list[Table]:
        """One row for each condition and intervention; and one for each training."""
        columns = [
            Column("data"), Column("attention"), Column("ratio", "number", 2), Column("aligned"), Column("learnt"),
            Column("accuracy"), Column("alpha", "number", 3), Column("beta", "number", 3),
            Column("beta from"), Column("alpha from"), Column("beta first"),
        ]  # fmt: skip
        rows = []
        for (condition, intervention), courses in group(self.courses).items():
            lasts = [course[-1] for course in courses.values()]
            accuracies = [one.accuracy for one in lasts]
            betas = [one.beta for one in lasts if one.beta is not None]
            rows.append(
                [
                    condition, _attention(intervention), self.ratios[condition],
                    f"{sum(map(aligned, courses.values()))} of {len(courses)}",
                    f"{sum(map(succeeded, courses.values()))} of {len(courses)}",
                    f"{min(accuracies):.2f}-{max(accuracies):.2f}",
                    mean(max(one.aligned) for one in lasts), mean(betas) if betas else None,
                    span([first_above(course, "beta", BAR) for course in courses.values()]),
                    span([first_above(course, "alpha", BAR) for course in courses.values()]),
                    before(courses),
                ]
            )  # fmt: skip
        caption = (
            f"Aligned: attention is highest at the right symbol in more than {ALIGNED:g} of all target steps (the end "
            f"of a sequence does not count). Learnt: aligned, and accuracy above {GOOD:g}. Ratio: how much likelier a "
            "target slot is the source symbol itself than another one. Alpha and beta: shares of target steps, and the "
            f"updates after which they are above {BAR:g}."
        )
        summary = Table("copying", "Copying, after the last step", columns=columns, rows=rows, caption=caption)
        return [summary, self._every()]

    def _every(self) -> Table:
        names = ("accuracy", "alpha", "after", "before", "beta", "evenness", "loss")
        columns = [Column(name) for name in ("data", "intervention", "seed")]
        columns += [Column("step", "count"), *(Column(name, "number", 4) for name in names)]
        rows = [
            [*name.split("/"), one.step, one.accuracy, max(one.aligned), max(one.after), max(one.before), one.beta,
             one.evenness, one.loss]
            for name, course in self.courses.items()
            for one in course
        ]  # fmt: skip
        return Table("every-evaluation", "Every evaluation of every training", columns=columns, rows=rows, detail=True)

    def charts(self) -> list[Chart]:
        """Accuracy and alignment of every training; beta before alpha; the ratio against the rate of success."""
        groups = group(self.courses)
        found: list[Chart] = []
        for what, label in (("accuracy", "token accuracy"), ("alpha", "aligned attention")):
            panels = [
                TrainingSteps("", _title(*key, self.ratios), series=lines(courses, what, "mean of seeds"), y=_share())
                for key, courses in groups.items()
            ]
            name = {"accuracy": "accuracy-of-seeds", "alpha": "alignment-of-seeds"}[what]
            found.append(_beside(name, panels, label))
        panels = []
        for key, courses in groups.items():
            series = [lines(courses, what, what)[-1] for what in ("beta", "alpha", "accuracy")]
            panels.append(TrainingSteps("", _title(*key, self.ratios), series=series, y=_share()))
        found.append(_beside("beta-before-alpha", panels, "share of target steps"))
        return [*found, *self._sweep()]

    def _sweep(self) -> list[Chart]:
        """The rate of success against the co-occurrence ratio, where there are several of both."""
        series = []
        for intervention in dict.fromkeys(key[1] for key in group(self.courses)):
            points = []
            for (condition, one), courses in group(self.courses).items():
                if one == intervention:
                    hits = sum(map(aligned, courses.values()))
                    low, high = share_interval(hits, len(courses))
                    points.append(Point(self.ratios[condition], hits / len(courses), low, high, condition))
            series.append(Series.of(_attention(intervention), points))
        if max(len(one.x) for one in series) < 2:
            return []
        return [
            Curve(
                "ratio-against-success",
                series=series,
                x=Axis(
                    "co-occurrence ratio", low=min(self.ratios.values()) - 0.2, high=max(self.ratios.values()) + 0.2
                ),
                y=Axis("share of aligned runs", low=-0.03, high=1.1),
                annotate=len(series) == 1,
            )
        ]

    def sentences(self) -> list[str]:
        """Who is aligned, with intervals, and which of beta and alpha came first."""
        said = []
        for (condition, intervention), courses in group(self.courses).items():
            hits, total = sum(map(aligned, courses.values())), len(courses)
            low, high = share_interval(hits, total)
            what = "" if intervention == "none" else f" with attention {_attention(intervention)}"
            said.append(
                f"{condition}{what} (co-occurrence ratio {self.ratios[condition]:.2f}): attention is aligned in {hits} "
                f"of {total} runs (95 % interval of the rate {low:.2f} to {high:.2f}); beta came before alpha in "
                f"{before(courses)}."
            )
        return said

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`."""
        return {
            "ratios": self.ratios,
            "logs": {
                name: [
                    {"step": one.step, "acc": one.accuracy, "attn_acc": max(one.aligned), "attn_acc_m1": max(one.after),
                     "attn_acc_p1": max(one.before), "beta_acc": one.beta, "loss": one.loss}
                    for one in course
                ]
                for name, course in self.courses.items()
            },
        }  # fmt: skip


def span(steps: Sequence[int | None]) -> str:
    """The first and the last of some steps, and how many never came."""
    come = [step for step in steps if step is not None]
    never = len(steps) - len(come)
    if not come:
        return "never"
    text = f"{min(come)}" if min(come) == max(come) else f"{min(come)}-{max(come)}"
    return text + (f", {never} never" if never else "")


def before(courses: Courses) -> str:
    """In how many of the trainings in which both came beta came before alpha."""
    pairs = [(first_above(course, "beta", BAR), first_above(course, "alpha", BAR)) for course in courses.values()]
    both = [(beta, alpha) for beta, alpha in pairs if beta is not None and alpha is not None]
    return f"{sum(beta < alpha for beta, alpha in both)} of {len(both)}"


def _title(condition: str, intervention: str, ratios: Mapping[str, float]) -> str:
    if intervention != "none":
        return f"{condition}, {_attention(intervention)}"
    return f"{condition} (ratio {ratios[condition]:.2f})"


def _attention(intervention: str) -> str:
    """What to call an intervention: ``ordinary``, or its name with its number."""
    return "ordinary" if intervention == "none" else intervention.replace(",", " ")


def _beside(name: str, panels: Sequence[Chart], label: str) -> Panels:
    return Panels(name, charts=panels, across=min(3, len(panels)), y_label=label, share_y=True)


def _share(label: str = "") -> Axis:
    return Axis(label, low=-0.03, high=1.03)


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiheadFindings(Findings):
    """What screening says about each head, and the courses of networks of all bad, one good and random heads."""

    study: DynamicsMultihead
    screened: list[Screened]
    arms: dict[str, dict[str, list[Evaluated]]]

    def tables(self) -> list[Table]:
        """The three kinds of networks; every network; every head that was screened."""
        columns = [Column("heads"), Column("networks", "count"), Column("learnt"), Column("accuracy", "number", 3)]
        columns += [Column("lowest", "number", 3), Column("highest", "number", 3), Column("accuracy above half")]
        rows: list[list[Any]] = []
        for kind, courses in self.arms.items():
            lasts = [course[-1].accuracy for course in courses.values()]
            learnt = sum(accuracy > GOOD for accuracy in lasts)
            steps = span([first_above(course, "accuracy", BAR) for course in courses.values()])
            rows.append([kind, len(courses), f"{learnt} of {len(courses)}", mean(lasts), min(lasts), max(lasts), steps])
        caption = f"Learnt: accuracy above {GOOD:g} after {self.study.arm_steps} steps. {self._screening()}"
        title = f"Networks of {self.study.heads} heads that copy {self.study.condition}"
        return [
            Table("arms", title, columns=columns, rows=rows, caption=caption), self._networks(), self._heads(),
        ]  # fmt: skip

    def _screening(self) -> str:
        counts = {verdict: len(of_verdict(self.screened, verdict)) for verdict in VERDICTS}
        listed = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
        return f"Screened {len(self.screened)} heads with up to {len(self.study.data_seeds)} data seeds each: {listed}."

    def _networks(self) -> Table:
        columns = [Column("heads"), Column("numbers"), Column("accuracy", "number", 3), Column("aligned head")]
        columns += [Column("alpha", "number", 3)]
        rows = []
        for kind, courses in self.arms.items():
            for name, course in courses.items():
                numbers = name.partition("/")[2].split("+")
                best = max(range(len(numbers)), key=lambda head: course[-1].aligned[head])
                rows.append([kind, " ".join(numbers), course[-1].accuracy, numbers[best], course[-1].aligned[best]])
        return Table("networks", "Every network, after its last step", columns=columns, rows=rows)

    def _heads(self) -> Table:
        seeds = self.study.data_seeds
        columns = [Column("head", "count"), *(Column(f"data seed {seed}", "number", 3) for seed in seeds)]
        rows = [
            [one.head, *one.accuracies, *[None] * (len(seeds) - len(one.accuracies)), one.verdict]
            for one in self.screened
        ]
        title = "Accuracy of networks of one head; a head is left when its data seeds disagree"
        return Table("heads", title, columns=[*columns, Column("verdict")], rows=rows)

    def charts(self) -> list[Chart]:
        """Accuracy over steps: the mean of each kind in one picture, and every network in another."""
        together = TrainingSteps(
            "arms", series=[lines(courses, "accuracy", kind)[-1] for kind, courses in self.arms.items()],
            y=_share("token accuracy"), events=[Reference(float(self.study.steps), "steps of screening")],
        )  # fmt: skip
        panels = [
            TrainingSteps(file_name(kind), kind, series=lines(courses, "accuracy", "mean"), y=_share())
            for kind, courses in self.arms.items()
        ]
        return [together, _beside("every-network", panels, "token accuracy")]

    def sentences(self) -> list[str]:
        """Whether one good head helps, and whether random heads contain one."""
        means = {kind: mean(course[-1].accuracy for course in courses.values()) for kind, courses in self.arms.items()}
        listed = ", ".join(f"{kind} {value:.2f}" for kind, value in means.items())
        good = set(map(str, of_verdict(self.screened, "good")))
        chosen = 0
        for name, course in self.arms["one good"].items():
            numbers = name.partition("/")[2].split("+")
            chosen += numbers[max(range(len(numbers)), key=lambda head: course[-1].aligned[head])] in good
        total = len(self.arms["one good"])
        verdict = "helps" if means["one good"] > means["all bad"] else "does not help"
        return [
            self._screening(),
            f"Mean accuracy after {self.study.arm_steps} steps, {total} networks each: {listed}; with equal capacity, "
            f"one good head {verdict}, and it is the best aligned one in {chosen} of {total} networks.",
        ]

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`."""
        arms = {
            kind: {
                name: [
                    {
                        "step": one.step,
                        "acc": one.accuracy,
                        "attn_acc": list(one.aligned),
                        "attn_acc_m1": list(one.after),
                    }
                    for one in course
                ]
                for name, course in courses.items()
            }
            for kind, courses in self.arms.items()
        }
        return {"screened": {str(one.head): one.verdict for one in self.screened}, "arms": arms}
