"""Heat maps: one number for every head, and attention matrices."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...core.charts import HeadMatrix, Matrix, Pattern
from .style import COLOURS, DIVERGING, HEAT, PAGE, Place, colour_scale, grid

LEGIBLE = 16  # with more heads than this the numbers in the cells would overlap
ACROSS = 4
TWO = ("#eeeeee", COLOURS[0])  # not above the bar, above it
LETTERS = 110  # of a label as wide as a page
LETTER = 4.5  # points: the smallest names of tokens


def draw_heads(chart: HeadMatrix) -> Figure:
    """Draw layers down and heads across, one panel for each role."""
    values = chart.values
    norm = colour_scale(chart.low, chart.high, [values], chart.diverging)
    colours = DIVERGING if chart.diverging else HEAT
    roles = list(dict.fromkeys(chart.roles))
    rows = {role: [index for index, other in enumerate(chart.roles) if other == role] for role in roles}
    deepest = max(len(index) for index in rows.values())
    cell = min(0.42, (PAGE - 1.2) / (values.shape[1] * len(roles)))
    size = (min(PAGE, max(2.4, cell * values.shape[1] * len(roles) + 1.4)), max(1.6, 0.8 * cell * deepest + 0.8))
    figure = Figure(figsize=size)
    for axes, role in zip(figure.subplots(1, len(roles), squeeze=False)[0], roles, strict=True):
        part = values[rows[role]]
        image = axes.imshow(part, cmap=colours, norm=norm, aspect="auto")
        if part.shape[1] * len(roles) <= LEGIBLE:
            _numbers(axes, part, norm, chart.diverging)
        _label_heads(axes, [chart.layers[index] for index in rows[role]], part.shape[1])
        axes.set_title(role if len(roles) > 1 else "")
    figure.colorbar(image, ax=figure.axes, label=chart.label)
    return figure


def _label_heads(axes: Axes, layers: list[int], heads: int) -> None:
    _bare(axes)
    step = max(1, round(heads / 12))
    axes.set_xticks(range(0, heads, step))
    step = max(1, round(len(layers) / 12))
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")


def draw_pattern(chart: Pattern) -> Figure:
    """Draw every matrix in a panel of its own, with one colour bar where they share a scale."""
    if len(chart.matrices) == 1 and (chart.queries or chart.keys):
        return _one_named(chart)
    down, across = (len(chart.rows), len(chart.columns)) if chart.columns else grid(len(chart.matrices), ACROSS)
    tiny = across > 2 * ACROSS
    height = (PAGE - 0.8) / across * _aspect(chart) + (0.04 if chart.columns else 0.25)
    figure = Figure(figsize=(PAGE, height * down + 0.5))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes in panels[len(chart.matrices) :]:
        axes.set_axis_off()
    used = list(panels[: len(chart.matrices)])
    images = [_draw_matrix(axes, chart, matrix) for axes, matrix in zip(used, chart.matrices, strict=True)]
    for number, axes in enumerate(used):
        axes.set_title(chart.matrices[number].title, fontsize=5, pad=2)
        axes.tick_params(labelsize=5, length=1.5)
        if tiny:
            axes.set_xticks([])
            axes.set_yticks([])
        else:
            _names(axes, chart, 72 * (PAGE - 1.2) / across)
        if chart.columns:
            if number < across:
                axes.set_title(chart.columns[number], fontsize=6, pad=2)
            if number % across == 0:
                axes.set_ylabel(chart.rows[number // across], rotation=0, va="center", labelpad=6, fontsize=6)
    note = {"above": f" (dark: above {chart.bar:g})",
            "root": " (colours by the square root, each to its largest number)"}.get(chart.scale, "")  # fmt: skip
    if not note:
        figure.colorbar(images[0], ax=list(panels), shrink=0.6, label=chart.label)
    figure.supxlabel(fill(f"{chart.x_label}{note}", LETTERS), fontsize=8)
    figure.supylabel(chart.y_label, fontsize=8)
    return figure


def draw_matrix(axes: Axes, chart: Pattern, place: Place) -> None:
    """Draw the only matrix of a chart into a panel."""
    del place
    _draw_matrix(axes, chart, chart.matrices[0])
    _names(axes, chart, 72 * 2.0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)


def _one_named(chart: Pattern) -> Figure:
    """One matrix whose rows and columns have names, such as scores or the tokens of an example."""
    (matrix,) = chart.matrices
    rows, columns = matrix.values.shape
    cell = 0.55 if chart.numbers else min(0.3, max(0.085, 5.0 / max(rows, columns)))
    size = (min(PAGE, cell * columns + 1.9), min(PAGE, cell * rows + 1.3))
    figure = Figure(figsize=size)
    axes = figure.subplots()
    image = _draw_matrix(axes, chart, matrix)
    if chart.numbers:
        axes.set_xticks(range(columns), list(chart.keys), rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(rows), list(chart.queries))
    else:
        _names(axes, chart, 72 * min(PAGE - 1.9, cell * columns))
    axes.set_title(matrix.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    figure.colorbar(image, ax=axes, shrink=0.8, label=chart.label)
    return figure


def _draw_matrix(axes: Axes, chart: Pattern, matrix: Matrix) -> Any:
    # Drawn as an image in vector files, too: a million small squares would not open.
    values = matrix.values
    common: Any = {"interpolation": "nearest"}
    if chart.scale == "above":
        image = axes.imshow(values > chart.bar, cmap=ListedColormap(TWO), vmin=0, vmax=1, **common)
    elif chart.scale == "root":
        highest = np.nanmax(values) if np.isfinite(values).any() else 1.0
        image = axes.imshow(values, cmap=HEAT, norm=PowerNorm(0.5, 0, highest), **common)
    else:
        diverging = chart.scale == "diverging"
        norm = colour_scale(chart.low, chart.high, [one.values for one in chart.matrices], diverging)
        image = axes.imshow(values, cmap=DIVERGING if diverging else HEAT, norm=norm, **common)
    if chart.numbers:
        _numbers(axes, values, image.norm, chart.scale == "diverging", "{:.2f}", 7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))  # rows and columns have whole numbers
    _bare(axes)
    return image


def _names(axes: Axes, chart: Pattern, points: float) -> None:
    """Names of rows and columns along axes of so many points; not all of them where there is no room."""
    for names, setter, rotation in ((chart.keys, axes.set_xticks, 90), (chart.queries, axes.set_yticks, 0)):
        if names:
            step = max(1, int(np.ceil(len(names) * (LETTER + 0.5) / points)))
            size = min(7.0, max(LETTER, 0.8 * points / len(names)))
            setter(range(0, len(names), step), list(names)[::step], rotation=rotation, fontsize=size, parse_math=False)


def _numbers(axes: Axes, values: Any, norm: Any, diverging: bool, form: str = "", size: float = 6) -> None:
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            shade = float(norm(value))
            light = abs(shade - 0.5) > 0.3 if diverging else shade < 0.55
            text = form.format(value) if form else _short(value)
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if light else "black")


def _short(value: float) -> str:
    """A number of a head: two decimals without the leading zero below 1, three digits above."""
    return f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3g}"


def _bare(axes: Axes) -> None:
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _aspect(chart: Pattern) -> float:
    """Height of the panels for their width."""
    shapes: Sequence[tuple[int, int]] = [matrix.values.shape for matrix in chart.matrices]
    return float(min(2.0, max(0.3, max(rows / columns for rows, columns in shapes))))
