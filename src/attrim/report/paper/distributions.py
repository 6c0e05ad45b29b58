"""Histograms on common bins, with cumulative lines on a right axis."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ...core.charts import Distribution
from .curves import draw_series, shape_right
from .style import GREY, Place, look, looks, references, shape_axes


def draw_distribution(axes: Axes, chart: Distribution, place: Place) -> None:
    """Draw every histogram, and lines on the right axis; nothing where nothing was counted."""
    if not any(np.nansum(np.abs(bins.values)) > 0 for bins in chart.bins):
        axes.set_axis_off()
        return
    styles = looks(chart.bins, place.names)
    several = sum(bins.filled for bins in chart.bins) > 1
    for bins, style in zip(chart.bins, styles, strict=True):
        style = {key: value for key, value in style.items() if key != "marker"}
        if bins.filled:
            # On a logarithmic axis there is no zero to stand on.
            baseline = (chart.y.low or 1e-4) if chart.y.scale == "log" else 0.0
            colour = GREY if bins.look == "muted" else style["color"]
            alpha = 0.55 if several else 1.0
            axes.stairs(
                bins.values, chart.edges, baseline=baseline, fill=True, color=colour, alpha=alpha, label=bins.name
            )
        else:
            axes.stairs(bins.values, chart.edges, label=bins.name, **{"linewidth": 1.0, **style})
    references(axes, chart.references, {}, "black")
    shape_axes(axes, chart.x, chart.y, chart.edges, place)
    if chart.right is not None:
        right = axes.twinx()
        own = [style if line.look != "series" else look(len(chart.bins) + number)
               for number, (line, style) in enumerate(zip(chart.lines, looks(chart.lines), strict=True))]  # fmt: skip
        for line, style in zip(chart.lines, own, strict=True):
            draw_series(right, line, {**style, "linewidth": 1.0}, line.x)
        shape_right(right, chart.right, place, own)
