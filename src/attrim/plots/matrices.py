"""Attention matrices of one example as heat maps, for all heads of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure

from .style import COLOURS, HEAT, panels, styled

if TYPE_CHECKING:
    from ..core.site import Site

ACROSS = 4
TWO = ("#eeeeee", COLOURS[0])  # not above the bar, above it


@styled
def attention_matrices(
    matrices: Any, site: Site, bar: float = 5e-4, highest: float | None = 1.0, binary: bool = False
) -> Figure:
    """Draw one heat map for each head: queries down, keys across.

    Parameters
    ----------
    matrices : ``[heads, queries, keys]``.
    bar : the titles say which share is not above it.
    highest : top of the colour scale; None takes each head's largest weight and a scale that shows small ones, too.
    binary : draw only whether a weight is above the bar.
    """
    matrices = np.asarray(matrices, dtype=float)
    figure, grid = panels(len(matrices), ACROSS, 1.62, 0.45, sharex=True, sharey=True)
    for head, (axes, matrix) in enumerate(zip(grid, matrices, strict=True)):
        # Drawn as an image in vector files, too: a million small squares would not open.
        if binary:
            axes.imshow(matrix > bar, cmap=ListedColormap(TWO), vmin=0, vmax=1, interpolation="nearest")
        elif highest is None:
            axes.imshow(matrix, cmap=HEAT, norm=PowerNorm(0.5, 0, matrix.max()), interpolation="nearest")
        else:
            image = axes.imshow(matrix, cmap=HEAT, vmin=0, vmax=highest, interpolation="nearest")
        axes.grid(False)
        axes.set_title(
            f"head {head}: {matrix.min():.0e} to {matrix.max():.2f}, {100 * (matrix <= bar).mean():.0f} % ≤ {bar:g}",
            fontsize=5,
            pad=2,
        )
        axes.tick_params(labelsize=5, length=1.5)
    note = ""
    if binary:
        note = f" (dark: above {bar:g})"
    elif highest is None:
        note = " (colours by the square root, each head to its largest weight)"
    else:
        figure.colorbar(image, ax=grid, shrink=0.6, label="attention weight")
    figure.supxlabel(f"key, {site.role} layer {site.layer}{note}", fontsize=8)
    figure.supylabel("query", fontsize=8)
    return figure
