"""Error bars for every head: mean and standard deviation as a thick bar, smallest and largest value as a thin one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, GREY, PAGE, styled

if TYPE_CHECKING:
    from ..core.site import Site


@dataclass(frozen=True)
class Bars:
    """Numbers ``[sites, heads]``: the mean, the standard deviation and, where known, the extremes.

    Attributes
    ----------
    least : what no number can be below; a bar ends there, even where the standard deviation reaches further.
    """

    mean: Any
    std: Any
    low: Any = None
    high: Any = None
    least: float = -np.inf


@styled
def head_error_bars(panels: Mapping[str, Bars | Mapping[str, Bars]], sites: Sequence[Site]) -> Figure:
    """Draw one panel for each label, heads across in the order of the sites, with every second site shaded.

    Parameters
    ----------
    panels : axis label to bars, or to the bars of several models by name.
    sites : the sites, in the order of the rows of the numbers.
    """
    figure = Figure(figsize=(PAGE, 1.5 * len(panels) + 0.7))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    several = False
    for axes, (label, given) in zip(grid, panels.items(), strict=True):
        series = {"": given} if isinstance(given, Bars) else dict(given)
        several |= len(series) > 1
        for number, (name, bars) in enumerate(series.items()):
            mean, std = np.ravel(bars.mean), np.ravel(bars.std)
            place = np.arange(len(mean)) + 0.3 * (number - (len(series) - 1) / 2)
            colour = COLOURS[number % len(COLOURS)]
            if bars.low is not None and bars.high is not None:
                axes.vlines(place, np.ravel(bars.low), np.ravel(bars.high), color=GREY, linewidth=0.5)
            spread = np.stack([np.minimum(std, mean - bars.least), std])
            axes.errorbar(
                place, mean, spread, linestyle="", marker="o", markersize=2, linewidth=1.4, color=colour, label=name
            )
        axes.set_ylabel(label)
        _shade(axes, sites, np.asarray(next(iter(series.values())).mean).shape[1])
    if several:
        grid[0].legend(loc="upper right", ncols=4)
    width = np.asarray(next(iter(series.values())).mean).shape[1]
    grid[-1].set_xlabel("layer (its heads side by side)" if width > 1 else "layer")
    return figure


def _shade(axes: Any, sites: Sequence[Site], heads: int) -> None:
    axes.grid(False, axis="x")
    for number in range(0, len(sites), 2):
        axes.axvspan(number * heads - 0.5, (number + 1) * heads - 0.5, color="#f0f0f0", linewidth=0, zorder=0)
    several = len({site.role for site in sites}) > 1
    step = max(1, round(len(sites) / 24))
    places = [(number + 0.5) * heads - 0.5 for number in range(0, len(sites), step)]
    names = [f"{site.role} {site.layer}" if several else str(site.layer) for site in sites[::step]]
    axes.set_xticks(places, names)
    axes.set_xlim(-0.5, len(sites) * heads - 0.5)
