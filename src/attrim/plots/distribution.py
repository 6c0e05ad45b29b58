"""How attention values are distributed: a histogram and a cumulative curve on a logarithmic axis.

The figures of Ji et al. 2021 (https://arxiv.org/abs/2106.01335) show the same for single heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from .style import GREY, PAGE, shades, styled

if TYPE_CHECKING:
    from ..core.site import Site
    from ..stats import Histogram

FEW = 8  # more lines than this get a colour bar instead of a legend


@styled
def distribution(histogram: Histogram, floor: float = 1e-10, bins_per_decade: int = 10) -> Figure:
    """Draw how the values of every site are distributed (left), and the share of them up to a value (right).

    Parameters
    ----------
    floor : the smallest value on the axis; what lies below it counts in the cumulative curve.
    bins_per_decade : how fine the histogram is.
    """
    decades = round(-np.log10(floor))
    edges = np.logspace(-decades, 0, decades * bins_per_decade + 1)
    totals = np.asarray(histogram.total).sum(-1)
    counts = np.asarray(histogram.counts([0.0, *edges])).sum(1)  # [sites, bins]; the first bin is below the floor
    figure = Figure(figsize=(PAGE, 2.5))
    left, right = figure.subplots(1, 2)
    density = counts[:, 1:] * bins_per_decade / totals[:, None]
    cumulative = counts.cumsum(1) / totals[:, None]
    for site, colour in enumerate(shades(len(totals))):
        left.stairs(density[site], edges, color=colour, linewidth=1.0, label=_label(histogram.sites[site]))
        right.plot(edges, cumulative[site], color=colour, linewidth=1.0)
    everything = counts.sum(0)
    left.stairs(everything[1:] * bins_per_decade / totals.sum(), edges, color="black", linestyle="--", label="all")
    right.plot(edges, everything.cumsum() / totals.sum(), color="black", linestyle="--")
    _axes(left, right, floor)
    _key(figure, left, histogram.sites)
    return figure


def _axes(left: Axes, right: Axes, floor: float) -> None:
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(floor, 1)
        axes.set_xlabel("attention weight")
    left.set_ylabel("share of weights per decade")
    left.set_ylim(bottom=0)
    right.set_ylabel("share of weights up to this value")
    right.set_ylim(0, 1)
    for bar in (1e-3, 1e-2):
        right.axvline(bar, color=GREY, linewidth=0.6, linestyle=":")


def _label(site: Site) -> str:
    return f"{site.role} {site.layer}"


def _key(figure: Figure, axes: Axes, sites: list[Site]) -> None:
    if len(sites) <= FEW:
        axes.legend(loc="upper left", handlelength=1.2)
        return
    colours = ListedColormap(shades(len(sites)))
    norm = BoundaryNorm(np.arange(len(sites) + 1) - 0.5, len(sites))
    ticks = sorted({0, len(sites) // 2, len(sites) - 1})
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=figure.axes, ticks=ticks, label="site")
    bar.ax.set_yticklabels([_label(sites[tick]) for tick in ticks])
