"""The figures of the sparsity study that have a score on their axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from ...evaluate import UNEDITED
from ...plots import Point, score_against_sparsity
from ...plots.lines import Value, score_lines
from ...results import Result
from ...tasks import Task
from .claims import relative_loss
from .compare import Earlier
from .sweep import CONTROL, HIDDEN_BITS, HIDDEN_THRESHOLD, LAYER, MATCHED, OTHER, PRUNE, THRESHOLD, Setting

KNOBS = {
    PRUNE: ("scores-against-prune", "pruning constant", "log"),
    LAYER: ("scores-against-layer", "layer that is edited", "number"),
    HIDDEN_THRESHOLD: ("scores-against-hidden-bar", "bar for hidden states", "log"),
    HIDDEN_BITS: ("scores-against-hidden-bits", "bits of hidden states", "steps"),
}
SPECIAL = {THRESHOLD, MATCHED, CONTROL, OTHER, *KNOBS}


def score_figures(settings: Sequence[Setting], task: Task, runs: Sequence[Earlier]) -> Iterator[tuple[str, Figure]]:
    """Score against sparsity, bits and every other knob that was turned; ``runs`` has this run first."""
    this = runs[0].results
    metric = next(iter(task.metrics))
    unedited = this[UNEDITED].metrics[metric]
    smaller = metric in task.smaller_is_better
    label = f"{metric}, smaller is better" if smaller else f"{metric} (%)"
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    series = {
        name: [_point(setting, this, metric) for setting in groups[name]]
        for name in (THRESHOLD, MATCHED)
        if name in groups
    }
    controls = [_point(setting, this, metric) for setting in groups.get(CONTROL, [])]
    if series:
        yield "score-against-sparsity", score_against_sparsity(series, controls, unedited, label, annotate=False)
    yield from _relative(settings, runs, metric, smaller)
    quantised = {group: found for group, found in groups.items() if group not in SPECIAL}
    if quantised:
        lines = {group: _values(found, this, metric) for group, found in quantised.items()}
        yield (
            "score-against-bits",
            score_lines(lines, "bits", label, unedited, "steps", log_score=_explodes(lines, unedited, smaller)),
        )
        points = {group: [_point(setting, this, metric) for setting in found] for group, found in quantised.items()}
        yield "quantised-score-against-sparsity", score_against_sparsity(points, controls, unedited, label, False)
    for group, (name, text, axis) in KNOBS.items():
        if group in groups:
            lines = {"edited": _values(groups[group], this, metric)}
            yield name, score_lines(lines, text, label, unedited, axis)  # type: ignore[arg-type]


def _relative(
    settings: Sequence[Setting], runs: Sequence[Earlier], metric: str, smaller: bool
) -> Iterator[tuple[str, Figure]]:
    """The relative change against sparsity, of this run's thresholds and of those of earlier runs."""
    series = {}
    for place, run in enumerate(runs):
        if place == 0:
            names = [setting.name for setting in settings if setting.group == THRESHOLD]
        else:
            names = [name for name in run.results if name.startswith(f"{THRESHOLD}:")]
        points = [point for name in names if (point := _relative_point(name, run.results, metric, smaller))]
        if points:
            series[run.label] = points
    if series:
        text = f"relative change of {metric} (%)"
        yield "relative-change-against-sparsity", score_against_sparsity(series, (), 0.0, text, annotate=False)


def _relative_point(name: str, results: Mapping[str, Result], metric: str, smaller: bool) -> Point | None:
    if metric not in results[name].metrics:  # a run of another task: its own first metric
        metric = next(iter(results[name].metrics))
    loss = relative_loss(results[name], results[UNEDITED], metric, smaller)
    if loss is None:
        return None
    sign = 1 if smaller else -1
    low, high = sorted((sign * loss.low, sign * loss.high))
    return Point(name, results[name].zero_share, sign * loss.value, low, high)


def _point(setting: Setting, results: Mapping[str, Result], metric: str) -> Point:
    """A setting as a point; its interval is that of the change, moved to the score."""
    result, unedited = results[setting.name], results[UNEDITED].metrics[metric]
    change = result.changes[metric]
    place = f"{setting.value:g}"
    name = setting.label or place
    return Point(name, result.zero_share, result.metrics[metric], unedited + change.low, unedited + change.high)


def _values(settings: Sequence[Setting], results: Mapping[str, Result], metric: str) -> list[Value]:
    points = ((setting, _point(setting, results, metric)) for setting in settings)
    return [Value(setting.value, point.score, point.low, point.high) for setting, point in points]


def _explodes(lines: Mapping[str, Sequence[Value]], unedited: float, smaller: bool) -> bool:
    """Whether scores are so many times the unedited one that only a logarithmic axis shows both."""
    return smaller and max(value.score for values in lines.values() for value in values) > 10 * unedited
