"""Charts and tables that several stats and studies make: numbers of all heads, of all layers, of rows of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..core.charts import (
    Axis,
    Bars,
    Bins,
    Chart,
    Column,
    Curve,
    Distribution,
    Group,
    Panels,
    Section,
    Series,
    Table,
    file_name,
)
from ..core.site import Site

WEIGHT = "attention weight"
LEAST = 1e-4  # the lower end of logarithmic axes of shares


def site_label(site: Site) -> str:
    """A site as readers know it: its role and layer."""
    return f"{site.role} {site.layer}"


def site_file(name: str, site: Site) -> str:
    """A file name that ends with the site's role and layer."""
    return file_name(name, site.role, site.layer)


def token_label(tokenizer: Any, token: int) -> str:
    """A token as text without its spaces, as in the tables of Ji et al. 2021; its number without a tokenizer."""
    text = "" if tokenizer is None else str(tokenizer.decode([token]))
    return text.replace(" ", "").replace("\n", "\\n") or ("␣" if text else f"#{token}")


def head_table(
    name: str,
    title: str,
    values: Any,
    sites: Sequence[Site],
    form: Literal["number", "general", "percent"] = "number",
    digits: int = 2,
) -> Table:
    """One number for every head ``[sites, heads]``; a dash where there is none."""
    values = np.asarray(values, dtype=float)
    columns = [Column("role"), Column("layer"), *(Column(str(head), form, digits) for head in range(values.shape[1]))]
    rows = [[site.role, site.layer, *row] for site, row in zip(sites, values.tolist(), strict=True)]
    return Table(name, title, columns=columns, rows=rows)


@dataclass(frozen=True)
class Varying:
    """Numbers of heads that vary: ``[sites, heads]`` each.

    Attributes
    ----------
    low, high : extremes, where they are known.
    least : what no number can be below; a bar ends there, even where the standard deviation reaches further.
    """

    mean: Any
    std: Any
    low: Any = None
    high: Any = None
    least: float | None = None


def head_bars(label: str, series: Mapping[str, Varying], sites: Sequence[Site], name: str = "") -> Bars:
    """Mean, standard deviation and extremes of every head, heads side by side in the order of the sites.

    Parameters
    ----------
    label : of the vertical axis.
    series : one, or several models by their names.
    """
    heads = np.shape(next(iter(series.values())).mean)[1]
    groups = []
    for key, varying in series.items():
        mean, std = np.ravel(varying.mean), np.ravel(varying.std)
        low = mean - std if varying.least is None else np.maximum(mean - std, varying.least)
        smallest, largest = (None if end is None else np.ravel(end) for end in (varying.low, varying.high))
        groups.append(Group(key, mean, low, mean + std, smallest, largest))
    several = len({site.role for site in sites}) > 1
    sections = [Section(site_label(site) if several else str(site.layer), heads) for site in sites]
    axis = Axis("layer (its heads side by side)" if heads > 1 else "layer")
    return Bars(name, groups=groups, sections=sections, x=axis, y=Axis(label), mark="dot")


def head_bar_panels(name: str, title: str, bars: Sequence[Bars]) -> Chart:
    """Some :func:`head_bars` below each other; only the last one says what the horizontal axis is."""
    if len(bars) == 1:
        return Bars(
            name, title, groups=bars[0].groups, sections=bars[0].sections, x=bars[0].x, y=bars[0].y, mark="dot"
        )  # fmt: skip
    upper = [Bars("", groups=one.groups, sections=one.sections, y=one.y, mark="dot") for one in bars[:-1]]
    return Panels(name, title, charts=[*upper, bars[-1]], across=1, share_x=True)


def layer_curve(name: str, title: str, label: str, series: Mapping[str, Any]) -> Curve:
    """One number ``[layers]`` for each layer of one or several models."""
    lines = [Series(key, range(len(values)), values) for key, values in series.items()]
    return Curve(name, title, series=lines, x=Axis("layer", "whole"), y=Axis(label, low=0.0))


def layer_mean(values: Any) -> Any:
    """The mean over the heads of each site that were watched: ``[sites, heads]`` to ``[sites]``."""
    return np.nanmean(np.asarray(values, dtype=float), axis=1)


def histogram_of_heads(
    name: str, title: str, label: str, series: Mapping[str, Any], bins: int = 25, least: float = 1.0
) -> Distribution:
    """How many heads have which number; ``series`` is name to numbers ``[sites, heads]``.

    Parameters
    ----------
    least : how much the axis shows where heads are alike, in the unit of the numbers.
    """
    numbers = {key: np.ravel(np.asarray(values, dtype=float)) for key, values in series.items()}
    every = np.concatenate(list(numbers.values()))
    low, high = np.nanmin(every), np.nanmax(every)
    more = max(0.0, least - (high - low)) / 2
    edges = np.linspace(low - more, high + more, bins + 1)
    counts = {key: np.histogram(values[np.isfinite(values)], edges)[0] for key, values in numbers.items()}
    return Distribution(
        name,
        title,
        edges=edges,
        bins=[Bins(key, values, filled=len(series) == 1) for key, values in counts.items()],
        x=Axis(label),
        y=Axis("heads", "whole"),
    )


def log_grid(floor: float, bins: int) -> Any:
    """The edges of a logarithmic axis from ``floor`` to 1: ``[bins + 1]``."""
    return np.logspace(np.log10(floor), 0, bins + 1)


def weight_axis(floor: float, label: str = WEIGHT) -> Axis:
    """A logarithmic axis of attention weights."""
    return Axis(label, "log", floor, 1.0)


def row_comparison(name: str, title: str, series: Mapping[str, Any], floor: float) -> Panels:
    """The mean of the rows' histograms and their cumulative curves, one line for each head, model or method.

    Parameters
    ----------
    series : name to shares ``[bins]`` on the logarithmic axis from ``floor`` to 1, from ``Histogram.row_histogram``.
    """
    shares = {key: np.asarray(values, dtype=float) for key, values in series.items()}
    edges = log_grid(floor, len(next(iter(shares.values()))))
    left = Distribution(
        "",
        edges=edges,
        bins=[Bins(key, values) for key, values in shares.items()],
        x=weight_axis(floor),
        # The zeros of a sparse head, all in one bin, would flatten everything else on a linear axis.
        y=Axis("share of a row's weights", "log", LEAST, 1.0),
    )
    right = Curve(
        "",
        series=[Series(key, edges[1:], values.cumsum()) for key, values in shares.items()],
        x=weight_axis(floor),
        y=Axis("share up to this value", low=0.0, high=1.0),
    )
    return Panels(name, title, charts=[left, right], across=2)


def row_overlays(name: str, title: str, before: Any, after: Mapping[str, Any], floor: float) -> Panels:
    """The mean histogram of the original rows and, over it, that of the edited ones; one panel for each edit.

    Parameters
    ----------
    before : shares ``[bins]`` on the logarithmic axis from ``floor`` to 1; the first bin holds the zeros.
    after : the same for each edit, by its name.
    """
    edges = log_grid(floor, len(before))
    panels = [
        Distribution(
            "",
            edit,
            edges=edges,
            bins=[Bins("original", before, "muted", filled=True), Bins("edited", shares, filled=True)],
            x=weight_axis(floor, ""),
            y=Axis("", "log", LEAST, 1.0),
        )
        for edit, shares in after.items()
    ]
    return Panels(
        name,
        title,
        charts=panels,
        across=min(3, len(panels)),
        x_label="attention weight (the first bin holds the zeros)",
        y_label="share of a row's weights",
        share_x=True,
        share_y=True,
        compact=True,
    )
