"""The score against how many heads are constant (the main figure of Hassid et al. 2022, arXiv 2211.03495)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import COLOURS, COLUMN, GREY, legend_below, styled

MARKERS = "osD^vP"


@styled
def score_against_heads(
    series: Mapping[str, Mapping[int, Sequence[float]]],
    total: int,
    score_label: str = "score (%)",
    baseline: float | None = None,
) -> Figure:
    """Draw the mean score over seeds against the number of constant heads; the band is from the worst seed to the best.

    The axis on the right is the drop relative to the baseline, in per cent of it.

    Parameters
    ----------
    series : name (of an order or a family) to number of constant heads to the score of each seed.
    total : heads of the model.
    baseline : the score with no constant head; by default that of the first series, where it has one.
    """
    figure = Figure(figsize=(COLUMN, 2.9))
    axes = figure.subplots()
    for number, (name, budgets) in enumerate(series.items()):
        heads = sorted(budgets)
        seeds = [np.asarray(budgets[count], dtype=float) for count in heads]
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(heads, [s.min() for s in seeds], [s.max() for s in seeds], color=colour, alpha=0.2, lw=0)
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(heads, [s.mean() for s in seeds], color=colour, marker=marker, label=name)
    if baseline is None:
        first = next(iter(series.values()))
        baseline = float(np.mean(first[0])) if 0 in first else None
    if baseline:
        _drop_axis(axes, baseline)
    axes.set_xlim(-0.03 * total, 1.03 * total)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"constant heads (of {total})")
    axes.set_ylabel(score_label)
    axes.margins(y=0.1)
    if len(series) > 1:
        legend_below(figure, series)
    return figure


def _drop_axis(axes: Axes, baseline: float) -> None:
    axes.axhline(baseline, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    drop = lambda score: 100 * (baseline - score) / baseline
    score = lambda drop: baseline * (1 - drop / 100)
    right = axes.secondary_yaxis("right", functions=(drop, score))
    right.set_ylabel("relative drop (%)")
