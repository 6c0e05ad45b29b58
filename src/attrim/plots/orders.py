"""Orders of heads: where each head stands in one, and how far several agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .heads import head_map
from .style import styled

if TYPE_CHECKING:
    from ..core.site import Site

DIVERGING = "PuOr"  # colour-blind readers can tell its ends apart


def order_map(ranks: Any, sites: Sequence[Site]) -> Figure:
    """Draw the place of every head in an order: layers down, heads across, one panel for each role.

    Parameters
    ----------
    ranks : ``[sites, heads]`` from 1, as ``Scores.ranks`` gives them; NaN where a site has fewer heads.
    """
    last = float(np.nanmax(np.asarray(ranks, dtype=float)))
    return head_map(ranks, sites, "place in the order (1 is replaced first)", limits=(1.0, last))


@styled
def correlation_matrix(names: Sequence[str], spearman: Any, kendall: Any) -> Figure:
    """Draw how well scores agree, Spearman's rho above the diagonal and Kendall's tau below it.

    Parameters
    ----------
    spearman, kendall : ``[K, K]``, as ``RankCorrelation`` holds them.
    """
    upper, lower = np.asarray(spearman, dtype=float), np.asarray(kendall, dtype=float)
    values = np.triu(upper, 1) + np.tril(lower, -1)
    np.fill_diagonal(values, np.nan)
    size = 0.55 * len(names) + 1.3
    figure = Figure(figsize=(size + 0.6, size))
    axes = figure.subplots()
    image = axes.imshow(values, cmap=DIVERGING, vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if abs(value) > 0.6 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.8, label="rank correlation\n(ρ above, τ below)")
    return figure
