"""Attention matrices of one example as heat maps, for all heads of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .style import HEAT, PAGE, styled

if TYPE_CHECKING:
    from ..select import Site

ACROSS = 4


@styled
def attention_matrices(
    matrices: Any, site: Site, bar: float = 5e-4, highest: float | None = 1.0, binary: bool = False
) -> Figure:
    """Draw one heat map for each head: queries down, keys across.

    Parameters
    ----------
    matrices : ``[heads, queries, keys]``.
    bar : the titles say which share is not above it.
    highest : top of the colour scale; None takes each head's largest weight.
    binary : draw 1 where a weight is above the bar and 0 elsewhere.
    """
    matrices = np.asarray(matrices, dtype=float)
    down = -(-len(matrices) // ACROSS)
    figure = Figure(figsize=(PAGE, 1.9 * down + 0.4))
    grid = figure.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in grid[len(matrices) :]:
        axes.set_axis_off()
    for head, matrix in enumerate(matrices):
        axes = grid[head]
        shown = (matrix > bar).astype(float) if binary else matrix
        # Drawn as an image in vector files, too: a million small squares would not open.
        image = axes.imshow(shown, cmap=HEAT, vmin=0, vmax=1 if binary else highest, interpolation="nearest")
        axes.grid(False)
        axes.set_title(
            f"head {head}: {matrix.min():.0e} to {matrix.max():.2f}, {100 * (matrix <= bar).mean():.0f} % ≤ {bar:g}",
            fontsize=5,
            pad=2,
        )
        axes.tick_params(labelsize=5, length=1.5)
    if highest is not None or binary:
        figure.colorbar(image, ax=grid.tolist(), shrink=0.6, label="above the bar" if binary else "attention weight")
    figure.supxlabel(f"key, {site.role} layer {site.layer}", fontsize=8)
    figure.supylabel("query", fontsize=8)
    return figure
