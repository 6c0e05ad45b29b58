"""The figures of the sparsity study that have a score on their axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from ...evaluation import UNEDITED
from ...plots import Point, score_against_sparsity
from ...plots.lines import Value, score_lines
from ...plots.thresholds import score_and_sparsity
from .claims import relative_loss
from .compare import Earlier
from .sweep import CONTROL, HIDDEN_BITS, HIDDEN_THRESHOLD, LAYER, MATCHED, OTHER, PRUNE, THRESHOLD, Setting

KNOBS = {
    PRUNE: ("scores-against-prune", "pruning constant", "log"),
    LAYER: ("scores-against-layer", "layer that is edited", "whole"),
    HIDDEN_THRESHOLD: ("scores-against-hidden-bar", "bar for hidden states", "log"),
    HIDDEN_BITS: ("scores-against-hidden-bits", "bits of hidden states", "steps"),
}
SPECIAL = {THRESHOLD, MATCHED, CONTROL, OTHER, *KNOBS}


def score_figures(runs: Sequence[Earlier]) -> Iterator[tuple[str, Figure]]:
    """Score against sparsity, bits and every other knob that was turned; ``runs`` has this run first."""
    this = runs[0]
    unedited = this.results[UNEDITED].metrics[this.metric]
    label = this.score_label
    groups: dict[str, list[Setting]] = {}
    for setting in this.settings:
        groups.setdefault(setting.group, []).append(setting)
    series = {
        name: [_point(setting, this) for setting in groups[name]] for name in (THRESHOLD, MATCHED) if name in groups
    }
    controls = [_point(setting, this) for setting in groups.get(CONTROL, [])]
    if series:
        yield "score-against-sparsity", score_against_sparsity(series, controls, unedited, label, annotate=False)
    if THRESHOLD in groups:
        against_bar = [(setting.value, _point(setting, this)) for setting in groups[THRESHOLD]]
        yield "score-and-sparsity-against-bar", score_and_sparsity(against_bar, unedited, label)
    yield from _relative(runs)
    quantised = {group: found for group, found in groups.items() if group not in SPECIAL}
    if quantised:
        lines = {group: values(found, this) for group, found in quantised.items()}
        exploding = explodes(lines, unedited, this.smaller_is_better)
        yield "score-against-bits", score_lines(lines, "bits", label, unedited, "steps", log_score=exploding)
        points = {group: [_point(setting, this) for setting in found] for group, found in quantised.items()}
        yield "quantised-score-against-sparsity", score_against_sparsity(points, controls, unedited, label, False)
    for group, (name, text, axis) in KNOBS.items():
        if group in groups:
            lines = {"edited": values(groups[group], this)}
            yield name, score_lines(lines, text, label, unedited, axis)  # type: ignore[arg-type]


def _relative(runs: Sequence[Earlier]) -> Iterator[tuple[str, Figure]]:
    """The relative change against sparsity, of this run's thresholds and of those of earlier runs."""
    series = {}
    for run in runs:
        points = [point for setting in run.group(THRESHOLD) if (point := _relative_point(setting, run))]
        if points:
            series[run.label] = points
    if series:
        metrics = ", ".join(dict.fromkeys(run.metric for run in runs if run.label in series))
        text = f"relative change of {metrics} (%)"
        yield "relative-change-against-sparsity", score_against_sparsity(series, (), 0.0, text, annotate=False)


def _relative_point(setting: Setting, run: Earlier) -> Point | None:
    result = run.results[setting.name]
    loss = relative_loss(result, run.results[UNEDITED], run.metric, run.smaller_is_better)
    if loss is None:
        return None
    sign = 1 if run.smaller_is_better else -1
    low, high = sorted((sign * loss.low, sign * loss.high))
    return Point(setting.name, result.zero_share, sign * loss.value, low, high)


def _point(setting: Setting, run: Earlier) -> Point:
    """A setting as a point; its interval is that of the change, moved to the score."""
    result, unedited = run.results[setting.name], run.results[UNEDITED].metrics[run.metric]
    change = result.changes[run.metric]
    name = setting.label or f"{setting.value:g}"
    return Point(name, result.zero_share, result.metrics[run.metric], unedited + change.low, unedited + change.high)


def values(settings: Sequence[Setting], run: Earlier, by_sparsity: bool = False) -> list[Value]:
    """Settings for a line: where their knob stands (or their zero share), and the score with its interval."""
    points = ((setting, _point(setting, run)) for setting in settings)
    return [
        Value(point.sparsity if by_sparsity else setting.value, point.score, point.low, point.high)
        for setting, point in points
    ]


def explodes(lines: Mapping[str, Sequence[Value]], unedited: float, smaller_is_better: bool) -> bool:
    """Whether scores are so many times the unedited one that only a logarithmic axis shows both."""
    largest = max((value.score for values in lines.values() for value in values), default=0.0)
    return smaller_is_better and largest > 10 * unedited
