"""How the weights of single query rows are distributed, for the heads of one layer.

Ji et al. 2021 (https://arxiv.org/abs/2106.01335) draw every row; here bands say where the curves of all rows lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLOURS, panels, styled

if TYPE_CHECKING:
    from ..core.site import Site
    from ..stats import Histogram
    from ..stats.rowfacts import RowCurves

ACROSS = 4
BANDS = ((0.05, 0.95, 0.2), (0.25, 0.75, 0.4))  # lower and upper quantile of the rows, and opacity


@styled
def row_distributions(histogram: Histogram, curves: RowCurves, site: Site) -> Figure:
    """Draw, for each head of a site, the rows' mean histogram, their cumulative curves, and a strip of sparsities.

    Bars (left axis): the mean of the rows' histograms. Line and bands (right axis, 0 to 1): median, 50 % and 90 % of
    the rows' cumulative curves. Strip: the share of rows in each tenth of row sparsity, dark is many, top is sparse.

    Parameters
    ----------
    histogram : measured with ``rows=True`` and with the floor and bins of ``curves``.
    """
    row = [other.name for other in histogram.sites].index(site.name)
    edges = np.logspace(np.log10(histogram.floor), 0, histogram.bins + 1)
    rows, deciles = (np.asarray(table)[row] for table in (histogram.row_histogram(), histogram.row_deciles()))
    bands = {share: np.asarray(curves.quantile(share))[row] for share in (0.05, 0.25, 0.5, 0.75, 0.95)}
    figure, grid = panels(len(rows), ACROSS, 1.25, sharex=True)
    for head, axes in enumerate(grid):
        if not np.isfinite(rows[head]).all():  # not watched
            axes.set_axis_off()
            continue
        axes.stairs(rows[head], edges, fill=True, color=COLOURS[0])
        axes.set_ylim(0, 0.2)
        place = axes.get_subplotspec()
        assert place is not None
        axes.tick_params(labelleft=place.is_first_col())
        _cumulative(axes, edges, {share: band[head] for share, band in bands.items()}, last=place.is_last_col())
        _strip(axes, deciles[head])
        axes.set_xscale("log")
        axes.set_xlim(edges[0], 1)
        axes.set_xticks([1e-6, 1e-3] if edges[0] <= 1e-6 else [edges[0], 1])
        axes.minorticks_off()
        axes.set_title(f"head {head}", pad=2, fontsize=7)
    figure.supxlabel(f"attention weight, {site.role} layer {site.layer}", fontsize=8)
    figure.supylabel("share of a row's weights (bars)", fontsize=8)
    return figure


def _cumulative(axes: Axes, edges: Any, bands: dict[float, Any], last: bool) -> None:
    right = axes.twinx()
    right.set_ylim(0, 1)
    right.grid(False)
    for low, high, opacity in BANDS:
        right.fill_between(edges[1:], bands[low], bands[high], color=COLOURS[1], alpha=opacity, linewidth=0)
    right.plot(edges[1:], bands[0.5], color=COLOURS[1], linewidth=1.0)
    right.tick_params(labelright=last, right=last)
    if last:
        right.set_ylabel("share up to the value", fontsize=6, color=COLOURS[1])


def _strip(axes: Axes, deciles: Any) -> None:
    strip = axes.inset_axes((0.03, 0.08, 0.06, 0.84))
    strip.imshow(deciles[::-1, None], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    strip.set_xticks([])
    strip.set_yticks([])
    strip.grid(False)
    for spine in strip.spines.values():
        spine.set_visible(True)
