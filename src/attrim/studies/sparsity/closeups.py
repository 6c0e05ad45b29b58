"""The figures of the sparsity study about tokens, edited rows, hidden states and single matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...measurement import Stats
from ...plots.errorbars import Bars, head_error_bars
from ...plots.matrices import attention_matrices
from ...plots.overlay import row_overlays
from ...plots.text import token_text
from ...plots.tokens import token_curves, token_sparsity
from ...plots.values import value_histograms
from ...stats import Sample
from ...stats.distance import RowDistance
from ...stats.token_sparsity import TokenSparsity, TokenTable
from ...stats.values import Values
from .measuring import CURVE
from .tables import examples, name_of

Named = Iterator[tuple[str, Figure]]


def token_figures(stats: Stats, tokenizer: Any, heads: Sequence[tuple[int, int]]) -> Named:
    """How sparse the rows of frequent tokens are, in all heads and in chosen ones, and those of single examples."""
    places = ["all-heads", *(f"layer-{layer}-head-{head}" for layer, head in heads)]
    every = [stat for stat in stats.values() if isinstance(stat, TokenSparsity)]
    for place, stat in zip(places, every, strict=True):
        frequent = stat.most_frequent()
        names = [name_of(tokenizer, token) for token, _, _ in frequent]
        if place == "all-heads":
            sparsity = [shares[-1] for _, _, shares in frequent]
            ordered = sorted(zip(names, sparsity, strict=True), key=lambda row: -row[1])
            yield "tokens-sparsity", token_sparsity(ordered, stat.bars[-1], stat.overall()[-1])
        curves = {name: shares[: len(CURVE)] for name, (_, _, shares) in zip(names, frequent, strict=True)}
        yield f"tokens-curves-{place}", token_curves(curves, CURVE, stat.overall()[: len(CURVE)])
    for table in stats.values():
        if isinstance(table, TokenTable):
            for name, rows in examples(table):
                shares = [(name_of(tokenizer, row.token), row.sparsity) for row in rows]
                yield name, token_text(shares, f"share of weights ≤ {table.bar:g}")


def distance_figures(stats: Stats, heads: Sequence[tuple[int, int]]) -> Named:
    """The rows' histograms after each edit over the original ones: of all heads, and of chosen ones."""
    stat = stats["RowDistance"]
    assert isinstance(stat, RowDistance)
    before, after, distance = (np.asarray(table) for table in (stat.rows_before(), stat.rows_after(), stat.distance()))

    def overlay(title: str, before: Any, after: Any, distance: Any) -> Figure:
        names = [f"{name.removeprefix('quantize:')}: {far:.2f}" for name, far in zip(stat.edits, distance, strict=True)]
        edited = dict(zip(names, after, strict=True))
        return row_overlays(before, edited, stat.floor, f"{title}; behind each name the JS distance")

    mean = [np.nanmean(table, axis=(0, 1)) for table in (before, after, distance)]
    yield "quantised-rows", overlay("all heads", *mean)
    role = stat.sites[0].role
    layers = {site.layer: place for place, site in enumerate(stat.sites) if site.role == role}
    for layer, head in heads:
        if layer in layers:
            own = [table[layers[layer], head] for table in (before, after, distance)]
            yield f"quantised-rows-layer-{layer}-head-{head}", overlay(f"layer {layer} head {head}", *own)


def hidden_figures(stats: Stats) -> Named:
    """Hidden states by layer, and the numbers on the way through attention by head."""
    for stat in stats.values():
        assert isinstance(stat, Values)
        name = stat.moment.replace("_", "-")
        bars = Bars(stat.mean(), stat.std(), stat.minimum(), stat.maximum())
        text = stat.moment.replace("_", " ")
        yield f"probe-{name}", head_error_bars({text: bars}, stat.sites)
        yield f"probe-{name}-histogram", value_histograms(stat, text)


def matrix_figures(stats: Stats) -> Named:
    """The attention of one example at every site: as it is, each head on its own scale, and above the bar."""
    sample = stats["Sample"]
    assert isinstance(sample, Sample)
    for site in sample.sites:
        matrices = next(iter(sample.matrices(site).values())).float().numpy()
        place = f"{site.role.replace('>', '-to-')}-{site.layer}"
        yield f"matrices-{place}", attention_matrices(matrices, site)
        yield f"matrices-own-scale-{place}", attention_matrices(matrices, site, highest=None)
        yield f"matrices-above-bar-{place}", attention_matrices(matrices, site, binary=True)
