"""One number for each layer of one or several models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import COLUMN, from_zero, look, styled


@styled
def layer_lines(series: Mapping[str, Any], label: str) -> Figure:
    """Draw a line for each name: numbers ``[layers]``, the first at layer 0."""
    figure = Figure(figsize=(COLUMN, 2.4))
    axes = figure.subplots()
    for number, (name, values) in enumerate(series.items()):
        values = np.asarray(values, dtype=float)
        axes.plot(range(len(values)), values, **look(number), label=name)
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    from_zero(axes, max(float(np.nanmax(np.asarray(values, dtype=float))) for values in series.values()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(series) > 1:
        axes.legend()
    return figure
