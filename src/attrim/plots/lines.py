"""The score against one knob of an edit: bits, a pruning constant, the layer that is edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import COLUMN, GREY, legend_below, log_places, look, styled

Axis = Literal["number", "whole", "log", "steps"]


@dataclass(frozen=True)
class Value:
    """One setting: where the knob stands, the score and the ends of its interval."""

    place: float
    score: float
    low: float | None = None
    high: float | None = None


@styled
def score_lines(
    series: Mapping[str, Sequence[Value]],
    place_label: str,
    score_label: str,
    unedited: float | None = None,
    axis: Axis = "number",
    log_score: bool = False,
) -> Figure:
    """Draw a line for each series; the dashed line is the unedited model.

    Parameters
    ----------
    axis : ``whole`` has ticks at whole numbers only (layers); ``steps`` puts the values of the knob at even distances,
        the largest first (bits from 16 down to 1).
    log_score : a logarithmic axis for scores that explode, such as perplexity.
    """
    figure = Figure(figsize=(COLUMN, 2.4))
    axes = figure.subplots()
    if unedited is not None:
        axes.axhline(unedited, color=GREY, linestyle="--", linewidth=0.8, label="unedited")
    draw_lines(axes, series, axis)
    if log_score:
        axes.set_yscale("log")
    axes.set_xlabel(place_label)
    axes.set_ylabel(score_label)
    axes.margins(y=0.1)
    legend_below(figure, series)
    return figure


def draw_lines(
    axes: Axes,
    series: Mapping[str, Sequence[Value]],
    axis: Axis,
    names: Sequence[str] | None = None,
    apart: float = 0.0,
) -> None:
    """Draw a line with intervals for each series.

    Parameters
    ----------
    names : give the series colours and markers by their place in them (default: the series themselves).
    apart : how far intervals of neighbouring series are moved apart, so that they do not cover each other.
    """
    apart = 0.06 if axis == "steps" else apart
    ordered = list(series if names is None else names)
    places = sorted({value.place for values in series.values() for value in values}, reverse=True)
    for number, (name, values) in enumerate(series.items()):
        values = sorted(values, key=lambda value: value.place)
        shift = apart * (number - (len(series) - 1) / 2)
        where = [shift + (places.index(value.place) if axis == "steps" else value.place) for value in values]
        style = look(ordered.index(name))
        axes.plot(where, [value.score for value in values], **style, label=name)
        for place, value in zip(where, values, strict=True):
            if value.low is not None and value.high is not None:
                axes.vlines(place, value.low, value.high, color=style["color"], linewidth=0.7)
    if axis == "steps":
        axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
    elif axis == "whole":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif axis == "log":
        log_places(axes, places)
