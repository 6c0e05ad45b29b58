"""What the prune study found: what removed cells cost, and whether the pattern is better than others as sparse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import record
from ...core.charts import Axis, Band, Chart, Column, Curve, Drop, Reference, Series, Table, file_name
from ...core.checked import Cell
from ..findings import Findings
from .comparison import PrunedRow, PrunePoint
from .footprint import PASSES, Footprint
from .headshow import heads_charts, heads_sentences, heads_tables
from .headwise import PrunedHeads
from .sets import OWN
from .study import DENSE, TOGETHER
from .verdicts import sentences, unequal_use

NAMES = {
    "ap": "AP",
    "random": "random",
    "random-mass": "random, equal mass",
    "window": "window",
    "out-of-domain": "AP, other data",
}
CLOSE = 0.01
"""How far what is removed may be from tau to be called the same."""
HOW = {True: "trained with it", False: "not trained with it"}


@dataclass(frozen=True)
class PointFootprint:
    """What evaluating the model of a point takes."""

    point: PrunePoint
    cost: Footprint


@dataclass(frozen=True, eq=False, kw_only=True)
class PruneFindings(Findings):
    """What the study found.

    Attributes
    ----------
    metric : the first metric of the task, which differences are of.
    rows : one for each kind, tau, role and normaliser, without and with training; dense models first.
    heads : what single heads cost; None where that was not asked.
    footprints : seconds and peak memory of the models, where they were asked.
    whole : whether everything was done that was asked.
    """

    metric: str
    smaller_is_better: bool = False
    rows: tuple[PrunedRow, ...] = ()
    heads: PrunedHeads | None = None
    footprints: tuple[PointFootprint, ...] = ()
    whole: bool = True

    @property
    def complete(self) -> bool:
        """Whether everything was done."""
        return self.whole

    @property
    def sets(self) -> list[str]:
        """The names of the data that was evaluated on, the held-out one first."""
        return list(self.rows[0].metrics) if self.rows else []

    def dense(self, normaliser: str = "softmax") -> PrunedRow:
        """The row of the dense models."""
        return next(row for row in self.rows if row.point.kind == DENSE and row.point.normaliser == normaliser)

    def row(self, kind: str, tau: float, retrained: bool, **more: Any) -> PrunedRow | None:
        """The row of a point, if it was asked for."""
        wanted = PrunePoint(kind, tau, retrained, **more)
        return next((row for row in self.rows if row.point == wanted), None)

    def tables(self) -> list[Table]:
        """For each data set the rows of both kinds of training, roles and normalisers; all seeds in a file only."""
        found = []
        for data in self.sets:
            plain = [row for row in self.rows if row.point.role == TOGETHER and row.point.normaliser == "softmax"]
            for retrained in (True, False):
                rows = [row for row in plain if row.point.kind != DENSE and row.point.retrained == retrained]
                if rows:
                    found.append(self._table("trained" if retrained else "pruned", HOW[retrained], rows, data))
            ablated = [row for row in self.rows if row.point.role != TOGETHER]
            if ablated:
                tried = {(row.point.kind, row.point.tau, row.point.retrained, row.point.normaliser) for row in ablated}
                alike = [row for row in self.rows if _without_role(row.point) in tried]
                found.append(self._table("roles", "roles alone and together", alike, data))
            if any(row.point.normaliser != "softmax" for row in self.rows):
                kinds = {row.point.kind for row in self.rows if row.point.normaliser != "softmax"} - {DENSE}
                alike = [row for row in self.rows if row.point.role == TOGETHER and row.point.kind in kinds]
                found.append(self._table("normalisers", "softmax and entmax", alike, data))
        found += [self._footprint_table()] if self.footprints else []
        found += heads_tables(self.heads, f"{self.model} on {self.task}") if self.heads is not None else []
        return [*found, *([self._seeds_table()] if self.rows else [])]

    def _table(self, name: str, title: str, rows: Sequence[PrunedRow], data: str) -> Table:
        """Dense models first, and what belongs to each; columns that would be the same everywhere are left out."""
        shown = {
            "normaliser": name in ("roles", "normalisers"),
            "role": name == "roles",
            "trained": name in ("roles", "normalisers"),
            "AP minus it": any(self._ahead(row, data) for row in rows),
        }
        names = ("normaliser", "role")
        columns = [Column(each) for each in names if shown[each]] + [Column("pattern")]
        columns += [Column("trained")] * shown["trained"]
        columns += [Column("tau"), Column("removed", "percent", 1), Column("zeros", "percent", 1)]
        columns += [Column("mass", "percent", 1), Column(self.metric, "number"), Column("seeds")]
        columns += [Column("minus dense"), Column("%", "number", 1)]
        columns += [Column("AP minus it")] * shown["AP minus it"]
        cells: list[list[Cell]] = []
        sections: list[int] = []
        first = self.rows[0]
        for normaliser in dict.fromkeys(row.point.normaliser for row in rows):
            sections += [len(cells)] if cells else []
            dense = self.dense(normaliser)
            before: object = None
            for row in [dense, *(row for row in rows if row.point.normaliser == normaliser)]:
                block = row.point.retrained if shown["trained"] else row.point.kind
                if before is not None and block != before:
                    sections.append(len(cells))
                before = block
                cells.append(self._cells(row, first if row is dense else dense, data, shown))
        own = data == OWN
        where = "" if own else f", evaluated on {data}"
        caption = (
            f"Mean {self.metric} over seeds{', smaller is better' * self.smaller_is_better}, and its range. Removed: "
            "of the cells that texts have. Zeros: of the attention weights of the held-out texts. Mass: of the average "
            "attention that is kept. %: of the dense score. Differences: mean over seeds, with 95 % paired bootstrap "
            "interval over examples."
            + " Window 5+1: 5 tokens on either side, its own among them, and the first one."
            * any(row.windows for row in rows)
        )
        return Table(
            file_name(name, *([] if own else [data])),
            f"{self.model} on {self.task}{where}: {title}",
            columns=columns,
            rows=cells,
            caption=caption,
            sections=sections,
        )

    def _cells(self, row: PrunedRow, dense: PrunedRow, data: str, shown: dict[str, bool]) -> list[Cell]:
        point, scores = row.point, row.scores(self.metric, data)
        mean, before = float(np.mean(scores)), float(np.mean(dense.scores(self.metric, data)))
        is_dense = point.kind == DENSE
        found: list[Cell] = [point.normaliser] * shown["normaliser"]
        found += ["" if is_dense else point.role] * shown["role"]
        found += [self._label(row)]
        found += ["" if is_dense else "yes" if point.retrained else "no"] * shown["trained"]
        found += [point.tau, row.effective, None if is_dense else float(np.mean(row.zeros)), row.kept_mass, mean]
        found += [f"{min(scores):.2f} to {max(scores):.2f}" if len(scores) > 1 else "1"]
        found += [str(row.change[data]) if data in row.change else ""]
        found += [None if row is dense or not before else 100 * (mean - before) / before]
        return found + [self._ahead(row, data)] * shown["AP minus it"]

    def _footprint_table(self) -> Table:
        """Scores beside seconds and peak memory, as the paper has them for SQuAD."""
        metrics = list(next(iter(self.rows[0].metrics.values())))
        columns = [Column("pattern"), Column("tau"), Column("removed", "percent", 1)]
        columns += [*(Column(metric, "number") for metric in metrics), Column("seconds", "number")]
        columns += [Column("peak MiB", "count"), Column("MiB beside the model", "count")]
        rows: list[list[Cell]] = []
        for each in self.footprints:
            row = next(row for row in self.rows if row.point == each.point)
            scores = [float(np.mean(row.scores(metric))) for metric in metrics]
            cost = each.cost
            rows.append([self._label(row), row.point.tau, row.effective, *scores, cost.seconds, cost.peak, cost.grown])
        caption = (
            f"Seconds and peak memory: fastest of {PASSES} passes over {self.footprints[0].cost.examples:,} examples, "
            "each model in a process of its own, the first seed. On a CPU removed cells are left out in blocks of 16 "
            "queries; elsewhere a mask alone saves nothing."
        )
        title = f"{self.model} on {self.task}: what evaluation takes"
        return Table("costs", title, columns=columns, rows=rows, caption=caption)

    def _label(self, row: PrunedRow) -> str:
        name = NAMES.get(row.point.kind, row.point.kind)
        return f"{name} {'/'.join(row.windows)}" if row.windows else name

    def _ahead(self, row: PrunedRow, data: str) -> str:
        """AP minus this kind, where there is AP at the same point."""
        point = row.point
        if point.kind in (DENSE, "ap"):
            return ""
        best = self.row("ap", point.tau, point.retrained, normaliser=point.normaliser, role=point.role)
        return "" if best is None else str(best.ahead[data].get(point.kind, ""))

    def _seeds_table(self) -> Table:
        metrics = list(next(iter(self.rows[0].metrics.values())))
        columns = [Column(name) for name in ("data", "normaliser", "role", "pattern", "trained")]
        columns += [Column("tau", "general", 3), Column("seed", "count"), Column("removed", "percent", 2)]
        columns += [Column("tiles removed", "percent", 2), Column("mass kept", "percent", 2)]
        columns += [Column("empty rows", "percent", 2), *(Column(metric, "number", 3) for metric in metrics)]
        columns += [Column("zeros", "percent", 2)]
        rows: list[list[Cell]] = []
        for data in self.sets:
            for row in self.rows:
                point = row.point
                for place, seed in enumerate(row.seeds):
                    facts = row.sparsity[place] if row.sparsity else None
                    sparse: list[Cell] = [None] * 4
                    if facts is not None:
                        empty = facts.empty_rows / max(facts.rows, 1)
                        sparse = [facts.effective, facts.tile_sparsity, facts.kept_mass, empty]
                    zeros = row.zeros[place] if data == OWN else None
                    trained = "yes" if point.retrained else "no"
                    about: list[Cell] = [data, point.normaliser, point.role, self._label(row), trained, point.tau, seed]
                    values = (row.metrics[data][metric][place] for metric in metrics)
                    rows.append([*about, *sparse, *values, zeros])
        title = f"{self.model} on {self.task}: every seed"
        return Table("seeds", title, columns=columns, rows=rows, detail=True)

    def charts(self) -> list[Chart]:
        """The score against the share of cells that is removed, for each data set, without and with training."""
        return list(self._charts())

    def _charts(self) -> Iterator[Chart]:
        for data in self.sets:
            for retrained in (True, False):
                own = [
                    row
                    for row in self.rows
                    if row.point.retrained == retrained and row.point.kind != DENSE and row.point.role == TOGETHER
                ]
                if own:
                    yield self._curve(own, data)
                    yield self._curve(own, data, relative=True)
                    if any(abs((row.effective or 0.0) - row.point.tau) > CLOSE for row in own):
                        yield self._curve(own, data, by_tau=False)
        if self.heads is not None:
            yield from heads_charts(self.heads)

    def _curve(self, own: Sequence[PrunedRow], data: str, by_tau: bool = True, relative: bool = False) -> Curve:
        """The curves of one data set (the paper's figure): means over seeds, with bands from the worst to the best.

        Parameters
        ----------
        by_tau : against the nominal share of cells, or against that which is really removed.
        relative : to the dense model of the same seed, in per cent.
        """
        several = len({row.point.normaliser for row in own}) > 1
        series = []
        for normaliser, kind in dict.fromkeys((row.point.normaliser, row.point.kind) for row in own):
            dense = self.dense(normaliser)
            rows = [dense, *(row for row in own if (row.point.normaliser, row.point.kind) == (normaliser, kind))]
            values = [self._relative(row, dense, data) if relative else row.scores(self.metric, data) for row in rows]
            label = NAMES[kind] + (f", {normaliser}" if several else "")
            places = [100 * (row.point.tau if by_tau else row.effective or 0.0) for row in rows]
            bands = [Band([min(each) for each in values], [max(each) for each in values])]
            series.append(Series(label, places, [float(np.mean(each)) for each in values], bands=bands))
        baseline = float(np.mean(self.dense(own[0].point.normaliser).scores(self.metric, data)))
        retrained = own[0].point.retrained
        parts = ["trained" if retrained else "pruned", "" if by_tau else "against-removed", "change" * relative]
        rise = "relative rise (%)" if self.smaller_is_better else "relative drop (%)"
        return Curve(
            file_name(*parts, "" if data == OWN else data),
            f"{HOW[retrained]}{'' if data == OWN else f', on {data}'}",
            series=series,
            x=Axis("tau (%)" if by_tau else "removed cells (%)", low=-2.0, high=102.0),
            y=Axis(f"change of {self.metric} (%)" if relative else self.metric),
            right=Drop(baseline, self.smaller_is_better, rise) if baseline and not relative else None,
            references=[Reference(0.0)] if relative else [],
            apart=0.5,
        )

    def _relative(self, row: PrunedRow, dense: PrunedRow, data: str) -> list[float]:
        """The change of the score from the dense model of the same seed, in per cent; 0 where that is 0."""
        before = dict(zip(dense.seeds, dense.scores(self.metric, data), strict=True))
        first = next(iter(before.values()))
        pairs = [
            (score, before.get(seed, first))
            for seed, score in zip(row.seeds, row.scores(self.metric, data), strict=True)
        ]
        return [100 * (score - other) / other if other else 0.0 for score, other in pairs]

    def sentences(self) -> Sequence[str]:
        """Whether the pattern is as good as the dense model, and better than others that are as sparse."""
        if not self.rows:
            return ()
        said = [] if self.whole else ["The study is not finished: these are the results so far."]
        for data in self.sets:
            said += sentences(self.rows, self.metric, self.smaller_is_better, data)
        warning = unequal_use(self.rows)
        said += [warning] if warning is not None else []
        return said + (heads_sentences(self.heads) if self.heads is not None else [])

    def data(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "metric": self.metric,
            "smaller_is_better": self.smaller_is_better,
            "whole": self.whole,
            "rows": record.dump(self.rows),
            "heads": record.dump(self.heads),
            "footprints": record.dump(self.footprints),
        }


def _without_role(point: PrunePoint) -> tuple[str, float, bool, str]:
    return point.kind, point.tau, point.retrained, point.normaliser
