"""Texts whose tokens have colours, and images with coloured regions: one number for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from ...core.charts import ImageRegions, TokenStrip
from ...errors import ArtefactError
from .style import COLUMN, DIVERGING, HEAT, PAGE, colour_scale

ACROSS = 104  # letters a line, at the width of a page
LETTER = 6.5
HEIGHT = 0.17  # inches a line
FEWEST = 7  # lines that the colour bar needs


def draw_tokens(chart: TokenStrip) -> Figure:
    """Draw tokens in the order of the text on a ground that shows their number."""
    norm = colour_scale(chart.low, chart.high, [chart.values], chart.diverging)
    colours = colormaps[DIVERGING if chart.diverging else HEAT]
    places, lines = _places(chart.tokens)
    figure = Figure(figsize=(PAGE, HEIGHT * max(lines, FEWEST) + 0.2))
    axes = figure.subplots()
    for name, number, (line, column) in zip(chart.tokens, chart.values, places, strict=True):
        shade = float(norm(number))
        dark = abs(shade - 0.5) > 0.3 if chart.diverging else shade < 0.55
        axes.add_patch(Rectangle((column - 0.35, line + 0.06), len(name) + 0.7, 0.88, color=colours(shade)))
        axes.text(
            column, line + 0.5, name, va="center_baseline", fontsize=LETTER, family="monospace", parse_math=False,
            color="white" if dark else "black",
        )  # fmt: skip
    axes.set_xlim(-1, ACROSS + 1)
    axes.set_ylim(max(lines, FEWEST), 0)
    axes.set_axis_off()
    figure.colorbar(ScalarMappable(norm, colours), ax=axes, label=chart.label, fraction=0.03, pad=0.01)
    return figure


def _places(names: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """The line and column of every name, and the number of lines."""
    places: list[tuple[int, int]] = []
    line = column = 0
    for name in names:
        if column and column + len(name) > ACROSS:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(name) + 1
    return places, line + 1


def draw_regions(chart: ImageRegions) -> Figure:
    """Draw the image with a frame around every region; its colour, width and opacity show the region's number."""
    norm = colour_scale(chart.low, chart.high, [chart.values], chart.diverging)
    colours = colormaps[DIVERGING if chart.diverging else "viridis"]
    figure = Figure(figsize=(COLUMN + 1, (COLUMN + 0.2) * chart.height / chart.width))
    axes = figure.subplots()
    if chart.image:
        axes.imshow(_pixels(chart.image), extent=(0, chart.width, chart.height, 0))
    labels = chart.labels or [""] * len(chart.values)
    for (left, top, right, bottom), number, label in zip(chart.boxes, chart.values, labels, strict=True):
        shade = float(norm(number))
        strength = 2 * abs(shade - 0.5) if chart.diverging else shade
        axes.add_patch(
            Rectangle(
                (left, top),
                right - left,
                bottom - top,
                fill=False,
                edgecolor=colours(shade),
                linewidth=0.5 + 2 * strength,
                alpha=0.3 + 0.7 * strength,
            )
        )
        if label:
            axes.text(left, top, label, fontsize=5, va="bottom", color=colours(shade))
    axes.set_xlim(0, chart.width)
    axes.set_ylim(chart.height, 0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    figure.colorbar(ScalarMappable(norm, colours), ax=axes, label=chart.label, shrink=0.8)
    return figure


def _pixels(path: str) -> Any:
    try:
        return imread(Path(path))
    except (OSError, ValueError, SyntaxError) as error:  # what pillow raises for files that are not images
        raise ArtefactError(f"The image {path!r} cannot be read ({error}); give the path of an image file.") from error
