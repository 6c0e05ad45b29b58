"""One number, or one histogram, for every head of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLOURS, HEAT, PAGE, styled

if TYPE_CHECKING:
    from ..core.site import Site
    from ..stats import Histogram

LEGIBLE = 16  # with more heads than this the numbers in the cells would overlap


@styled
def head_map(values: Any, sites: Sequence[Site], label: str, limits: tuple[float, float] | None = (0.0, 1.0)) -> Figure:
    """Draw a heat map of one number for every head: layers down, heads across, one panel for each role.

    Parameters
    ----------
    values : ``[sites, heads]``, NaN where a site has fewer heads.
    sites : the sites, in the order of ``values``.
    label : what the number is, with its unit.
    limits : the ends of the colour scale; None takes the smallest and largest value.
    """
    values = np.asarray(values, dtype=float)
    low, high = limits if limits is not None else (float(np.nanmin(values)), float(np.nanmax(values)))
    roles = list(dict.fromkeys(site.role for site in sites))
    rows = {role: [index for index, site in enumerate(sites) if site.role == role] for role in roles}
    deepest = max(len(index) for index in rows.values())
    cell = min(0.42, (PAGE - 1.2) / (values.shape[1] * len(roles)))
    size = (min(PAGE, max(2.4, cell * values.shape[1] * len(roles) + 1.4)), max(1.6, 0.8 * cell * deepest + 0.8))
    figure = Figure(figsize=size)
    for axes, role in zip(figure.subplots(1, len(roles), squeeze=False)[0], roles, strict=True):
        part = values[rows[role]]
        image = axes.imshow(part, cmap=HEAT, vmin=low, vmax=high, aspect="auto")
        if part.shape[1] * len(roles) <= LEGIBLE:
            _numbers(axes, part, low, high)
        _label_axes(axes, [sites[index].layer for index in rows[role]], part.shape[1])
        axes.set_title(role if len(roles) > 1 else "")
    figure.colorbar(image, ax=figure.axes, label=label)
    return figure


def _numbers(axes: Axes, part: Any, low: float, high: float) -> None:
    for (row, column), value in np.ndenumerate(part):
        if np.isfinite(value):
            dark = value - low < 0.55 * (high - low)
            text = f"{value:.2f}".removeprefix("0") if 0 <= value < 1 else f"{value:.3g}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")


def _label_axes(axes: Axes, layers: list[int], heads: int) -> None:
    axes.grid(False)
    step = max(1, round(heads / 12))
    axes.set_xticks(range(0, heads, step))
    step = max(1, round(len(layers) / 12))
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.spines[:].set_visible(False)


@styled
def head_histograms(histogram: Histogram, floor: float = 1e-8, bins_per_decade: int = 5) -> Figure:
    """Draw a small histogram of attention weights for every head; the dotted line is the median.

    Every panel is scaled to its own peak, because one sharp head would flatten all others. Weights below ``floor``
    are counted in the first bin.
    """
    decades = round(-np.log10(floor))
    edges = np.logspace(-decades, 0, decades * bins_per_decade + 1)
    counts = np.asarray(histogram.counts([0.0, *edges[1:]]), dtype=float)
    median = np.asarray(histogram.quantile(0.5))
    sites, heads = counts.shape[:2]
    figure = Figure(figsize=(PAGE, min(9.0, 0.45 * sites + 0.7)))
    grid = figure.subplots(sites, heads, sharex=True, squeeze=False)
    for (row, head), axes in np.ndenumerate(grid):
        if not counts[row, head].any():  # the site has fewer heads, or this one was not watched
            axes.set_axis_off()
            continue
        axes.stairs(counts[row, head], edges, fill=True, color=COLOURS[0])
        axes.axvline(max(median[row, head], floor), color="black", linewidth=0.8, linestyle=":")
        axes.set_ylim(0, 1.08 * max(counts[row, head].max(), 1))
        _small_axes(axes, floor)
        if row == 0:
            axes.set_title(str(head), fontsize=6, pad=2)
        if head == 0:
            axes.set_ylabel(str(histogram.sites[row].layer), rotation=0, va="center", labelpad=6, fontsize=6)
    figure.supxlabel(
        "attention weight (a column for each head, a row for each layer, each with its own scale)", fontsize=7
    )
    return figure


def _small_axes(axes: Axes, floor: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(floor, 1)
    axes.set_xticks([1e-6, 1e-3] if floor < 1e-6 else [floor])
    axes.minorticks_off()
    axes.tick_params(labelsize=5, length=1.5, pad=1)
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
