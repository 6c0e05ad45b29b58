"""Histograms of edited rows over those of the original ones, one panel for each edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, GREY, panels, styled

ACROSS = 3
LEAST = 1e-4


@styled
def row_overlays(before: Any, after: Mapping[str, Any], floor: float, title: str = "") -> Figure:
    """Draw the mean histogram of the original rows (grey) and, over it, that of the edited ones (translucent).

    Parameters
    ----------
    before : shares ``[bins]`` on the logarithmic axis from ``floor`` to 1; the first bin holds the zeros.
    after : the same for each edit, by its name.
    """
    before = np.asarray(before, dtype=float)
    edges = np.logspace(np.log10(floor), 0, len(before) + 1)
    figure, grid = panels(len(after), ACROSS, 1.35, 0.7, sharex=True, sharey=True)
    for axes, (name, shares) in zip(grid, after.items(), strict=True):
        axes.stairs(before, edges, baseline=LEAST, fill=True, color=GREY, alpha=0.55, label="original")
        edited = np.asarray(shares, dtype=float)
        axes.stairs(edited, edges, baseline=LEAST, fill=True, color=COLOURS[1], alpha=0.55, label="edited")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(floor, 1)
        axes.set_ylim(LEAST, 1)
        axes.set_title(name, fontsize=6, pad=2)
    grid[0].legend(loc="upper center", ncols=2, handlelength=1.0, borderaxespad=0.1)
    figure.supxlabel("attention weight (the first bin holds the zeros)", fontsize=8)
    figure.supylabel("share of a row's weights", fontsize=8)
    figure.suptitle(title, fontsize=8)
    return figure
