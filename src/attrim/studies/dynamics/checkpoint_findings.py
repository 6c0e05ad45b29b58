"""What the probes of checkpoints found: which heads' attention was foretold by what their keys argue for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.charts import Axis, Chart, Column, HeadMatrix, Series, Table, TrainingSteps
from ...core.site import Site
from ..findings import Findings
from .checkpoint_runs import HeadCourse
from .checkpoint_study import DynamicsCheckpoints
from .readings import Course


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckpointFindings(Findings):
    """The courses of every head, and the accuracy over the checkpoints."""

    study: DynamicsCheckpoints
    heads: list[HeadCourse]
    accuracies: Course

    def tables(self) -> list[Table]:
        """One row for each head; and the accuracy of each checkpoint."""
        kinds = self._kinds
        probes = [kind for kind in self.study.probes if kind != "alpha"]
        columns = [Column("role"), Column("layer", "count"), Column("head", "count"), Column("chance", "number", 3)]
        columns += [Column(f"{kind} from", "count") for kind in kinds]
        columns += [Column(f"last {kind}", "number", 3) for kind in probes]
        columns += [Column(f"{kind} interval") for kind in probes]
        if self._compared:
            columns += [Column("highest others", "number", 3), *(Column(f"xi {kind}", "number", 3) for kind in probes)]
            columns += [Column(f"xi {kind} at", "count") for kind in probes]
        rows: list[list[Any]] = []
        for one in self.heads:
            last = [one.last[kind] for kind in probes]
            row = [
                one.role, one.layer, one.head, one.chance, *(one.first[kind] for kind in kinds),
                *(item.value for item in last), *(f"{item.low:.3f} to {item.high:.3f}" for item in last),
            ]  # fmt: skip
            if self._compared:
                row += [one.courses["others"].maximum, *(one.xi[kind].performance for kind in probes)]
                row += [one.xi[kind].step for kind in probes]
            rows.append(row)
        caption = (
            "The last alpha chooses, the probes rank. From: the first checkpoint at which a probe agrees with the last "
            "alpha half as well as alpha ever does before the last checkpoint."
        )
        if self._compared:
            caption += (
                " Others: alpha of the other runs ranks. Xi: their accuracy, and the step, when it agrees better than "
                "the probe ever does; a dash when it never does."
            )
        title = f"How each head's attention was foretold ({self.model} on {self.task})"
        many = len(self.heads) > 40
        return [
            Table("heads", title, columns=columns, rows=rows, caption=caption, detail=many),
            Table(
                "checkpoints", "Means over heads at each checkpoint",
                columns=[
                    Column("step", "count"), Column("accuracy", "number", 3),
                    *(Column(kind, "number", 3) for kind in kinds),
                ],
                rows=[
                    [step, accuracy, *(self._mean(kind)[place] for kind in kinds)]
                    for place, (step, accuracy) in enumerate(
                        zip(self.accuracies.steps, self.accuracies.values, strict=True)
                    )
                ],
            ),
        ]  # fmt: skip

    @property
    def _compared(self) -> bool:
        """Whether there are other runs."""
        return all("others" in one.courses for one in self.heads)

    @property
    def _kinds(self) -> list[str]:
        """The probes, and alpha of other runs where there are some."""
        return [*self.study.probes, *(["others"] if self._compared else [])]

    def _mean(self, kind: str) -> list[float]:
        return [float(value) for value in np.mean([one.courses[kind].values for one in self.heads], axis=0)]

    def charts(self) -> list[Chart]:
        """The means over heads, with every head behind them; and the last agreement of beta in each head."""
        steps = list(self.accuracies.steps)
        crowd = [
            Series(f"{one.site} {one.head}", steps, one.courses["alpha"].values, look="muted") for one in self.heads
        ]
        names = {"others": "alpha of other runs"}
        series = [Series(names.get(kind, kind), steps, self._mean(kind)) for kind in self._kinds]
        series.append(Series("accuracy", steps, self.accuracies.values))
        chance = float(np.mean([one.chance for one in self.heads]))
        found: list[Chart] = [
            TrainingSteps(
                "probes-over-steps",
                series=[*crowd, *series],
                y=Axis("agreement with the last alpha", low=-0.03, high=1.03),
            )
        ]
        sites = {one.site: Site(one.site, one.role, one.layer, 0) for one in self.heads}
        counts = {name: 1 + max(one.head for one in self.heads if one.site == name) for name in sites}
        known = [Site(name, site.role, site.layer, counts[name]) for name, site in sites.items()]
        for kind in (kind for kind in self.study.probes if kind != "alpha"):
            values = np.full((len(known), max(counts.values())), np.nan)
            for one in self.heads:
                values[list(sites).index(one.site), one.head] = one.last[kind].value
            found.append(
                HeadMatrix.of(f"{kind}-of-heads", values, known, f"agreement with {kind} (chance {chance:.2f})")
            )
        return found

    def sentences(self) -> list[str]:
        """In how many heads each probe agrees with alpha above chance, and in how many it came first."""
        said = []
        for kind in (kind for kind in self.study.probes if kind != "alpha"):
            above = sum(one.last[kind].low > one.chance for one in self.heads)
            both = [one for one in self.heads if one.first[kind] is not None and one.first["alpha"] is not None]
            earlier = sum((one.first[kind] or 0) < (one.first["alpha"] or 0) for one in both)
            mean = float(np.mean([one.last[kind].value for one in self.heads]))
            said.append(
                f"{kind}: the last attention agrees with it above chance in {above} of {len(self.heads)} heads (mean "
                f"{mean:.3f}, chance {np.mean([one.chance for one in self.heads]):.3f}); of {len(both)} heads in which "
                f"both came, {kind} came before alpha in {earlier}."
            )
        return said

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`."""
        return {
            "steps": list(self.accuracies.steps),
            "accuracy": list(self.accuracies.values),
            "heads": [
                {"site": one.site, "head": one.head, "chance": one.chance, "from": one.first,
                 **{kind: list(course.values) for kind, course in one.courses.items()},
                 "xi": {kind: [found.performance, found.step] for kind, found in one.xi.items()}}
                for one in self.heads
            ],
        }  # fmt: skip
