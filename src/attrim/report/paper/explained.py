"""Relevance strips: an image and a text at each level of heads that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...core.charts import RelevanceStrip
from ...core.painting import Floats, ends_of
from ..painted import glued, painted_levels, read_image, token_shares
from .style import PAGE

LETTER, WIDTH, LINE = 6.5, 0.0561, 0.185  # size of letters in points; width of a letter and height of a line in inches
LABEL = 1.05  # inches for the names of levels
CHANGED, SAME = "#b3261e", "#1f1f1f"
WHITE = LinearSegmentedColormap.from_list("relevance", ["#ffffff", "#fdd0a2", "#fd8d3c", "#d94801", "#a63603"])


def draw_relevance(chart: RelevanceStrip) -> Figure:
    """Draw the image and its levels beside each other, and below each level's coloured text."""
    across = int((PAGE - LABEL - 0.75) / WIDTH)
    lines = _lines(chart, across)
    high_image = 0.0
    if _has_image(chart):
        panel = PAGE / (len(chart.levels) + 1)
        high_image = min(2.6, panel * chart.height / chart.width) + 0.42
    high_text = (LINE * _rows(chart, lines) + 0.1) * len(chart.levels) if chart.texts else 0.0
    title = 0.24 if chart.title else 0.0
    head = title + 0.17 * len(_head(chart))
    figure = Figure(figsize=(PAGE, high_image + high_text + head + 0.15))
    figure.set_layout_engine("none")
    total = figure.get_figheight()
    for number, line in enumerate(_head(chart)):
        y = 1 - (title + 0.13 + 0.17 * number) / total
        figure.text(0.008, y, line, fontsize=7.5, va="center", parse_math=False)
    if _has_image(chart):
        _draw_images(figure, chart, 1 - (head + 0.05) / total, (high_image - 0.05) / total)
    if chart.texts:
        axes = figure.add_axes((0, 0.02 / total, 1, high_text / total))
        _draw_texts(axes, chart, across, lines, high_text)
        _draw_scale(figure, chart, total, high_text)
    return figure


def _has_image(chart: RelevanceStrip) -> bool:
    return chart.boxes is not None or bool(chart.grid)


def _head(chart: RelevanceStrip) -> list[str]:
    explained = [f"explained answer: {chart.explained}"] if chart.explained else []
    return [*explained, *chart.facts]


def _draw_images(figure: Figure, chart: RelevanceStrip, top: float, height: float) -> None:
    """The image itself and one panel for each level."""
    panels = figure.subplots(
        1, len(chart.levels) + 1,
        gridspec_kw={"left": 0.008, "right": 0.992, "top": top - 0.28 / figure.get_figheight(),
                     "bottom": top - height + 0.03 / figure.get_figheight(), "wspace": 0.04},
    )  # fmt: skip
    extent = (0.0, chart.width, chart.height, 0.0)
    panels[0].imshow(read_image(chart), extent=extent, interpolation="nearest")
    panels[0].set_title("image\n", fontsize=7)
    for number in chart.relevant:
        _frame(panels[0], chart, number, "#00a35c", "--")
    for axes, level, image in zip(panels[1:], chart.levels, painted_levels(chart), strict=True):
        axes.imshow(image, extent=extent, interpolation="nearest")
        colour = SAME if level.answer == chart.levels[0].answer else CHANGED
        axes.set_title(f"{level.label}\n{level.answer}", fontsize=7, color=colour, parse_math=False)
        numbers = np.nan_to_num(np.asarray(level.regions))
        if chart.boxes is not None and numbers.max(initial=0) > 0:
            _frame(axes, chart, int(numbers.argmax()), "white", "-")
    for axes in panels:
        axes.set_axis_off()


def _frame(axes: Axes, chart: RelevanceStrip, number: int, colour: str, style: str) -> None:
    if chart.boxes is not None:
        left, top, right, bottom = chart.boxes[number]
        axes.add_patch(
            Rectangle((left, top), right - left, bottom - top, fill=False, color=colour, linestyle=style, linewidth=0.9)
        )


def _places(tokens: Sequence[str], across: int) -> list[tuple[int, int, str]]:
    """The line, column and text of every token."""
    places = []
    line = column = 0
    for token, continues in glued(tuple(tokens)):
        start = column - 1 if continues and column else column
        if start and start + len(token) > across:
            line, start = line + 1, 0
        places.append((line, start, token))
        column = start + len(token) + 1
    return places


def _lines(chart: RelevanceStrip, across: int) -> list[int]:
    """How many lines each text takes."""
    return [_places(words.tokens, across)[-1][0] + 1 if words.tokens else 0 for words in chart.texts]


def _rows(chart: RelevanceStrip, lines: list[int]) -> int:
    """How many lines a level takes; without an image, its name and its answer stand beside the text."""
    return max(sum(lines), 1 if _has_image(chart) else 2)


def _draw_texts(axes: Axes, chart: RelevanceStrip, across: int, lines: list[int], height: float) -> None:
    """The texts of each level, one below the other."""
    axes.set_xlim(0, PAGE)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    y = 0.0
    for number, (level, shares) in enumerate(zip(chart.levels, token_shares(chart), strict=True)):
        y = number * (LINE * _rows(chart, lines) + 0.1)
        colour = SAME if level.answer == chart.levels[0].answer else CHANGED
        named = [level.label] if _has_image(chart) else [level.label, _cut(level.answer)]
        for line, text in enumerate(named):
            axes.text(0.06, y + LINE * (line + 0.5), text, fontsize=6.5, va="center_baseline", color=colour,
                      weight="bold" if line else "normal", parse_math=False)  # fmt: skip
        for words, own, count in zip(chart.texts, shares, lines, strict=True):
            _draw_line(axes, words.tokens, own, across, y)
            y += LINE * count


def _cut(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _draw_line(axes: Axes, tokens: Sequence[str], shares: Floats, across: int, y: float) -> None:
    for (line, column, text), share in zip(_places(tokens, across), shares, strict=True):
        x, width = LABEL + column * WIDTH, len(text) * WIDTH
        ground: Any = WHITE(float(share))
        axes.add_patch(
            Rectangle((x - 0.02, y + LINE * line + 0.012), width + 0.045, LINE - 0.024, color=ground, linewidth=0)
        )
        axes.text(x, y + LINE * (line + 0.5), text, fontsize=LETTER, family="monospace", va="center_baseline",
                  color="white" if share > 0.75 else "black", parse_math=False)  # fmt: skip


def _draw_scale(figure: Figure, chart: RelevanceStrip, total: float, height: float) -> None:
    """What the colours of tokens mean; with a scale for each level there are only its ends."""
    tall = min(height - 0.1, 1.0)
    bar_axes = figure.add_axes((1 - 0.52 / PAGE, (height - tall) / total, 0.09 / PAGE, (tall - 0.06) / total))
    every = [numbers for level in chart.levels for numbers in level.texts]
    low, high = ends_of(every, floor=0.0) if chart.shared else (0.0, 1.0)
    bar = figure.colorbar(ScalarMappable(Normalize(low, high if high > low else low + 1), WHITE), cax=bar_axes)
    bar.ax.tick_params(labelsize=5, length=1.5, pad=1)
    if chart.shared:
        bar.ax.locator_params(nbins=4)
    else:
        bar.set_ticks([0, 1], labels=["least", "most"])
    bar.outline.set_linewidth(0.4)
