"""What an edit costs: the score of the edited model against the share of weights that it zeroes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLUMN, GREY, MARKERS, legend_below, look, styled


@dataclass(frozen=True)
class Point:
    """One setting: its label, the zero share of the attention weights, the score and the ends of its interval."""

    label: str
    sparsity: float
    score: float
    low: float | None = None
    high: float | None = None


@styled
def score_against_sparsity(
    series: Mapping[str, Sequence[Point]],
    controls: Sequence[Point] = (),
    unedited: float | None = None,
    score_label: str = "score (%)",
    annotate: bool = True,
) -> Figure:
    """Draw score against sparsity: a line for each series, a marker for each control.

    Parameters
    ----------
    series : name to points, such as all bars of one kind of threshold.
    controls : settings that show what the score is worth (attention off, uniform, random drop).
    unedited : the score of the unedited model, drawn as a horizontal line.
    annotate : write the label of every point of a series beside it.
    """
    figure = Figure(figsize=(COLUMN, 2.4))
    axes = figure.subplots()
    if unedited is not None:
        axes.axhline(unedited, color=GREY, linestyle="--", linewidth=0.8, label="unedited")
    for number, (name, points) in enumerate(series.items()):
        points = sorted(points, key=lambda point: point.sparsity)
        style = look(number)
        _interval(axes, points, style["color"])
        axes.plot([p.sparsity for p in points], [p.score for p in points], **style, label=name)
        if annotate:
            _annotate(axes, points)
    for index, point in enumerate(controls):
        marker = MARKERS[1 + index % (len(MARKERS) - 1)]
        _interval(axes, [point], GREY)
        axes.plot(point.sparsity, point.score, linestyle="", marker=marker, color=GREY, label=point.label)
    axes.set_xlabel("zero share of attention weights")
    axes.set_ylabel(score_label)
    axes.set_xlim(-0.04, 1.04)
    axes.margins(y=0.12)
    legend_below(figure, series)
    return figure


def _interval(axes: Axes, points: Sequence[Point], colour: str) -> None:
    """Draw the intervals of the points that have one."""
    for point in points:
        if point.low is not None and point.high is not None:
            below, above = max(0.0, point.score - point.low), max(0.0, point.high - point.score)
            axes.errorbar(
                point.sparsity, point.score, [[below], [above]], color=colour, capsize=1.5, linewidth=0.7, zorder=1
            )


def _annotate(axes: Axes, points: Sequence[Point]) -> None:
    """Write labels beyond the intervals: above where the line rises or stays, below where it falls."""
    for number, point in enumerate(points):
        falls = number > 0 and point.score < points[number - 1].score - 2
        end = point.low if falls else point.high
        place = (point.sparsity, point.score if end is None else end)
        offset, side = ((0, -3), "top") if falls else ((0, 2), "bottom")
        axes.annotate(point.label, place, offset, textcoords="offset points", ha="center", va=side, fontsize=6)
