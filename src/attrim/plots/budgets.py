"""The score against how many heads are constant (the main figure of Hassid et al. 2022, arXiv 2211.03495)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .lines import Value, draw_lines
from .style import COLUMN, GREY, legend_below, styled


@styled
def score_against_heads(
    series: Mapping[str, Mapping[int, Sequence[float]]],
    total: int,
    score_label: str = "score (%)",
    baseline: float | None = None,
    smaller_is_better: bool = False,
) -> Figure:
    """Draw the mean score over seeds against the number of constant heads, and from the worst seed to the best.

    The axis on the right is the drop relative to the baseline, in per cent of it.

    Parameters
    ----------
    series : name (of an order or a family) to number of constant heads to the score of each seed.
    total : heads of the model.
    baseline : the score with no constant head; by default that of the first series, where it has one.
    smaller_is_better : for perplexity and the like; a drop is then a rise.
    """
    figure = Figure(figsize=(COLUMN, 2.9))
    axes = figure.subplots()
    values = {
        name: [Value(heads, float(np.mean(seeds)), min(seeds), max(seeds)) for heads, seeds in budgets.items()]
        for name, budgets in series.items()
    }
    draw_lines(axes, values, "whole", apart=min(0.01, 0.06 / max(len(series), 1)) * total)
    if baseline is None:
        first = next(iter(series.values()))
        baseline = float(np.mean(first[0])) if 0 in first else None
    if baseline:
        _drop_axis(axes, baseline, -1 if smaller_is_better else 1)
    axes.set_xlim(-0.05 * total, 1.05 * total)
    axes.set_xlabel(f"constant heads (of {total})")
    axes.set_ylabel(score_label)
    axes.margins(y=0.1)
    if len(series) > 1:
        legend_below(figure, series)
    return figure


def _drop_axis(axes: Axes, baseline: float, sign: int) -> None:
    axes.axhline(baseline, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    drop = lambda score: sign * 100 * (baseline - score) / baseline
    score = lambda drop: baseline * (1 - sign * drop / 100)
    right = axes.secondary_yaxis("right", functions=(drop, score))
    right.set_ylabel("relative drop (%)")
