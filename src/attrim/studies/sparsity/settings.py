"""What the sparsity study tries: thresholds, quantising methods and bits, pruning constants, layers and controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...codebooks.base import check_bits
from ...core.registry import METHODS
from ...core.site import Select, Site
from ...core.text import parse_chain
from ...edits.base import Edit
from ...edits.gate import Gate
from ...edits.quantize import Quantize
from ...edits.randomdrop import RandomDrop
from ...edits.threshold import Threshold
from ...edits.uniform import Uniform
from ...errors import ParameterError
from ...runs.result import Result
from ...stats import Histogram
from ...stats.bins import KNOTS
from ..findings import Setting
from .study import Sparsity

LOG_PRUNED = "linear-slog-clamped-midval"
FITTED = (("lloyd-max", None), ("calibrated-linear", 8))  # to compare with, and their bits where they are given
THRESHOLD, RENORMALIZED = "threshold", "threshold, renormalised"
PRUNE, LAYER, CONTROL, MATCHED, OTHER = "prune", "layer", "control", "random drop", "other"
HIDDEN_THRESHOLD, HIDDEN_BITS = "hidden threshold", "hidden bits"
OFF = "attention off"
FORMS = {"no": (THRESHOLD,), "yes": (RENORMALIZED,), "both": (THRESHOLD, RENORMALIZED)}
"""The forms of thresholds that a study tries; the first one gets the controls and the target."""


def check(study: Sparsity, select: Select) -> None:
    """Read everything that is given as text once, so that a wrong word is found before long work begins."""
    first_settings(study, select, None)
    if study.layer_edit:
        parse_chain(study.layer_edit)


def first_settings(study: Sparsity, select: Select, histogram: Histogram | None) -> list[Setting]:
    """Every setting that is known before anything is evaluated; one may belong to two groups.

    Parameters
    ----------
    histogram : of the measured weights; without it there is no target, and fitted methods have no edit yet.
    """
    others = (tuple(parse_chain(text, select)) for text in study.edit)
    return [
        *_thresholds(study, select, histogram),
        *_methods(study, select, histogram),
        *_hidden(study, select),
        *_controls(study, select),
        *(Setting.of(*edits, group=OTHER, value=place) for place, edits in enumerate(others)),
    ]


def few_bits(study: Sparsity, select: Select, histogram: Histogram) -> dict[str, Edit]:
    """Edits by name whose rows are compared with the original ones: the methods, and those fitted to the histogram.

    They have 3 bits (the paper's number) or else the fewest tried; the calibrated one has its usual 8.
    """
    bits = 3 if 3 in study.bits or not study.bits else min(study.bits)
    corrected = dataclasses.replace(study, as_coded=False)  # the released functions fail where little is left
    settings = [_quantise(corrected, select, text, text, bits, bits, histogram) for text in study.methods]
    if all(len(record.heads) == record.site.heads for record in histogram.records.values()):
        settings += [_quantise(corrected, select, OTHER, name, number or bits, 0, histogram) for name, number in FITTED]
    return {setting.name: edit for setting in settings for edit in setting.edits}


def matched_settings(
    study: Sparsity, select: Select, settings: Sequence[Setting], results: Mapping[str, Result]
) -> list[Setting]:
    """A random drop at the sparsity that each threshold turned out to have."""
    first = FORMS[study.renormalize][0]
    thresholds = [] if study.no_controls else [setting for setting in settings if setting.group == first]
    shares = [round(results[setting.name].zero_share, 4) for setting in thresholds]
    drops = (RandomDrop(share, select=select) for share in dict.fromkeys(shares) if share > 0)
    return [Setting.of(drop, group=MATCHED, value=drop.share) for drop in drops]


def layer_settings(study: Sparsity, select: Select, sites: Sequence[Site]) -> list[Setting]:
    """The layer edit in one layer at a time."""
    edits = parse_chain(study.layer_edit) if study.layer_edit else []
    layers = sorted({site.layer for site in select.resolve(sites)}) if edits else []
    chosen = {layer: dataclasses.replace(select, layers=[layer]) for layer in layers}
    return [
        Setting.of(*(dataclasses.replace(edit, select=one) for edit in edits), group=LAYER, value=layer)
        for layer, one in chosen.items()
    ]


def bar_for(histogram: Histogram, share: float) -> float:
    """The bar that ``share`` of all measured weights, whatever their head, are not above."""
    edges = KNOTS[KNOTS < 1]
    counts = histogram.counts(edges.tolist()).sum((0, 1)).numpy()
    reached = np.concatenate([[0.0], counts.cumsum()]) / float(histogram.total.sum())
    return float(np.interp(share, reached, edges))


def _thresholds(study: Sparsity, select: Select, histogram: Histogram | None) -> Iterator[Setting]:
    forms = FORMS[study.renormalize]
    for form in forms:
        bars = {*study.bars}
        if form == forms[0] and histogram is not None and study.target and study.relative_to == "one":
            bars.add(float(f"{bar_for(histogram, study.target):.2g}"))
        for bar in sorted(bars):
            edit = Threshold(bar, study.relative_to, renormalize=form == RENORMALIZED, select=select)
            yield Setting.of(edit, group=form, value=bar)


def _methods(study: Sparsity, select: Select, histogram: Histogram | None) -> Iterator[Setting]:
    for text in study.methods:
        for bits in study.bits if "bits" in METHODS[text.partition(",")[0]].options else (1,):
            yield _quantise(study, select, text, text, bits, bits, histogram)
    for prune in sorted(study.prunes):
        text = f"{study.prune_method},prune={prune:g}"
        yield _quantise(study, select, PRUNE, text, study.prune_bits, prune, histogram)


def _quantise(
    study: Sparsity, select: Select, group: str, text: str, bits: int, value: float, histogram: Histogram | None
) -> Setting:
    name, _, options = text.partition(",")
    method = METHODS[name]
    if method.kind == "fitted":
        if options:
            raise ParameterError(f"The fitted method {name!r} takes no options in a sweep; leave out {options!r}.")
        check_bits(bits)
        edits = () if histogram is None else (Quantize(name, bits, fitted=histogram, select=select),)
        return Setting(f"quantize:{name},bits={bits},fitted=measured", group, value, edits)
    parts = [name, *([f"bits={bits}"] if "bits" in method.options else []), *([options] if options else [])]
    if study.as_coded:
        parts.append("as_coded=true")
    return Setting.of(*parse_chain(f"quantize:{','.join(parts)}", select), group=group, value=value)


def _hidden(study: Sparsity, select: Select) -> Iterator[Setting]:
    for bar in sorted(study.hidden_bars):
        yield Setting.of(*parse_chain(f"hidden-threshold:{bar!r}", select), group=HIDDEN_THRESHOLD, value=bar)
    for bits in sorted(study.hidden_bits):
        coded = ",as_coded=true" if study.as_coded else ""
        edits = parse_chain(f"hidden-quantize:{study.hidden_method},bits={bits}{coded}", select)
        yield Setting.of(*edits, group=HIDDEN_BITS, value=bits)


def _controls(study: Sparsity, select: Select) -> Iterator[Setting]:
    if not study.no_controls:
        yield Setting.of(Gate(0.0, select=select), group=CONTROL, label=OFF)
        yield Setting.of(Uniform(select=select), group=CONTROL, label="uniform attention")
