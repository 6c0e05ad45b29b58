"""Results as tables for the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..report.terminal import render_table
from ..stats.display import head_table

if TYPE_CHECKING:
    from ..core.site import Site
    from ..evaluation import Result
    from ..stats import Histogram

CAPTION = "Change: against the unedited model, with 95 % paired bootstrap interval. Zeros: share of attention weights."


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


def shares_table(histogram: Histogram, title: str) -> Table:
    """The share of small weights, one row for each site and one for all of them."""
    (table,) = histogram.tables()
    return render_table(dataclasses.replace(table, title=title))


def heads_table(values: Any, sites: Sequence[Site], title: str, digits: int = 0) -> Table:
    """One number for every head; a dash where there is none."""
    return render_table(head_table("heads", title, values, sites, digits=digits))
