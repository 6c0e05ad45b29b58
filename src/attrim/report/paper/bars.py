"""Bars for a few settings or tokens, and dots with error bars for all heads of a model."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from ...core.charts import Bars, Group
from .style import COLOURS, GREY, Place, references, shape_axes

MANY = 12  # with more bars than this the labels stand upright
LETTER = 0.6  # width of a letter on average, in the size of the letters
TICKS = 24  # at most so many sections have a label


def draw_bars(axes: Axes, chart: Bars, place: Place) -> None:
    """Draw every group in its colour, beside the others."""
    names = list(place.names) or [group.name for group in chart.groups]
    # References that belong to a group have its colour.
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    for number, group in enumerate(chart.groups):
        colour = colours.get(group.name, COLOURS[number % len(COLOURS)]) if group.name else COLOURS[0]
        draw = _bars if chart.mark == "bar" else _dots
        draw(axes, group, number - (len(chart.groups) - 1) / 2, len(chart.groups), colour)
    references(axes, chart.references, colours)
    shape_axes(axes, chart.x, chart.y)
    axes.grid(False, axis="x")
    if chart.sections:
        _sections(axes, chart)
    else:
        many = len(chart.labels) > MANY
        rotation, size = (90, 5) if many else (0, 7)
        places = range(len(chart.labels))
        labels = list(chart.labels) if many else _folded(axes, chart.labels, size)
        axes.set_xticks(places, labels, rotation=rotation, fontsize=size, parse_math=False)
        if many:
            axes.set_xlim(-0.7, len(chart.labels) - 0.3)


def _folded(axes: Axes, labels: Sequence[str], size: float) -> list[str]:
    """Labels on several lines, where neighbours would touch on one."""
    inches = axes.get_position().width * axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    room = int(72 * inches / len(labels) / (LETTER * size))
    if max(map(len, labels)) < room:
        return list(labels)
    return ["\n".join(textwrap.wrap(label, max(room - 1, 4), break_long_words=False)) for label in labels]


def _bars(axes: Axes, group: Group, offset: float, groups: int, colour: str) -> None:
    width = 0.8 / groups
    places = np.arange(len(group.values)) + width * offset
    known = np.isfinite(group.values)
    axes.bar(places[known], group.values[known], (0.92 if groups > 1 else 1.0) * width, color=colour, label=group.name)
    if group.low is not None and group.high is not None:
        axes.vlines(places[known], group.low[known], group.high[known], color="black", linewidth=0.8)
    for where, points in zip(places, group.points, strict=bool(group.points)):
        axes.plot([where] * len(points), points, linestyle="", marker="o", markersize=2, color="black", alpha=0.7)


def _dots(axes: Axes, group: Group, offset: float, groups: int, colour: str) -> None:
    """Dots with a thick bar for the interval and a thin one for the extremes."""
    places = np.arange(len(group.values)) + min(0.3, 0.8 / groups) * offset  # clear of the dots of its neighbours
    if group.smallest is not None and group.largest is not None:
        axes.vlines(places, group.smallest, group.largest, color=GREY, linewidth=0.5)
    low, high = (group.values, group.values) if group.low is None else (group.low, group.high)
    # Rounding may put an end on the wrong side, which matplotlib refuses.
    spread = np.maximum(np.stack([group.values - low, high - group.values]), 0.0)
    axes.errorbar(
        places,
        group.values,
        spread,
        linestyle="",
        marker="o",
        markersize=2,
        linewidth=1.4,
        color=colour,
        label=group.name,
    )


def _sections(axes: Axes, chart: Bars) -> None:
    """Shade every second section and write its label in the middle; not all of them where there are many."""
    ends = np.cumsum([0, *(section.length for section in chart.sections)])
    for number in range(0, len(chart.sections), 2):
        axes.axvspan(ends[number] - 0.5, ends[number + 1] - 0.5, color="#f0f0f0", linewidth=0, zorder=0)
    step = max(1, round(len(chart.sections) / TICKS))
    places = [(ends[number] + ends[number + 1] - 1) / 2 for number in range(0, len(chart.sections), step)]
    axes.set_xticks(places, [section.label for section in chart.sections[::step]])
    axes.set_xlim(-0.5, ends[-1] - 0.5)
