"""How one number is distributed over the heads of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, COLUMN, styled


@styled
def histogram_of_heads(series: Mapping[str, Any], label: str, bins: int = 25) -> Figure:
    """Draw how many heads have which number; ``series`` is name to numbers ``[sites, heads]``."""
    figure = Figure(figsize=(COLUMN, 2.3))
    axes = figure.subplots()
    numbers = {name: np.ravel(np.asarray(values, dtype=float)) for name, values in series.items()}
    every = np.concatenate(list(numbers.values()))
    edges = np.histogram_bin_edges(every[np.isfinite(every)], bins)
    for place, (name, values) in enumerate(numbers.items()):
        counts, _ = np.histogram(values[np.isfinite(values)], edges)
        colour = COLOURS[place % len(COLOURS)]
        axes.stairs(counts, edges, fill=len(series) == 1, color=colour, label=name)
    axes.set_xlabel(label)
    axes.set_ylabel("heads")
    if len(series) > 1:
        axes.legend()
    return figure
