"""How one number is distributed over the heads of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import COLOURS, COLUMN, styled


@styled
def histogram_of_heads(series: Mapping[str, Any], label: str, bins: int = 25, least: float = 1.0) -> Figure:
    """Draw how many heads have which number; ``series`` is name to numbers ``[sites, heads]``.

    Parameters
    ----------
    least : how much the axis shows where heads are alike, in the unit of the numbers.
    """
    figure = Figure(figsize=(COLUMN, 2.3))
    axes = figure.subplots()
    numbers = {name: np.ravel(np.asarray(values, dtype=float)) for name, values in series.items()}
    every = np.concatenate(list(numbers.values()))
    low, high = np.nanmin(every), np.nanmax(every)
    more = max(0.0, least - (high - low)) / 2
    edges = np.linspace(low - more, high + more, bins + 1)
    for place, (name, values) in enumerate(numbers.items()):
        counts, _ = np.histogram(values[np.isfinite(values)], edges)
        colour = COLOURS[place % len(COLOURS)]
        axes.stairs(counts, edges, fill=len(series) == 1, color=colour, label=name)
    axes.set_xlabel(label)
    axes.set_ylabel("heads")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if len(series) > 1:
        axes.legend()
    return figure
