"""Lines with intervals and bands: scores against one knob, shares up to a value, numbers over training steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...core.charts import Axis, Curve, Drop, Point, Reference, Series, TrainingSteps
from .style import GREY, MARKERS, Place, looks, references, shape_axes, shape_upright

DENSE = 24  # a line with more points than this has no markers
OPACITY = 0.2  # of the widest band; the next ones are darker


def draw_curve(axes: Axes, chart: Curve, place: Place) -> None:
    """Draw lines, controls and lines across; the left axis first, so that its series come first in the legend."""
    styles = looks(chart.series, place.names)
    colours = {series.name: style["color"] for series, style in zip(chart.series, styles, strict=True)}
    references(axes, chart.references, colours)
    right = axes.twinx() if isinstance(chart.right, Axis) else axes
    steps = _steps(chart.series) if chart.x.scale == "steps" else None
    apart = 0.06 if steps is not None else chart.apart
    for number, (series, style) in enumerate(zip(chart.series, styles, strict=True)):
        where = series.x if steps is None else np.array([steps.index(x) for x in series.x])
        shift = apart * (number - (len(chart.series) - 1) / 2)
        draw_series(right if series.right else axes, series, style, where + shift)
        if chart.annotate:
            _annotate(axes, series.points())
    for number, control in enumerate(chart.controls):
        marker = MARKERS[1 + number % (len(MARKERS) - 1)]
        axes.plot(control.x, control.y, linestyle="", marker=marker, color=GREY, label=control.label)
        _interval(axes, control.x, control.low, control.high, GREY)
    shape_axes(axes, chart.x, chart.y, [x for series in chart.series for x in series.x], place)
    if steps is not None:
        axes.set_xticks(range(len(steps)), [f"{x:g}" for x in steps])
    if isinstance(chart.right, Drop):
        _drop_axis(axes, chart.right)
    elif chart.right is not None:
        shape_right(
            right, chart.right, place, [style for one, style in zip(chart.series, styles, strict=True) if one.right]
        )
        left = [style["color"] for one, style in zip(chart.series, styles, strict=True) if not one.right]
        if len(left) == 1:
            axes.yaxis.label.set_color(left[0])


def draw_steps(axes: Axes, chart: TrainingSteps, place: Place) -> None:
    """Draw numbers over training steps; events are vertical lines."""
    events = [Reference(event.value, event.label, "vertical", event.series) for event in chart.events]
    curve = Curve(chart.name, chart.title, series=chart.series, x=chart.x, y=chart.y, references=events)
    draw_curve(axes, curve, place)


def draw_series(axes: Axes, series: Series, style: dict[str, Any], where: Any) -> None:
    """Draw one line at the places ``where`` with its bands and intervals."""
    style = {key: value for key, value in style.items() if key != "marker" or len(where) <= DENSE}
    for number, band in enumerate(series.bands):
        axes.fill_between(where, band.low, band.high, color=style["color"], alpha=OPACITY * (number + 1), linewidth=0)
    axes.plot(where, series.y, **style, label=_label(series))
    if series.low is not None and series.high is not None:
        for x, low, high in zip(where, series.low, series.high, strict=True):
            _interval(axes, x, low, high, style["color"])


def shape_right(axes: Axes, axis: Axis, place: Place, styles: Sequence[dict[str, Any]]) -> None:
    """The right axis: in the colour of its only series; among small panels only the last one has labels."""
    shape_upright(axes, axis)
    axes.grid(False)
    axes.spines["right"].set_visible(not place.compact)
    axes.tick_params(labelright=place.last, right=place.last)
    if place.last:
        colour = styles[0]["color"] if len(styles) == 1 else "black"
        axes.set_ylabel(axis.label, color=colour, fontsize=6 if place.compact else 8)


def _label(series: Series) -> str:
    """The name of a series in the legend; the crowd behind the named ones is not in it."""
    return "" if series.look == "muted" else series.name


def _steps(series: Sequence[Series]) -> list[float]:
    """The values of a knob that are evenly spaced, the largest first."""
    return sorted({float(x) for one in series for x in one.x}, reverse=True)


def _interval(axes: Axes, x: float, low: float | None, high: float | None, colour: str) -> None:
    if low is not None and high is not None and np.isfinite([low, high]).all():
        axes.vlines(x, low, high, color=colour, linewidth=0.7)


def _annotate(axes: Axes, points: Sequence[Point]) -> None:
    """Write labels beyond the intervals: above where the line rises or stays, below where it falls."""
    for number, point in enumerate(points):
        falls = number > 0 and point.y < points[number - 1].y - 2
        end = point.low if falls else point.high
        place = (point.x, point.y if end is None else end)
        offset, side = ((0, -3), "top") if falls else ((0, 2), "bottom")
        axes.annotate(point.label, place, offset, textcoords="offset points", ha="center", va=side, fontsize=6)


def _drop_axis(axes: Axes, drop: Drop) -> None:
    sign = -1 if drop.rise else 1
    axes.axhline(drop.baseline, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    to_drop = lambda score: sign * 100 * (drop.baseline - score) / drop.baseline
    to_score = lambda share: drop.baseline * (1 - sign * share / 100)
    axes.secondary_yaxis("right", functions=(to_drop, to_score)).set_ylabel(drop.label)
