"""The weights of several models, heads or quantising methods in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, PAGE, styled


@styled
def compare_rows(series: Mapping[str, Any], floor: float, title: str = "") -> Figure:
    """Draw the mean of the rows' histograms (left) and their cumulative curves (right), one line for each name.

    Parameters
    ----------
    series : name to shares ``[bins]`` on the logarithmic axis from ``floor`` to 1, from ``Histogram.row_histogram``.
    """
    figure = Figure(figsize=(PAGE, 2.9))
    left, right = figure.subplots(1, 2)
    for number, (name, shares) in enumerate(series.items()):
        shares = np.asarray(shares, dtype=float)
        edges = np.logspace(np.log10(floor), 0, len(shares) + 1)
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3]}
        left.stairs(shares, edges, label=name, linewidth=1.0, **style)
        right.plot(edges[1:], shares.cumsum(), linewidth=1.2, **style)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(floor, 1)
        axes.set_xlabel("attention weight")
    left.set_ylabel("share of a row's weights")
    left.set_yscale("log")  # the zeros of a sparse head, all in one bin, would flatten everything else
    left.set_ylim(1e-4, 1)
    right.set_ylabel("share up to this value")
    right.set_ylim(0, 1)
    figure.legend(loc="outside lower center", ncols=4, handlelength=1.6)
    figure.suptitle(title, fontsize=8)
    return figure
