"""Every chart of the sparsity study: its stats, its scores, and several runs beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.charts import Axis, Chart, Curve, Panels, Point, Reference, Scale, Series
from ...core.wording import counted
from ...evaluation import UNEDITED
from ...stats import Sample
from ...stats.display import head_bar_panels, head_bars, histogram_of_heads, layer_curve, layer_mean, row_comparison
from ...stats.distance import RowDistance
from ...stats.rowfacts import RowCurves
from ...stats.spread import Extremes, Majority
from ...stats.token_sparsity import TokenSparsity, TokenTable
from ..findings import Setting
from .claims import relative_loss
from .settings import (
    CONTROL,
    HIDDEN_BITS,
    HIDDEN_THRESHOLD,
    LAYER,
    MATCHED,
    OTHER,
    PRUNE,
    RENORMALIZED,
    THRESHOLD,
)
from .study import CURVE

if TYPE_CHECKING:
    from .findings import SparsityFindings

KNOBS: dict[str, tuple[str, str, Scale]] = {
    PRUNE: ("scores-against-prune", "pruning constant", "log"),
    LAYER: ("scores-against-layer", "layer that is edited", "whole"),
    HIDDEN_THRESHOLD: ("scores-against-hidden-bar", "bar for hidden states", "log"),
    HIDDEN_BITS: ("scores-against-hidden-bits", "bits of hidden states", "steps"),
}
"""Groups that are drawn against what is turned in them: name of the chart, label and scale of the axis."""
THRESHOLDS = (THRESHOLD, RENORMALIZED)
SPECIAL = {*THRESHOLDS, MATCHED, CONTROL, OTHER, *KNOBS}
ZEROS = Axis("zero share of attention weights", low=-0.04, high=1.04)
Heads = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Named:
    """A run with what to call it among others: legends are made by name."""

    label: str
    model: str
    found: SparsityFindings


def figures(found: SparsityFindings) -> list[Chart]:
    """Every chart that the findings allow, with the earlier runs that are drawn beside them."""
    heads, runs = found.study.heads, _named([found, *found.beside[0]])
    charts = [*_of_weights(found), *_of_tokens(found, heads)]
    if "hidden" in found.stats:
        charts += [chart for stat in found.stats["hidden"].values() for chart in stat.charts()]
    if "distances" in found.stats:
        charts += _of_distances(found.stats["distances"][RowDistance], heads)
    if "matrices" in found.stats:
        sample = found.stats["matrices"][Sample]
        charts += [
            chart
            for number in sample.examples
            for site in sample.sites
            for chart in sample.site_charts(site, found.vocabulary, number)
        ]
    charts += _of_chosen_heads(runs, heads)
    if len(runs) > 1:
        charts += _comparisons(runs)
    if found.results:
        charts += _of_scores(runs)
    return [*charts, *_panels([run for run in runs if run.found.results])]


def _named(runs: Sequence[SparsityFindings]) -> list[Named]:
    """The runs with numbers behind names that occur more than once."""
    models = [run.model.rstrip("/").rpartition("/")[2] for run in runs]
    labels = [f"{model}, {run.task}" for model, run in zip(models, runs, strict=True)]
    named = []
    for place, (model, label, run) in enumerate(zip(models, labels, runs, strict=True)):
        number = f" ({labels[: place + 1].count(label)})" if labels.count(label) > 1 else ""
        named.append(Named(f"{label}{number}", f"{model}{number}", run))
    return named


# What was measured


def _of_weights(found: SparsityFindings) -> Iterator[Chart]:
    """How the weights are distributed: over all heads, over single rows, over examples."""
    weights, histogram = found.stats["weights"], found.histogram
    yield histogram.distribution_chart()
    yield histogram.heads_chart()
    yield histogram.bars_chart()
    for site in histogram.sites:
        yield histogram.rows_chart(site, weights[RowCurves])
    yield from histogram.row_charts()
    yield from weights[Extremes].charts()
    yield from weights[Majority].charts()


def _of_tokens(found: SparsityFindings, heads: Heads) -> Iterator[Chart]:
    """How sparse the rows of frequent tokens are, in all heads and in chosen ones, and those of single examples."""
    if "tokens" not in found.stats:
        return
    stats = found.stats["tokens"]
    yield stats[TokenSparsity].sparsity_chart(found.vocabulary)
    yield stats[TokenSparsity].curves_chart("tokens-curves-all-heads", found.vocabulary, CURVE)
    for layer, head in heads:
        stat = found.stats[f"tokens/{layer}-{head}"][TokenSparsity]
        yield stat.curves_chart(f"tokens-curves-layer-{layer}-head-{head}", found.vocabulary, CURVE)
    if "TokenTable" in stats:
        yield from stats[TokenTable].charts(found.vocabulary)


def _of_distances(stat: RowDistance, heads: Heads) -> Iterator[Chart]:
    """The rows' histograms after each edit over the original ones: of all heads, and of chosen ones."""
    if stat.edits:
        yield stat.overlay_chart("quantised-rows")
        places = {site.layer: place for place, site in enumerate(stat.sites) if site.role == stat.sites[0].role}
        for layer, head in heads:
            if layer in places:
                yield stat.overlay_chart(f"quantised-rows-layer-{layer}-head-{head}", places[layer], head)


def _of_chosen_heads(runs: Sequence[Named], heads: Heads) -> Iterator[Chart]:
    """The chosen heads of this run in one chart, and each of them in all runs that have it."""
    if not heads:
        return
    tables = {run.label: _rows(run.found) for run in runs}
    this = tables[runs[0].label]
    named = {f"layer {layer} head {head}": this[layer, head] for layer, head in heads if (layer, head) in this}
    floor = runs[0].found.histogram.floor
    if named:
        yield row_comparison("chosen-heads", runs[0].label, named, floor)
    for layer, head in heads if len(runs) > 1 else ():
        series = {name: table[layer, head] for name, table in tables.items() if (layer, head) in table}
        if series:
            yield row_comparison(f"compare-layer-{layer}-head-{head}", f"layer {layer} head {head}", series, floor)


def _comparisons(runs: Sequence[Named]) -> Iterator[Chart]:
    """Several models: all rows, diversity by layer, tokens to majority of every head."""
    histograms = {run.label: run.found.histogram for run in runs}
    first = runs[0].found.histogram
    rows = {name: np.nanmean(np.asarray(one.row_histogram()), axis=(0, 1)) for name, one in histograms.items()}
    yield row_comparison("compare-rows", "", rows, first.floor)
    diversity = {name: layer_mean(one.diversity()) for name, one in histograms.items()}
    yield layer_curve("compare-diversity", "", "diversity (bins)", diversity)
    medians = {name: one.median_bin() for name, one in histograms.items()}
    yield histogram_of_heads("compare-median-of-rows", "", "mean median bin", medians)
    places = {name: [(site.role, site.layer, site.heads) for site in one.sites] for name, one in histograms.items()}
    alike = [run for run in runs if places[run.label] == places[runs[0].label]]
    if len(alike) > 1:
        varying = {run.label: run.found.stats["weights"][Majority].varying() for run in alike}
        labels = next(iter(varying.values()))
        bars = [head_bars(text, {name: own[text] for name, own in varying.items()}, first.sites) for text in labels]
        yield head_bar_panels("compare-tokens-to-majority", "", bars)


def _rows(found: SparsityFindings) -> dict[tuple[int, int], Any]:
    """The mean row histogram of every head by layer and head number; roles after the first are left out."""
    rows, sites = np.asarray(found.histogram.row_histogram()), found.histogram.sites
    return {
        (site.layer, head): rows[place, head]
        for place, site in enumerate(sites)
        if site.role == sites[0].role
        for head in range(site.heads)
        if np.isfinite(rows[place, head]).all()  # watched
    }


# What was evaluated


def _of_scores(runs: Sequence[Named]) -> Iterator[Chart]:
    """Score against sparsity, bits and every other knob that was turned; ``runs`` has this run first."""
    this = runs[0].found
    unedited = Reference(this.results[UNEDITED].metrics[this.metric], "unedited")
    score = _score(this)
    controls = [_point(setting, this, _zeros(this)) for setting in this.group(CONTROL)]
    series = _series([*THRESHOLDS, MATCHED], this, _zeros(this))
    if series:
        yield Curve("score-against-sparsity", series=series, x=ZEROS, y=score, controls=controls, references=[unedited])
        yield from _against_bar(this, unedited)
    yield from _relative(runs)
    quantised = [group for group in dict.fromkeys(one.group for one in this.settings) if group not in SPECIAL]
    if quantised:
        lines = _series(quantised, this)
        yield Curve("score-against-bits", series=lines, x=Axis("bits", "steps"), y=_score(this, lines),
                    references=[unedited])  # fmt: skip
        points = _series(quantised, this, _zeros(this))
        name = "quantised-score-against-sparsity"
        yield Curve(name, series=points, x=ZEROS, y=score, controls=controls, references=[unedited])
    for group, (name, text, scale) in KNOBS.items():
        lines = _series([group], this, name=_method(group, this))
        if lines:
            yield Curve(name, series=lines, x=Axis(text, scale), y=score, references=[unedited])


def _against_bar(found: SparsityFindings, unedited: Reference) -> Iterator[Chart]:
    """The score (left) and the zero share (right) against the bar, of each form of thresholds that was tried."""
    forms = [form for form in THRESHOLDS if found.group(form)]
    behind = {form: f", {form.partition(', ')[2] or 'as in the paper'}" if len(forms) > 1 else "" for form in forms}
    series = [
        Series.of(f"{text}{behind[form]}", [_point(one, found, read=read) for one in found.group(form)], right=right)
        for text, read, right in ((found.metric, None, False), ("zero share", _zeros(found), True))
        for form in forms
    ]
    if series:
        yield Curve(
            "score-and-sparsity-against-bar",
            series=series,
            x=Axis("bar", "log"),
            y=_score(found),
            right=Axis(ZEROS.label, low=0.0, high=1.04),
            references=[unedited],
        )


def _relative(runs: Sequence[Named]) -> Iterator[Chart]:
    """The relative change against sparsity, of this run's thresholds and of those of earlier runs."""
    series, metrics = [], []
    for run in runs:
        for form in THRESHOLDS if run.found.results else ():
            points = [point for one in run.found.group(form) if (point := _relative_point(one, run.found))]
            if points:
                behind = ", renormalised" if form == RENORMALIZED else ""
                series.append(Series.of(f"{run.label}{behind}", points))
                metrics.append(run.found.metric)
    if series:
        label = f"relative change of {', '.join(dict.fromkeys(metrics))} (%)"
        name, nothing = "relative-change-against-sparsity", [Reference(0.0, "unedited")]
        yield Curve(name, series=series, x=ZEROS, y=Axis(label), references=nothing)


def _relative_point(setting: Setting, found: SparsityFindings) -> Point | None:
    result = found.results[setting.name]
    loss = relative_loss(result, found.results[UNEDITED], found.metric, found.smaller_is_better)
    if loss is None:
        return None
    sign = 1 if found.smaller_is_better else -1
    low, high = sorted((sign * loss.low, sign * loss.high))
    return Point(result.zero_share, sign * loss.value, low, high, setting.name)


def _panels(runs: Sequence[Named]) -> Iterator[Chart]:
    """Score against sparsity, bits and the pruning constant of several runs: models as lines, tasks as panels."""
    if len(runs) < 2:
        return
    by_task: dict[str, list[Named]] = {}
    for run in runs:
        by_task.setdefault(run.found.task, []).append(run)
    alike = list(by_task.values())
    yield from _in_panels("panels-score-against-sparsity", ZEROS, [_by_model(some, THRESHOLDS) for some in alike])
    yield from _in_panels("panels-score-against-bits", Axis("bits", "steps"), [_by_method(run) for run in runs])
    name, text, scale = KNOBS[PRUNE]
    yield from _in_panels(f"panels-{name}", Axis(text, scale), [_by_model(some, [PRUNE]) for some in alike])


Panel = tuple[str, "SparsityFindings", list[Series], Mapping[str, "SparsityFindings"]]
"""Its title, a run whose score is on its axis, its series, and whose unedited score is drawn in which one's colour."""


def _in_panels(name: str, x: Axis, panels: Sequence[Panel]) -> Iterator[Chart]:
    charts = [
        Curve(
            "",
            title,
            series=series,
            x=x,
            y=_score(found, series, reverse=found.smaller_is_better),
            references=[
                Reference(one.results[UNEDITED].metrics[one.metric], series=line if len(unedited) > 1 else "")
                for line, one in unedited.items()
            ],
        )
        for title, found, series, unedited in panels
        if series
    ]
    if charts:
        yield Panels(name, charts=charts, across=min(3, len(charts)))


def _by_model(runs: Sequence[Named], groups: Sequence[str]) -> Panel:
    """One task: a line for each run's settings of a group, against the zero share for thresholds, else their value."""
    lines: dict[str, tuple[Series, SparsityFindings]] = {}
    for run in runs:
        for group in groups:
            name = f"{run.model}, renormalised" if group == RENORMALIZED else run.model
            place = _zeros(run.found) if group in THRESHOLDS else None
            for line in _series([group], run.found, place, name):
                lines[name] = line, run.found
    unedited = {name: found for name, (_, found) in lines.items() if not name.endswith(", renormalised")}
    return runs[0].found.task, runs[0].found, [line for line, _ in lines.values()], unedited


def _by_method(run: Named) -> Panel:
    """One run: a line for each quantising method, against bits."""
    groups = [group for group in dict.fromkeys(one.group for one in run.found.settings) if group not in SPECIAL]
    return run.label, run.found, _series(groups, run.found), {run.label: run.found}


# Points


Read = Callable[[Setting], float]


def _zeros(found: SparsityFindings) -> Read:
    """Reads the zero share of a setting."""
    return lambda setting: found.results[setting.name].zero_share


def _point(setting: Setting, found: SparsityFindings, place: Read | None = None, read: Read | None = None) -> Point:
    """A setting as a point; the interval of its score is that of the change, moved to the score.

    Parameters
    ----------
    place : reads where it stands; by default its value.
    read : reads the number if it is not the score.
    """
    x, label = (setting.value if place is None else place(setting)), setting.label or f"{setting.value:g}"
    if read is not None:
        return Point(x, read(setting), label=label)
    result, unedited = found.results[setting.name], found.results[UNEDITED].metrics[found.metric]
    change = result.changes[found.metric]
    return Point(x, result.metrics[found.metric], unedited + change.low, unedited + change.high, label)


def _series(groups: Sequence[str], found: SparsityFindings, place: Read | None = None, name: str = "") -> list[Series]:
    """The groups that were tried as lines; ``name`` is for a single group that is not to be called by its own."""
    tried = {group: found.group(group) for group in groups}
    return [
        Series.of(name or group, [_point(setting, found, place) for setting in settings])
        for group, settings in tried.items()
        if settings
    ]


def _method(group: str, found: SparsityFindings) -> str:
    """What was done in a group that is drawn against what is turned in it."""
    study = found.study
    names = {
        PRUNE: f"{study.prune_method}, {counted(study.prune_bits, 'bit')}",
        LAYER: study.layer_edit,
        HIDDEN_THRESHOLD: "threshold for hidden states",
        HIDDEN_BITS: f"{study.hidden_method} quantising of hidden states",
    }
    return names[group]


def _score(found: SparsityFindings, lines: Sequence[Series] = (), reverse: bool = False) -> Axis:
    """The axis of scores; logarithmic where they are so many times the unedited one that nothing else shows both."""
    largest = max((float(line.y.max()) for line in lines), default=0.0)
    explodes = found.smaller_is_better and largest > 10 * found.results[UNEDITED].metrics[found.metric]
    most = None if found.smaller_is_better else 100.0
    return Axis(found.score_label, "log" if explodes else "number", most=most, reverse=reverse)
