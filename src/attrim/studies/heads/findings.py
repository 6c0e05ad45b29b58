"""What the heads study found: curves of pruning, their areas and differences, and the scores of the heads."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import record
from ...core.charts import (
    Axis,
    Band,
    Bars,
    Chart,
    Column,
    Curve,
    Group,
    HeadMatrix,
    Reference,
    Series,
    Table,
    file_name,
)
from ...core.checked import Cell
from ...core.wording import counted, percent
from ...runs.result import Interval
from ...scores.base import Scores
from ..findings import Findings
from .areas import Difference, PruningCurve
from .explaining import ExplainedMaps
from .prediction import SIZE, Predicted
from .pruning import Pruned
from .scoring import Ground
from .study import Heads

SCOPES = {"example": "an order for each example", "dataset": "one order, from other data"}
WAYS = {"largest": "largest scores first", "smallest": "smallest scores first"}
FAITHFUL = (
    "an order for each example says how faithful a score is to the answers, not how small a model can be; "
    "that is what one order from other data says"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadsFindings(Findings):
    """What the study found; parts that were not asked for are None.

    Attributes
    ----------
    ground : what was scored and evaluated.
    pruned : the curves.
    predicted : how well scores predict what a change of one head does.
    explained : how good the maps are, and some of them.
    """

    study: Heads
    ground: Ground
    pruned: Pruned | None = None
    predicted: Predicted | None = None
    explained: ExplainedMaps | None = None

    def tables(self) -> list[Table]:
        """Areas and curves; in files only, the first-order predictions and the scores of every head."""
        found: list[Table] = []
        if self.pruned is not None:
            found += [self._areas_table(self.pruned), self._curves_table(self.pruned)]
            if self.pruned.first_order:
                found.append(self._first_order_table(self.pruned))
            found.append(self._scores_table(self.pruned))
        if self.predicted is not None:
            found += [self._agreement_table(self.predicted), self._pairs_table(self.predicted)]
        if self.explained is not None:
            found.append(self.explained.table)
        return found

    @property
    def _title(self) -> str:
        return f"{self.model} on {self.task}, {counted(self.ground.examples, 'example')}"

    def _areas_table(self, pruned: Pruned) -> Table:
        """One row for each scope, direction and score: the mean over the steps, and the distance to random."""
        columns = [Column("scope"), Column("first"), Column("score"), Column("area", "number")]
        columns += [Column("95 % interval"), Column("minus random")]
        columns += [Column("right", "number"), Column("wrong", "number")] if pruned.right is not None else []
        rows: list[list[Cell]] = []
        sections = []
        for scope in dict.fromkeys(curve.scope for curve in pruned.curves):
            for way in self.study.directions:
                sections.append(len(rows))
                for score in dict.fromkeys(curve.score for curve in pruned.curves if curve.scope == scope):
                    rows.append([scope, way, score, *self._area_cells(pruned, scope, score, way)])
        caption = (
            f"Mean {pruned.metric} over the steps, {pruned.unpruned.score:.2f} without pruning. Largest first: "
            f"{'higher' if pruned.smaller_is_better else 'lower'} is a better score; smallest first: "
            f"{'lower' if pruned.smaller_is_better else 'higher'}. Random orders count for both directions."
        )
        if pruned.right is not None:
            caption += " Right, wrong: over the examples that the unpruned model answers rightly and wrongly."
        return Table("areas", f"{self._title}: area under the curves", columns=columns, rows=rows, caption=caption,
                     sections=sections[1:])  # fmt: skip

    def _area_cells(self, pruned: Pruned, scope: str, score: str, way: str) -> list[Cell]:
        """Area, its interval, its distance to random, and the areas of right and wrong answers."""
        own = curves_of(pruned, scope, score, way)
        if not own:
            return [None] * (3 if pruned.right is None else 5)
        area = float(np.mean([curve.area.value for curve in own]))
        spread = f"{own[0].area.low:.2f} to {own[0].area.high:.2f}"
        if len(own) > 1:
            values = [curve.area.value for curve in own]
            spread = f"seeds {min(values):.2f} to {max(values):.2f}"
        against = difference(pruned, scope, way, score, "random")
        cells: list[Cell] = [area, spread, "" if against is None else str(against)]
        if pruned.right is not None:
            for part in ("right_area", "wrong_area"):
                parts = [getattr(curve, part) for curve in own]
                cells.append(None if None in parts else float(np.mean(parts)))
        return cells

    def _curves_table(self, pruned: Pruned) -> Table:
        """One row for each curve, one column for each step."""
        steps = pruned.curves[0].steps
        names = [Column("scope"), Column("score"), Column("first"), Column("seed")]
        columns = [*names, *(Column(percent(step.share), "number", 1) for step in steps)]
        rows: list[list[Cell]] = [
            [curve.scope, curve.score, curve.direction, "" if curve.seed is None else str(curve.seed)]
            + [step.score for step in curve.steps]
            for curve in pruned.curves
        ]
        unit = self.study.unit
        numbers = " ".join(str(step.removed) for step in steps)
        caption = f"{pruned.metric} with so many of the {pruned.units} {unit}s removed: {numbers}."
        return Table("curves", f"{self._title}: pruning", columns=columns, rows=rows, caption=caption)

    def _first_order_table(self, pruned: Pruned) -> Table:
        columns = [Column("score"), Column("first"), Column("step", "percent", 0), Column("removed", "count")]
        columns += [Column("predicted change", "number", 3), Column("measured change", "number", 3)]
        columns += [Column("correlation", "number", 2)]
        rows: list[list[Cell]] = [
            [one.score, one.direction, one.share, one.removed, one.predicted, one.measured, one.correlation]
            for one in pruned.first_order
        ]
        caption = "Of the explained logit: minus the sum of gradient x attention, and what removing the heads does."
        title = f"{self._title}: the first-order prediction"
        return Table("first-order", title, columns=columns, rows=rows, caption=caption)

    def _scores_table(self, pruned: Pruned) -> Table:
        """A row for each head, with its scores."""
        columns = [Column("site"), Column("role"), Column("layer", "count"), Column("head", "count")]
        columns += [Column(name.replace("/", " "), "general", 6) for name in pruned.scores]
        one = next(iter(pruned.scores.values()))
        rows: list[list[Cell]] = [
            [site.name, site.role, site.layer, head]
            + [float(scores.values[site.name][place]) for scores in pruned.scores.values()]
            for site in one.sites
            for place, head in enumerate(one.scored(site))
        ]
        title = f"{self.model} on {self.task}: scores of the heads (scope example: means over the examples)"
        return Table("scores", title, columns=columns, rows=rows, detail=True)

    def _agreement_table(self, predicted: Predicted) -> Table:
        """One row for each score, the best first, with a column for each change."""
        changes = list(dict.fromkeys(each.change for each in predicted.agreements))
        columns = [Column("score"), *(Column(_change_label(change)) for change in changes)]
        known = {(each.score, each.change): each.correlation for each in predicted.agreements}
        scores = sorted(dict.fromkeys(score for score, _ in known), key=lambda score: -known[score, changes[0]].value)
        rows: list[list[Cell]] = [
            [score, *(str(known[score, change]) if (score, change) in known else "" for change in changes)]
            for score in scores
        ]
        numbers = Counter(pair.change for pair in predicted.pairs)
        parts = ", ".join(f"{number} {change}" for change, number in numbers.items())
        caption = (
            "Spearman's rank correlation with the measured rise of the loss, with 95 % bootstrap interval over heads, "
            f"over pairs of head and change ({parts}); the "
            f"unchanged loss is {predicted.loss:.4f}. Gradient, |gradient|, fisher and output change know the change; "
            "all but output change come from other data."
        )
        title = f"{self._title}: what predicts the rise of the loss"
        return Table("correlation", title, columns=columns, rows=rows, caption=caption)

    def _pairs_table(self, predicted: Predicted) -> Table:
        scores = list(dict.fromkeys(score for pair in predicted.pairs for score in pair.predicted))
        columns = [Column("site"), Column("head", "count"), Column("change"), Column("rise of the loss", "general", 6)]
        rows: list[list[Cell]] = [
            [pair.site, pair.head, pair.change, pair.rise, *(pair.predicted.get(score) for score in scores)]
            for pair in predicted.pairs
        ]
        title = f"{self._title}: one head at a time"
        columns += [Column(score, "general", 6) for score in scores]
        return Table("pairs", title, columns=columns, rows=rows, detail=True)

    def charts(self) -> list[Chart]:
        """Every chart that the findings allow."""
        return list(self._charts())

    def _charts(self) -> Iterator[Chart]:
        if self.pruned is not None:
            yield from self._pruned_charts(self.pruned)
        if self.predicted is not None:
            yield _agreement_chart(self.predicted)
        if self.explained is not None:
            yield from self.explained.curves
            yield from self.explained.shown(self.folder)

    def _pruned_charts(self, pruned: Pruned) -> Iterator[Chart]:
        for scope in dict.fromkeys(curve.scope for curve in pruned.curves):
            for way in self.study.directions:
                yield self._curve_chart(pruned, scope, way)
            yield self._area_chart(pruned, scope)
        for name, scores in pruned.scores.items():
            if not name.endswith("/random"):
                yield _matrix(name, scores)
        for way in self.study.directions:
            if any(one.direction == way for one in pruned.first_order):
                yield self._first_order_chart(pruned, way)

    def _curve_chart(self, pruned: Pruned, scope: str, way: str) -> Curve:
        """The score against the share of heads that are removed, with bands over examples; random over seeds."""
        series = []
        for score in dict.fromkeys(curve.score for curve in pruned.curves if curve.scope == scope):
            own = curves_of(pruned, scope, score, way)
            if not own:
                continue
            places = [100 * step.share for step in own[0].steps]
            values = np.array([[step.score for step in curve.steps] for curve in own])
            if own[0].seed is not None:
                series.append(Series(score, places, values.mean(0), bands=[Band(values.min(0), values.max(0))]))
                continue
            low, high = ([getattr(step, end) for step in own[0].steps] for end in ("low", "high"))
            series.append(Series(score, places, values[0], low, high))
        return Curve(
            file_name("pruning", scope, way),
            f"{SCOPES[scope]}, {WAYS[way]}",
            series=series,
            x=Axis(f"removed {self.study.unit}s (% of {pruned.units})", low=-2.0, high=102.0),
            y=_axis(pruned),
            apart=0.7,
        )

    def _area_chart(self, pruned: Pruned, scope: str) -> Bars:
        """The mean over the steps, with intervals over examples; random orders as dots."""
        names = list(dict.fromkeys(curve.score for curve in pruned.curves if curve.scope == scope))
        groups = []
        for way in self.study.directions:
            own = [curves_of(pruned, scope, name, way) for name in names]
            values = [float(np.mean([curve.area.value for curve in each])) if each else math.nan for each in own]
            low, high = (
                [getattr(each[0].area, end) if len(each) == 1 else math.nan for each in own] for end in ("low", "high")
            )
            points = [[curve.area.value for curve in each] if len(each) > 1 else [] for each in own]
            groups.append(Group(WAYS[way], values, low, high, points=points))
        unpruned = Reference(pruned.unpruned.score, "unpruned")
        return Bars(file_name("areas", scope), SCOPES[scope], groups=groups, labels=names,
                    y=Axis(f"mean {_axis(pruned).label} over the steps"), references=[unpruned])  # fmt: skip

    def _first_order_chart(self, pruned: Pruned, way: str) -> Curve:
        series = []
        for score in dict.fromkeys(one.score for one in pruned.first_order):
            own = [one for one in pruned.first_order if one.direction == way and one.score == score]
            places = [100 * one.share for one in own]
            for name in ("predicted", "measured"):
                label = name if score == "gradient-attention" else f"{score}, {name}"
                series.append(Series(label, places, [getattr(one, name) for one in own]))
        return Curve(
            file_name("first-order", way),
            f"an order for each example, {WAYS[way]}",
            series=series,
            x=Axis(f"removed {self.study.unit}s (% of {pruned.units})", low=-2.0, high=102.0),
            y=Axis("mean change of the explained logit"),
            references=[Reference(0.0)],
        )

    def sentences(self) -> list[str]:
        """What the numbers say, each claim with its interval."""
        said = [self._ground_sentence()] if self.pruned is not None or self.predicted is not None else []
        if self.pruned is not None:
            said += _pruned_sentences(self.pruned)
            said += self._budget_sentences(self.pruned)
        if self.predicted is not None:
            said += _predicted_sentences(self.predicted)
        if self.explained is not None:
            said += _explained_sentences(self.explained)
        return said

    def _ground_sentence(self) -> str:
        ground = self.ground
        text = (
            f"{ground.scored_heads} heads at {ground.scored_sites} of {counted(ground.sites, 'site')} were scored and "
            f"pruned, on {counted(ground.examples, 'example')}"
        )
        if ground.scored_examples:
            text += f"; orders for all examples come from {ground.scored_examples} others"
            text += f" ({ground.shared} of them are evaluated too)" if ground.shared else ""
        if ground.idle:
            text += (
                f". {counted(len(ground.idle), 'site')} without influence on the answers, neither scored nor pruned: "
                f"{', '.join(ground.idle)}"
            )
        return f"{text}."

    def _budget_sentences(self, pruned: Pruned) -> Iterator[str]:
        # The weights of a module that is called several times (LXMERT's cross-attention) cannot leave for one call.
        shared = any(site.call for scores in pruned.scores.values() for site in scores.sites)
        command, rest = ("evaluate", f"--task {self.task}") if shared else ("bake", "--output FOLDER")
        for budget in pruned.budgets:
            if not budget.heads:
                yield f"dataset, {budget.score}: the first step costs more than 1 % of the unpruned {pruned.metric}."
                continue
            edit = f"gate:0,heads=@{self.folder / budget.order}:{budget.heads}"
            yield (
                f"dataset, {budget.score}: {counted(budget.heads, 'head')} ({percent(budget.share)}) can go within 1 % "
                f"of the unpruned {pruned.metric} ({budget.result:.2f} against {pruned.unpruned.score:.2f}): attrim "
                f"{command} {shlex.quote(self.model)} --edit {shlex.quote(edit)} {rest}"
            )

    def data(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        found: dict[str, Any] = {"ground": record.dump(self.ground)}
        if self.pruned is not None:
            pruned = self.pruned
            names = [name for name in record.kept(Pruned) if name != "scores"]
            found["pruned"] = {name: record.dump(getattr(pruned, name)) for name in names}
        if self.predicted is not None:
            found["predicted"] = record.dump(self.predicted)
        if self.explained is not None:
            found["maps"] = self.explained.summary
        return found


def curves_of(pruned: Pruned, scope: str, score: str, way: str) -> list[PruningCurve]:
    """The curve of a score, or those of all seeds, in one direction; random ones serve both."""
    return [
        curve
        for curve in pruned.curves
        if (curve.scope, curve.score) == (scope, score) and curve.direction in (way, "")
    ]


def difference(pruned: Pruned, scope: str, way: str, one: str, other: str) -> Interval | None:
    """Area of one score minus that of another."""
    for each in pruned.differences:
        if (each.scope, each.direction) == (scope, way):
            if (each.one, each.other) == (one, other):
                return each.area
            if (each.one, each.other) == (other, one):
                return Interval(-each.area.value, -each.area.high, -each.area.low, each.area.level)
    return None


def _pruned_sentences(pruned: Pruned) -> Iterator[str]:
    for each in pruned.differences:
        if "random" in (each.one, each.other) or each.one == pruned.differences[0].one:
            yield _difference_sentence(pruned, each)
    if pruned.first_order:
        first = [one for one in pruned.first_order if one.share == min(step.share for step in pruned.first_order)]
        for one in first:
            known = "not defined" if one.correlation is None else f"{one.correlation:+.2f}"
            yield (
                f"First order, {WAYS[one.direction]}, {percent(one.share)}: {one.score} predicts a change of the "
                f"explained logit of {one.predicted:+.3f} on average and {one.measured:+.3f} is measured; over the "
                f"examples they correlate by {known}."
            )
    if {curve.scope for curve in pruned.curves} == {"example", "dataset"}:
        yield f"Scopes are not to be compared: {FAITHFUL}."


def _difference_sentence(pruned: Pruned, each: Difference) -> str:
    """Which of two scores is better, and whether that is sure; against random orders, all of them must agree."""
    better = (each.area.value < 0) == ((each.direction == "largest") != pruned.smaller_is_better)
    sure = each.area.low > 0 or each.area.high < 0
    spread = ""
    for random, other in ((each.one, each.other), (each.other, each.one)):
        seeds = [curve.area.value for curve in curves_of(pruned, each.scope, random, each.direction)]
        if len(seeds) > 1:
            (area,) = (curve.area.value for curve in curves_of(pruned, each.scope, other, each.direction))
            sure = sure and not min(seeds) <= area <= max(seeds)
            spread = f" (single random orders {min(seeds):.2f} to {max(seeds):.2f})"
    verdict = f"{each.one if better else each.other} is better" if sure else "no difference that is sure"
    return (
        f"{each.scope}, {WAYS[each.direction]}: area of {each.one} minus {each.other} {each.area} points of "
        f"{pruned.metric}{spread}: {verdict}."
    )


def _predicted_sentences(predicted: Predicted) -> Iterator[str]:
    """Which score predicts best, over all changes or over the only one."""
    own = [each for each in predicted.agreements if not each.change]
    best = max(own, key=lambda each: each.correlation.value)
    size = max((each for each in predicted.agreements if each.change == SIZE), key=lambda each: each.correlation.value)
    fell = sum(pair.rise < 0 for pair in predicted.pairs)
    yield (
        f"The rise of the loss by a change of one head, {best.pairs} pairs of head and change: {best.score} predicts "
        f"it best, with rank correlation {best.correlation}."
    )
    yield (
        f"{fell} of {len(predicted.pairs)} changes lower the loss. How large a rise or fall is, {size.score} predicts "
        f"best, with rank correlation {size.correlation}."
    )
    for each in own:
        if each is not best and each.score in ("gradient-attention", "lrp", "random"):
            yield f"{each.score} has rank correlation {each.correlation} with the rise of the loss."


def _explained_sentences(explained: ExplainedMaps) -> Iterator[str]:
    """What the maps point at, and what removing it does, without pruning and at the highest level."""
    summary = explained.summary
    part, random = summary["part"], summary["random"]
    for level in (summary["levels"][0], summary["levels"][-1])[: len(summary["levels"])]:
        said = []
        if level["pointing"] is not None:
            said.append(
                f"{_share(level['pointing'])} of the maps point at something relevant ({_share(random['pointing'])} by "
                "chance)"
            )
        said += [f"the area of {name} is {_number(level[name])} ({_number(random[name])} in a random order)"
                 for name in ("deletion", "insertion")]  # fmt: skip
        yield f"Maps of {part} with {percent(level['level'])} of the heads left out: {', '.join(said)}."


def _share(found: dict[str, float]) -> str:
    return f"{100 * found['value']:.1f} % [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _number(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _change_label(change: str) -> str:
    return {"": "all changes", SIZE: "size of the rise"}.get(change, change)


def _agreement_chart(predicted: Predicted) -> Bars:
    """The rank correlation of every score, with intervals, for each change."""
    changes = list(dict.fromkeys(each.change for each in predicted.agreements))
    known = {(each.score, each.change): each.correlation for each in predicted.agreements}
    scores = sorted({score for score, _ in known}, key=lambda score: -known[score, changes[0]].value)
    nothing = Interval(math.nan, math.nan, math.nan)
    groups = []
    for change in changes:
        own = [known.get((score, change), nothing) for score in scores]
        numbers = ([getattr(each, end) for each in own] for end in ("value", "low", "high"))
        groups.append(Group(_change_label(change), *numbers))
    return Bars("correlation", groups=groups, labels=scores, y=Axis("rank correlation with the rise of the loss"),
                mark="dot", references=[Reference(0.0)])  # fmt: skip


def _axis(pruned: Pruned) -> Axis:
    """Of the metric, which is a share unless smaller numbers are better (perplexity)."""
    return Axis(pruned.metric if pruned.smaller_is_better else f"{pruned.metric} (%)")


def _matrix(name: str, scores: Scores) -> HeadMatrix:
    """The scores of the heads; signed ones have two colours."""
    values = scores.table().numpy()
    scope, _, label = name.partition("/")
    signed = bool(np.nanmin(values) < 0)
    most = float(np.nanmax(np.abs(values))) or 1.0
    ends = {"low": -most, "high": most} if signed else {}
    what = "mean over the examples" if scope == "example" else "other data"
    return HeadMatrix.of(file_name("scores", scope, label), values, scores.sites, f"{label}\n({what})",
                         diverging=signed, **ends)  # fmt: skip
