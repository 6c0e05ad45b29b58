"""How many weights a threshold zeroes: of each head, and beside the score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, COLUMN, GREY, log_places, panels, shades, styled
from .tradeoff import Point

if TYPE_CHECKING:
    from ..stats import Histogram

ACROSS = 4


@styled
def sparsity_against_bar(histogram: Histogram, low: float = 1e-8, points: int = 81) -> Figure:
    """Draw, for each site, the share of weights that are not above a bar: a line for each head, dashed for the site."""
    bars = np.logspace(np.log10(low), 0, points)
    shares = np.stack([np.asarray(histogram.sparsity(float(bar))) for bar in bars], -1)  # [sites, heads, points]
    totals = np.asarray(histogram.total, dtype=float)[..., None]
    sites = histogram.sites
    figure, grid = panels(len(sites), ACROSS, 1.3, sharex=True, sharey=True)
    for place, site in enumerate(sites):
        axes = grid[place]
        for head, colour in enumerate(shades(shares.shape[1])):
            axes.plot(bars, shares[place, head], color=colour, linewidth=0.7)
        whole = np.nansum(shares[place] * totals[place], 0) / totals[place].sum()
        axes.plot(bars, whole, color="black", linestyle="--", linewidth=1.0)
        axes.set_xscale("log")
        axes.set_xlim(low, 1)
        axes.set_ylim(0, 1)
        axes.set_xticks([1e-6, 1e-3, 1] if low <= 1e-6 else [low, 1])
        axes.minorticks_off()
        axes.set_title(f"{site.role} {site.layer}", pad=2, fontsize=7)
    figure.supxlabel("bar (a line for each head, the first ones dark; dashed: all heads)", fontsize=8)
    figure.supylabel("share of weights ≤ bar", fontsize=8)
    return figure


@styled
def score_and_sparsity(points: Sequence[tuple[float, Point]], unedited: float, score_label: str) -> Figure:
    """Draw, against the bar, the score (left axis, with intervals) and the zero share that it makes (right axis).

    Parameters
    ----------
    points : bars and what they gave.
    unedited : the score of the unedited model, dashed.
    """
    points = sorted(points, key=lambda item: item[0])
    bars = [bar for bar, _ in points]
    figure = Figure(figsize=(COLUMN, 2.6))
    left = figure.subplots()
    left.axhline(unedited, color=GREY, linestyle="--", linewidth=0.8)
    left.plot(bars, [point.score for _, point in points], color=COLOURS[0], marker="o")
    for bar, point in points:
        if point.low is not None and point.high is not None:
            left.vlines(bar, point.low, point.high, color=COLOURS[0], linewidth=0.7)
    log_places(left, bars)
    left.set_xlabel("bar")
    left.set_ylabel(score_label, color=COLOURS[0])
    left.margins(y=0.1)
    right = left.twinx()
    right.plot(bars, [point.sparsity for _, point in points], color=COLOURS[1], marker="s")
    right.set_ylim(0, 1.04)
    right.set_ylabel("zero share of attention weights", color=COLOURS[1])
    right.spines["right"].set_visible(True)
    right.grid(False)
    return figure
