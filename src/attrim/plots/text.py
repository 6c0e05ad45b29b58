"""A text whose tokens have colours: one number for each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import HEAT, PAGE, styled

ACROSS = 104  # letters a line, at the width of a page
LETTER = 6.5
HEIGHT = 0.17  # inches a line
FEWEST = 7  # lines that the colour bar needs


@styled
def token_text(tokens: Sequence[tuple[str, float]], label: str) -> Figure:
    """Draw tokens in the order of the text on a ground that shows their number, from the smallest to the largest.

    Where all numbers are equal the colours go from 0 to 1.

    Parameters
    ----------
    tokens : names and numbers.
    label : what the number is, for the colour bar.
    """
    numbers = np.array([number for _, number in tokens])
    low, high = float(numbers.min()), float(numbers.max())
    norm = Normalize(low, high) if low < high else Normalize(min(0.0, low), max(1.0, high))
    colours = colormaps[HEAT]
    places, lines = _places([name for name, _ in tokens])
    figure = Figure(figsize=(PAGE, HEIGHT * max(lines, FEWEST) + 0.2))
    axes = figure.subplots()
    for (name, number), (line, column) in zip(tokens, places, strict=True):
        shade = norm(number)
        axes.add_patch(Rectangle((column - 0.35, line + 0.06), len(name) + 0.7, 0.88, color=colours(shade)))
        axes.text(
            column,
            line + 0.5,
            name,
            va="center_baseline",
            fontsize=LETTER,
            family="monospace",
            color="white" if shade < 0.55 else "black",
            parse_math=False,
        )
    axes.set_xlim(-1, ACROSS + 1)
    axes.set_ylim(max(lines, FEWEST), 0)
    axes.set_axis_off()
    figure.colorbar(ScalarMappable(norm, colours), ax=axes, label=label, fraction=0.03, pad=0.01)
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
