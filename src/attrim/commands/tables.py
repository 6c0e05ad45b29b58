"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

if TYPE_CHECKING:
    from ..evaluation import Result
    from ..stats import Histogram

BARS = (1e-4, 1e-3, 1e-2)
CAPTION = "Change: against the unedited model, with 95 % paired bootstrap interval. Zeros: share of attention weights."

BINNED = (
    "≤ a bar: read from bins 2 to 3 % wide, exact but for the weights in the bar's own bin (it matters where many "
    "equal the bar); < 1/n: exact."
)


def results_table(results: Mapping[str, Result], title: str, names: Mapping[str, str] | None = None) -> Table:
    """One row for each setting; ``names`` are what to call settings instead of their own text."""
    first, *others = next(iter(results.values())).metrics
    distances = list(dict.fromkeys(name for result in results.values() for name in result.distances))
    table = Table("setting", "zeros", first, "change", *others, *distances, title=title)
    for name, result in results.items():
        table.add_row(
            (names or {}).get(name, name),
            f"{100 * result.zero_share:.1f} %",
            f"{result.metrics[first]:.2f}",
            str(result.changes[first]) if first in result.changes else "",
            *(f"{result.metrics[other]:.2f}" for other in others),
            *(f"{result.distances[key]:.4f}" if key in result.distances else "" for key in distances),
        )
    return table


def shares(histogram: Histogram, bars: Sequence[float] = BARS) -> dict[str, list[float]]:
    """The share of weights up to each bar, and below 1/n: one number a site and, last, one for all.

    Heads count by their number of weights, so that the numbers are shares of all weights.
    """
    totals = np.asarray(histogram.total, dtype=float)
    columns = {f"≤ {bar:g}": histogram.sparsity(bar) for bar in bars}
    columns["< 1/n"] = histogram.share_below_uniform()
    result = {}
    for name, values in columns.items():
        counted = np.nan_to_num(np.asarray(values, dtype=float)) * totals
        result[name] = [*(counted.sum(1) / totals.sum(1)).tolist(), float(counted.sum() / totals.sum())]
    return result


def shares_table(histogram: Histogram, title: str) -> Table:
    """The share of small weights, one row for each site and one for all of them."""
    columns = shares(histogram)
    table = Table("role", "layer", "weights", *columns, title=title, caption=BINNED, caption_justify="left")
    totals = np.asarray(histogram.total).sum(1)
    for row, site in enumerate(histogram.sites):
        values = [f"{100 * column[row]:.1f} %" for column in columns.values()]
        table.add_row(site.role, str(site.layer), f"{totals[row]:,}", *values)
    table.add_section()
    table.add_row("all", "", f"{totals.sum():,}", *(f"{100 * column[-1]:.1f} %" for column in columns.values()))
    return table


def heads_table(values: Any, sites: Sequence[Any], title: str, form: str = "{:.0f}") -> Table:
    """One number for every head; a dash where there is none."""
    values = np.asarray(values, dtype=float)
    table = Table("role", "layer", title=title)
    for head in range(values.shape[1]):
        table.add_column(str(head), justify="right")
    for site, row in zip(sites, values, strict=True):
        numbers = (form.format(value) if np.isfinite(value) else "-" for value in row)
        table.add_row(site.role, str(site.layer), *numbers)
    return table
