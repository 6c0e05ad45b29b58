"""Constant families side by side: what heads are replaced by, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, GREY, PAGE, styled


@styled
def family_bars(
    scores: Mapping[str, Mapping[str, Sequence[float]]], score_label: str = "score (%)", baseline: float | None = None
) -> Figure:
    """Draw a group of bars for each family: the mean over seeds, with every seed as a dot.

    Parameters
    ----------
    scores : family to label of a budget (``"1/2"``, ``"all"``) to the score of each seed.
    baseline : the score with no constant head, drawn as a dashed line.
    """
    labels = list(dict.fromkeys(label for budgets in scores.values() for label in budgets))
    figure = Figure(figsize=(min(PAGE, 1.2 + 0.42 * len(scores) * max(len(labels), 1.5)), 2.7))
    axes = figure.subplots()
    width = 0.8 / len(labels)
    for number, label in enumerate(labels):
        colour = COLOURS[number % len(COLOURS)]
        for place, budgets in enumerate(scores.values()):
            if label not in budgets:
                continue
            seeds = np.asarray(budgets[label], dtype=float)
            where = place + width * (number - (len(labels) - 1) / 2)
            axes.bar(
                where, seeds.mean(), 0.92 * width, color=colour, label=label if place == _first(scores, label) else ""
            )
            axes.plot([where] * len(seeds), seeds, linestyle="", marker="o", markersize=2, color="black", alpha=0.7)
    if baseline is not None:
        axes.axhline(baseline, color=GREY, linestyle="--", linewidth=0.8, label="none")
    axes.set_xticks(range(len(scores)), list(scores))
    axes.grid(False, axis="x")
    axes.set_ylabel(score_label)
    shown = [*labels, "none"] if baseline is not None else labels
    columns = max(2, min(len(shown), len(scores)))
    figure.legend(loc="outside lower center", ncols=columns, title="constant heads", title_fontsize=7)
    return figure


def _first(scores: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> int:
    """The first family that has the budget: its bar stands for it in the legend."""
    return next(place for place, budgets in enumerate(scores.values()) if label in budgets)
