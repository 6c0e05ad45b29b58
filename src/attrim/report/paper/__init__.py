"""Figures fit for a paper: :func:`draw` makes a matplotlib figure of any chart, :func:`save` writes it as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...core.charts import (
    Bars,
    Chart,
    Curve,
    Distribution,
    HeadMatrix,
    ImageRegions,
    Panels,
    Pattern,
    RelevanceStrip,
    TokenStrip,
    TrainingSteps,
)
from ...errors import ParameterError
from .bars import draw_bars
from .curves import draw_curve, draw_steps
from .distributions import draw_distribution
from .explained import draw_relevance
from .matrices import draw_heads, draw_matrix, draw_pattern
from .strips import draw_regions, draw_tokens
from .style import COLUMN, PAGE, Place, grid, hold_labels, legend, paper, parts_of, write

FIGURES: dict[type[Chart], Callable[[Any], Figure]] = {
    HeadMatrix: draw_heads,
    Pattern: draw_pattern,
    TokenStrip: draw_tokens,
    ImageRegions: draw_regions,
    RelevanceStrip: draw_relevance,
}
PANELS: dict[type[Chart], Callable[[Axes, Any, Place], None]] = {
    Curve: draw_curve,
    TrainingSteps: draw_steps,
    Bars: draw_bars,
    Distribution: draw_distribution,
    Pattern: draw_matrix,
}
HIGHEST = 9.0  # inches, of a grid that has labels for its rows and columns


def draw(chart: Chart) -> Figure:
    """Draw a chart in the style of this package."""
    with paper():
        if isinstance(chart, Panels):
            figure = _draw_panels(chart)
        elif type(chart) in FIGURES:
            figure = FIGURES[type(chart)](chart)
        elif type(chart) in PANELS:
            figure = Figure(figsize=_size(chart))
            PANELS[type(chart)](figure.subplots(), chart, Place())
            legend(figure, [chart], getattr(chart, "legend", ""))
        else:
            raise ParameterError(f"A {type(chart).__name__} cannot be drawn as a figure; show it in the terminal.")
        if chart.title:
            figure.suptitle(chart.title, fontsize=8, parse_math=False)
        hold_labels(figure)
        return figure


def save(chart: Chart, folder: Path | str, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw a chart and write it to ``folder`` under its own name, once for each format; returns the files."""
    if not chart.name:
        raise ParameterError(f"A {type(chart).__name__} without a name cannot be written; give it one.")
    return write(draw(chart), Path(folder) / chart.name, formats)


def _size(chart: Chart) -> tuple[float, float]:
    """One column of a page, or as wide as many bars need."""
    if not isinstance(chart, Bars):
        return COLUMN, 2.4
    if chart.sections:
        return PAGE, 2.2
    return min(PAGE, 1.2 + 0.42 * len(chart.labels) * max(len(chart.groups), 1.5)), 2.7


def _draw_panels(chart: Panels) -> Figure:
    """Draw every chart into a panel; series of one name have one colour, and there is one legend."""
    if chart.columns:
        down, across = len(chart.rows), len(chart.columns)
        height = min(HIGHEST, 0.45 * down + 0.7)
    else:
        down, across = grid(len(chart.charts), chart.across or _across(chart))
        height = _height(chart) * down + (0.7 if across == 1 else 0.5)
    figure = Figure(figsize=(PAGE, height))
    share_x = chart.share_x and not chart.columns
    panels = figure.subplots(down, across, squeeze=False, sharex=share_x or bool(chart.columns), sharey=chart.share_y)
    names = _names(chart)
    for number, axes in enumerate(panels.ravel()):
        if number >= len(chart.charts):
            axes.set_axis_off()
            continue
        one = chart.charts[number]
        PANELS[type(one)](axes, one, Place(names, chart.compact, last=(number + 1) % across == 0))
        size, pad = (5.5 if "\n" in one.title else 7, 2) if chart.compact else (8, 6)
        axes.set_title(one.title, fontsize=size, pad=pad, parse_math=False)
        if chart.columns:
            _tiny(axes, chart, *divmod(number, across))
        elif number >= len(chart.charts) - across:  # the lowest panel of every column has its tick labels
            axes.tick_params(labelbottom=True)
    below = figure.supxlabel(chart.x_label, fontsize=7 if chart.columns else 8) if chart.x_label else None
    if chart.y_label:
        figure.supylabel(chart.y_label, fontsize=8)
    if not chart.columns:
        legend(figure, chart.charts, chart.legend, below)
    return figure


def _across(chart: Panels) -> int:
    if any(isinstance(one, Bars) and one.sections for one in chart.charts):
        return 1
    return 4 if chart.compact else min(3, len(chart.charts))


def _height(chart: Panels) -> float:
    """Of one row of panels, in inches."""
    if any(isinstance(one, Bars) and one.sections for one in chart.charts):
        return 1.5
    return 1.35 if chart.compact else 2.3


def _names(chart: Panels) -> list[str]:
    """Names of all series with a colour of their own, in the order in which they first come."""
    parts = parts_of(chart.charts)
    return list(dict.fromkeys(part.name for part in parts if getattr(part, "look", "series") == "series"))


def _tiny(axes: Axes, chart: Panels, row: int, column: int) -> None:
    """A panel of a grid with labels for its rows and columns: no room for anything but a few ticks."""
    if row == 0:
        axes.set_title(chart.columns[column], fontsize=6, pad=2)
    if column == 0:
        axes.set_ylabel(chart.rows[row], rotation=0, va="center", labelpad=6, fontsize=6)
    axes.tick_params(labelsize=5, length=1.5, pad=1)
    ticks = axes.get_xticks()
    axes.set_xticks(ticks[:-1] if len(ticks) > 1 else ticks)  # the last label would overlap the next panel
    axes.minorticks_off()
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    if np.isfinite(top := axes.dataLim.y1) and top > 0:
        axes.set_ylim(0, 1.08 * top)
