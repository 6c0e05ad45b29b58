"""Several runs of the sparsity study side by side: models as lines, tasks as panels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from ...evaluation import UNEDITED
from ...plots.lines import Value
from ...plots.panels import Panel, score_panels
from .compare import Earlier
from .scores import KNOBS, SPECIAL, explodes, values
from .sweep import PRUNE, THRESHOLD


def panel_figures(runs: Sequence[Earlier]) -> Iterator[tuple[str, Figure]]:
    """Score against sparsity, bits and the pruning constant, of all runs that have results; nothing for one run."""
    runs = [run for run in runs if run.results]
    if len(runs) < 2:
        return
    by_task: dict[str, list[Earlier]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    sparsity = [_by_model(alike, THRESHOLD) for alike in by_task.values()]
    label = "zero share of attention weights"
    yield from _figure("panels-score-against-sparsity", sparsity, label, "number", (-0.04, 1.04))
    bits = [_by_method(run) for run in runs]
    yield from _figure("panels-score-against-bits", bits, "bits", "steps")
    name, text, axis = KNOBS[PRUNE]
    prunes = [_by_model(alike, PRUNE) for alike in by_task.values()]
    yield from _figure(f"panels-{name}", prunes, text, axis)


def _figure(
    name: str, panels: Sequence[Panel], label: str, axis: str, limits: tuple[float, float] | None = None
) -> Iterator[tuple[str, Figure]]:
    drawn = [panel for panel in panels if panel.series]
    if drawn:
        yield name, score_panels(drawn, label, axis, limits)  # type: ignore[arg-type]


def _by_model(runs: Sequence[Earlier], group: str) -> Panel:
    """One task: a line for each run's settings of a group, against the zero share for thresholds, else their value."""
    series: dict[str, list[Value]] = {}
    for run in runs:
        found = values(run.group(group), run, by_sparsity=group == THRESHOLD)
        if found:
            series[run.model] = found
    return _panel(runs[0].task, runs[0], series, {run.model: run for run in runs if run.model in series})


def _by_method(run: Earlier) -> Panel:
    """One run: a line for each quantising method, against bits."""
    groups = dict.fromkeys(setting.group for setting in run.settings if setting.group not in SPECIAL)
    series = {group: found for group in groups if (found := values(run.group(group), run))}
    return _panel(run.label, run, series, {run.label: run})


def _panel(title: str, run: Earlier, series: dict[str, list[Value]], unedited: dict[str, Earlier]) -> Panel:
    scores = {name: one.results[UNEDITED].metrics[one.metric] for name, one in unedited.items()}
    return Panel(
        title,
        run.score_label,
        series,
        scores,
        run.smaller_is_better,
        explodes(series, max(scores.values(), default=0.0), run.smaller_is_better),
    )
