"""The figures of the sparsity study that show chosen heads, or several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...plots.compare import compare_rows
from ...plots.errorbars import head_error_bars
from ...plots.layers import layer_lines
from ...plots.means import histogram_of_heads
from ...stats import Histogram
from .compare import Earlier
from .weights import layer_mean, majority_bars

Named = Iterator[tuple[str, Figure]]


def chosen_heads(runs: Sequence[Earlier], heads: Sequence[tuple[int, int]]) -> Named:
    """The chosen heads of this run in one figure, and each of them in all runs that have it."""
    if not heads:
        return
    tables = {run.label: _rows(run) for run in runs}
    this = tables[runs[0].label]
    named = {f"layer {layer} head {head}": this[layer, head] for layer, head in heads if (layer, head) in this}
    floor = _histogram(runs[0]).floor
    yield "chosen-heads", compare_rows(named, floor, runs[0].label)
    if len(runs) > 1:
        for layer, head in heads:
            series = {name: table[layer, head] for name, table in tables.items() if (layer, head) in table}
            yield f"compare-layer-{layer}-head-{head}", compare_rows(series, floor, f"layer {layer} head {head}")


def comparisons(runs: Sequence[Earlier]) -> Named:
    """Several models: all rows, diversity by layer, tokens to majority of every head."""
    rows = {run.label: np.nanmean(np.asarray(_histogram(run).row_histogram()), axis=(0, 1)) for run in runs}
    yield "compare-rows", compare_rows(rows, _histogram(runs[0]).floor)
    diversity = {run.label: layer_mean(_histogram(run).diversity()) for run in runs}
    yield "compare-diversity", layer_lines(diversity, "diversity (bins)")
    medians = {run.label: _histogram(run).median_bin() for run in runs}
    yield "compare-median-of-rows", histogram_of_heads(medians, "mean median bin")
    sites = _histogram(runs[0]).sites
    alike = [run for run in runs if [(s.role, s.layer, s.heads) for s in _histogram(run).sites]
             == [(s.role, s.layer, s.heads) for s in sites]]  # fmt: skip
    if len(alike) > 1:
        bars = {run.label: majority_bars(run.stats["Majority"]) for run in alike}  # type: ignore[arg-type]
        panels = {text: {name: own[text] for name, own in bars.items()} for text in next(iter(bars.values()))}
        yield "compare-tokens-to-majority", head_error_bars(panels, sites)


def _histogram(run: Earlier) -> Histogram:
    histogram = run.stats["Histogram"]
    assert isinstance(histogram, Histogram)
    return histogram


def _rows(run: Earlier) -> dict[tuple[int, int], Any]:
    """The mean row histogram of every head by layer and head number; roles after the first are left out."""
    histogram = _histogram(run)
    rows = np.asarray(histogram.row_histogram())
    role = histogram.sites[0].role
    return {
        (site.layer, head): rows[place, head]
        for place, site in enumerate(histogram.sites)
        if site.role == role
        for head in range(site.heads)
    }
