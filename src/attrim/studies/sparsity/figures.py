"""All figures of the sparsity study, from what it found to files: one function for each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from ...measure import Stats
from ...plots import distribution, head_histograms, head_map, save
from ...plots.compare import compare_rows
from ...plots.errorbars import Bars, head_error_bars
from ...plots.layers import layer_lines
from ...plots.matrices import attention_matrices
from ...plots.means import histogram_of_heads
from ...plots.rows import row_distributions
from ...plots.thresholds import sparsity_against_bar
from ...plots.tokens import token_curves, token_sparsity
from ...plots.values import value_histograms
from ...runs import Run
from ...stats import Histogram, Sample
from ...stats.features import Features
from ...stats.majority import Majority
from ...stats.rowcurves import RowCurves
from ...stats.tokensparsity import TokenSparsity
from ...stats.values import Values
from ...tasks import Task
from .compare import Earlier, distinct, label
from .measuring import CURVE
from .scores import score_figures

if TYPE_CHECKING:
    from .study import Findings

EXTREMES = {"maximum": "largest weight", "minimum": "smallest weight", "std": "standard deviation"}  # of an example
Named = Iterator[tuple[str, Figure]]


def draw(
    found: Findings,
    run: Run,
    task: Task,
    tokenizer: Any,
    others: Sequence[Earlier],
    heads: Sequence[tuple[int, int]],
    formats: Sequence[str],
) -> list[Path]:
    """Write every figure that the findings allow to the run's folder; returns the files."""
    this = Earlier(label(run.config), found.stats["weights"], found.results)
    folder = run.folder / "figures"
    written: list[Path] = []
    # One at a time, for many figures at once take much memory.
    for name, figure in _every(found, task, tokenizer, distinct([this, *others]), heads):
        written += save(figure, folder / name, formats)
    return written


def _every(
    found: Findings, task: Task, tokenizer: Any, runs: Sequence[Earlier], heads: Sequence[tuple[int, int]]
) -> Named:
    yield from weight_figures(found.stats["weights"])
    if "tokens" in found.stats:
        yield from token_figures(found.stats["tokens"], tokenizer, heads)
    if "hidden" in found.stats:
        yield from hidden_figures(found.stats["hidden"])
    if "matrices" in found.stats:
        yield from matrix_figures(found.stats["matrices"])
    yield from chosen_heads(runs, heads)
    if len(runs) > 1:
        yield from comparisons(runs)
    if found.results:
        yield from score_figures(found.settings, task, runs)


def weight_figures(stats: Stats) -> Named:
    """How the weights are distributed: over all heads, over single rows, over examples."""
    histogram, curves, majority, features = (stats[name] for name in ("Histogram", "RowCurves", "Majority", "Features"))
    assert isinstance(histogram, Histogram)
    assert isinstance(curves, RowCurves)
    assert isinstance(majority, Majority)
    assert isinstance(features, Features)
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
                text: Bars(features.mean(fact), features.std(fact), features.lowest(fact), features.highest(fact))
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
    return {text: Bars(majority.mean(fact), majority.std(fact)) for fact, text in labels.items()}


def median_bars(histogram: Histogram) -> Bars:
    """The rows' median bins: mean, standard deviation and extremes."""
    counts = np.asarray(histogram.median_bins())
    seen = counts > 0
    empty = ~seen.any(-1)
    low = np.where(empty, np.nan, seen.argmax(-1))
    high = np.where(empty, np.nan, counts.shape[-1] - 1 - seen[..., ::-1].argmax(-1))
    return Bars(histogram.median_bin(), histogram.diversity(), low, high)


def layer_mean(values: Any) -> Any:
    """The mean over the heads of each site that were watched."""
    return np.nanmean(np.asarray(values, dtype=float), axis=1)


def token_figures(stats: Stats, tokenizer: Any, heads: Sequence[tuple[int, int]]) -> Named:
    """How sparse the rows of frequent tokens are, and how their weights are distributed in chosen heads."""
    places = ["all-heads", *(f"layer-{layer}-head-{head}" for layer, head in heads)]
    for place, stat in zip(places, stats.values(), strict=True):
        assert isinstance(stat, TokenSparsity)
        frequent = stat.most_frequent()
        names = [name_of(tokenizer, token) for token, _, _ in frequent]
        if place == "all-heads":
            sparsity = [shares[-1] for _, _, shares in frequent]
            ordered = sorted(zip(names, sparsity, strict=True), key=lambda row: -row[1])
            yield "tokens-sparsity", token_sparsity(ordered, stat.bars[-1], stat.overall()[-1])
        curves = {name: shares[: len(CURVE)] for name, (_, _, shares) in zip(names, frequent, strict=True)}
        yield f"tokens-curves-{place}", token_curves(curves, CURVE, stat.overall()[: len(CURVE)])


def name_of(tokenizer: Any, token: int) -> str:
    """A token as text, with its spaces removed as in the paper's tables."""
    return str(tokenizer.decode([token])).replace(" ", "").replace("\n", "\\n") or f"#{token}"


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
