"""How hidden states and other numbers that are no weights are distributed, for every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, panels, styled

if TYPE_CHECKING:
    from ..stats.values import Values

ACROSS = 4


@styled
def value_histograms(values: Values, label: str) -> Figure:
    """Draw a histogram (left axis) and a cumulative curve (right axis, 0 to 1) for each site, all heads together.

    The titles give the extremes and the share outside of the axis.
    """
    counts = np.asarray(values.histogram() * values.total[..., None]).sum(1)
    totals = np.asarray(values.total).sum(1)
    outside = (np.asarray(values.outside()) * np.asarray(values.total)).sum(1) / totals
    low, high = np.nanmin(np.asarray(values.minimum()), 1), np.nanmax(np.asarray(values.maximum()), 1)
    edges = np.linspace(values.low, values.high, values.bins + 1)
    below = np.stack([record.tensors["counts"][:, 0].sum().item() for record in values.records.values()])
    sites = values.sites
    figure, grid = panels(len(sites), ACROSS, 1.4, sharex=True, sharey=True)
    for place, site in enumerate(sites):
        axes = grid[place]
        axes.stairs(counts[place] / totals[place], edges, fill=True, color=COLOURS[0])
        right = axes.twinx()
        right.plot(edges[1:], (below[place] + counts[place].cumsum()) / totals[place], color=COLOURS[1], linewidth=1.0)
        right.set_ylim(0, 1)
        right.grid(False)
        spot = axes.get_subplotspec()
        assert spot is not None
        right.tick_params(labelright=spot.is_last_col(), right=spot.is_last_col())
        axes.set_xlim(values.low, values.high)
        axes.set_title(
            f"{site.role} {site.layer}\n{low[place]:.1f} to {high[place]:.1f}, {100 * outside[place]:.2g} % outside",
            fontsize=5.5,
            pad=2,
        )
    figure.supxlabel(label, fontsize=8)
    figure.supylabel("share (bars), share up to the value (line)", fontsize=8)
    return figure
