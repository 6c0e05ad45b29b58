"""How sparse the attention of single tokens is, and how their weights are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import COLOURS, COLUMN, GREY, PAGE, from_zero, styled

NAMED = 6  # curves with a colour and a name; the others are grey


@styled
def token_sparsity(tokens: Sequence[tuple[str, float]], bar: float, overall: float) -> Figure:
    """Draw the sparsity of the rows of each token as a bar, in the order given; the dashed line is that of all rows."""
    figure = Figure(figsize=(PAGE, 2.6))
    axes = figure.subplots()
    axes.bar(range(len(tokens)), [share for _, share in tokens], color=COLOURS[0])
    axes.axhline(overall, color="black", linestyle="--", linewidth=0.8, label="all tokens")
    axes.set_xticks(range(len(tokens)), [name for name, _ in tokens], rotation=90, fontsize=5, parse_math=False)
    axes.set_xlim(-0.7, len(tokens) - 0.3)
    from_zero(axes, max([overall, *(share for _, share in tokens)]))
    axes.set_ylabel(f"share of weights ≤ {bar:g}")
    axes.grid(False, axis="x")
    axes.legend(loc="upper right")
    return figure


@styled
def token_curves(curves: Mapping[str, Sequence[float]], bars: Sequence[float], overall: Sequence[float]) -> Figure:
    """Draw the share of weights up to each bar, a curve a token; the densest and the sparsest tokens have names.

    Parameters
    ----------
    curves : token to shares, one for each bar.
    overall : the shares of all tokens together, dashed.
    """
    ordered = sorted(curves.items(), key=lambda item: float(np.mean(item[1])))
    half = min(NAMED, len(ordered)) // 2
    named = dict([*ordered[:half], *ordered[len(ordered) - half :]])
    figure = Figure(figsize=(COLUMN, 3.1))
    axes = figure.subplots()
    for name, shares in ordered:
        if name not in named:
            axes.plot(bars, shares, color=GREY, linewidth=0.5, alpha=0.4)
    for number, (name, shares) in enumerate(named.items()):
        axes.plot(bars, shares, color=COLOURS[number % len(COLOURS)], label=name.replace("$", r"\$"))
    axes.plot(bars, overall, color="black", linestyle="--", label="all tokens")
    axes.set_xscale("log")
    axes.set_xlim(bars[0], bars[-1])
    axes.set_ylim(0, 1)
    axes.set_xlabel("attention weight")
    axes.set_ylabel("share up to this value")
    figure.legend(loc="outside lower center", ncols=4, handlelength=1.2)
    return figure
