"""The figures of the sparsity study about attention weights: over all heads, over single rows, over examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...measurement import Stats
from ...plots import distribution, head_histograms, head_map
from ...plots.errorbars import Bars, head_error_bars
from ...plots.layers import layer_lines
from ...plots.means import histogram_of_heads
from ...plots.rows import row_distributions
from ...plots.thresholds import sparsity_against_bar
from ...stats import Histogram
from ...stats.rowfacts import RowCurves
from ...stats.spread import Extremes, Majority

EXTREMES = {"maximum": "largest weight", "minimum": "smallest weight", "std": "standard deviation"}  # of an example
Named = Iterator[tuple[str, Figure]]


def weight_figures(stats: Stats) -> Named:
    """How the weights are distributed: over all heads, over single rows, over examples."""
    histogram, curves, majority, features = (stats[name] for name in ("Histogram", "RowCurves", "Majority", "Extremes"))
    assert isinstance(histogram, Histogram)
    assert isinstance(curves, RowCurves)
    assert isinstance(majority, Majority)
    assert isinstance(features, Extremes)
    sites = histogram.sites
    yield "distribution", distribution(histogram)
    yield "histogram-of-heads", head_histograms(histogram)
    yield "sparsity-against-bar", sparsity_against_bar(histogram)
    yield (
        "row-sparsity-of-heads",
        head_map(histogram.sparsity(histogram.bar), sites, f"share of weights ≤ {histogram.bar:g}"),
    )
    for site in sites:
        yield f"rows-{site.role.replace('>', '-to-')}-{site.layer}", row_distributions(histogram, curves, site)
    yield (
        "extremes-of-heads",
        head_error_bars(
            {
                text: Bars(features.mean(fact), features.std(fact), features.lowest(fact), features.highest(fact), 0.0)
                for fact, text in EXTREMES.items()
            },
            sites,
        ),
    )
    yield "tokens-to-majority", head_error_bars(majority_bars(majority), sites)
    yield "median-of-rows", head_error_bars({"median bin": median_bars(histogram)}, sites)
    yield (
        "median-of-rows-histogram",
        histogram_of_heads(
            {"": histogram.median_bin()}, f"mean median bin ({histogram.bins} bins from {histogram.floor:g} to 1)"
        ),
    )
    yield "diversity", layer_lines({"": layer_mean(histogram.diversity())}, "diversity (bins)")


def majority_bars(majority: Majority) -> dict[str, Bars]:
    """Tokens to majority as bars: the number, and the share of the row."""
    labels = {"tokens": "tokens to majority", "share": "share of the row"}
    return {text: Bars(majority.mean(fact), majority.std(fact), least=0.0) for fact, text in labels.items()}


def median_bars(histogram: Histogram) -> Bars:
    """The rows' median bins: mean, standard deviation and extremes."""
    counts = np.asarray(histogram.median_bins())
    seen = counts > 0
    empty = ~seen.any(-1)
    low = np.where(empty, np.nan, seen.argmax(-1))
    high = np.where(empty, np.nan, counts.shape[-1] - 1 - seen[..., ::-1].argmax(-1))
    return Bars(histogram.median_bin(), histogram.diversity(), low, high, 0.0)


def layer_mean(values: Any) -> Any:
    """The mean over the heads of each site that were watched."""
    return np.nanmean(np.asarray(values, dtype=float), axis=1)
