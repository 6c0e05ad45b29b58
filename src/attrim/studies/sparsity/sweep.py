"""What the sparsity study tries: thresholds, quantising methods and bits, pruning constants, layers and controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...codebooks.base import check_bits
from ...core.registry import EDITS, METHODS
from ...core.site import Select, Site
from ...core.text import describe, parse, parse_chain
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

LOG_PRUNED = "linear-slog-clamped-midval"
METHODS_OF_THE_PAPER = (
    "linear-slinear-midval",
    "linear-slinear-clamped-midval",
    "linear-slog-midval",
    LOG_PRUNED,
    "binarization",
)
FITTED = (("lloyd-max", None), ("calibrated-linear", 8))  # to compare with, and their bits where they are given
THRESHOLD, PRUNE, LAYER, CONTROL, MATCHED, OTHER = "threshold", "prune", "layer", "control", "random drop", "other"
HIDDEN_THRESHOLD, HIDDEN_BITS = "hidden threshold", "hidden bits"
OFF = "attention off"


@dataclass(frozen=True)
class Setting:
    """One row of the study's table.

    Attributes
    ----------
    name : the edits as text; results are stored under it.
    group : the line of a figure that it belongs to: a method, or one of the words of this module.
    value : where it stands on that line: a bar, a number of bits, a pruning constant or a layer.
    label : what to call it for people, where that is not the name.
    """

    name: str
    group: str
    value: float
    edits: tuple[Edit, ...]
    label: str = ""


@dataclass(frozen=True)
class Sweep:
    """The settings of the study (Ji et al. 2021, https://arxiv.org/abs/2106.01335, with controls added).

    Parameters
    ----------
    bars : thresholds; weights that are not above the bar become zero.
    relative_to : what the bars are a multiple of, as in :class:`~attrim.edits.threshold.Threshold`.
    target : also try the threshold that zeroes about this share of the measured weights; None leaves it out.
    methods : quantising methods, each with options if need be: ``linear-slog,prune=0.01``.
    bits : the numbers of bits that every method is tried with.
    prunes : pruning constants to try with ``prune_method`` at ``prune_bits``.
    hidden_bars, hidden_bits, hidden_method : the same for hidden states instead of attention weights.
    edits : further rows of the table, as for ``attrim evaluate --edit``.
    layer_edit : an edit to try in every layer alone; empty leaves it out.
    controls : attention off, uniform, and random drop at the sparsity of each threshold.
    renormalize : divide each row by what thresholds leave of it.
    as_coded : quantise as the released functions do, where there is one.
    select : the heads that all of this is about.
    """

    bars: tuple[float, ...] = (1e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
    relative_to: str = "one"
    target: float | None = 0.8
    methods: tuple[str, ...] = METHODS_OF_THE_PAPER
    bits: tuple[int, ...] = (2, 3, 4, 8)
    prunes: tuple[float, ...] = ()
    prune_method: str = LOG_PRUNED
    prune_bits: int = 3
    hidden_bars: tuple[float, ...] = ()
    hidden_bits: tuple[int, ...] = ()
    hidden_method: str = "fixed-point"
    edits: tuple[str, ...] = ()
    layer_edit: str = ""
    controls: bool = True
    renormalize: bool = False
    as_coded: bool = False
    select: Select = field(default_factory=Select)

    def __post_init__(self) -> None:
        # Everything that is given as text is read once here, so that a wrong word is found before long work begins.
        if self.target is not None and not 0 < self.target < 1:
            raise ParameterError(f"The target is a share of the weights, between 0 and 1, not {self.target}.")
        for settings in (self._thresholds(None), self._methods(None), self._hidden()):
            list(settings)
        for text in (*self.edits, *([self.layer_edit] if self.layer_edit else [])):
            parse_chain(text)

    def settings(self, histogram: Histogram) -> list[Setting]:
        """Every setting that is known before anything is evaluated; one may belong to two groups."""
        return [
            *self._thresholds(histogram),
            *self._methods(histogram),
            *self._hidden(),
            *self._controls(),
            *(self._setting(OTHER, place, *parse_chain(text)) for place, text in enumerate(self.edits)),
        ]

    def few_bits(self, histogram: Histogram) -> dict[str, Edit]:
        """Edits by name whose rows are compared with the original ones: the methods, and those fitted to the histogram.

        They have 3 bits (the paper's number) or else the fewest tried; the calibrated one has its usual 8.
        """
        bits = 3 if 3 in self.bits or not self.bits else min(self.bits)
        corrected = dataclasses.replace(self, as_coded=False)  # the released functions fail where little is left
        settings = [corrected._quantise(text, text, bits, bits, histogram) for text in self.methods]
        if all(len(record.heads) == record.site.heads for record in histogram.records.values()):
            settings += [corrected._quantise(OTHER, name, number or bits, 0, histogram) for name, number in FITTED]
        return {setting.name: edit for setting in settings for edit in setting.edits}

    def matched(self, settings: Sequence[Setting], results: dict[str, Result]) -> list[Setting]:
        """A random drop at the sparsity that each threshold turned out to have."""
        thresholds = [setting for setting in settings if setting.group == THRESHOLD] if self.controls else []
        shares = [round(results[setting.name].zero_share, 4) for setting in thresholds]
        return [self._setting(MATCHED, share, RandomDrop(share)) for share in dict.fromkeys(shares) if share > 0]

    def layers(self, sites: Sequence[Site]) -> list[Setting]:
        """The layer edit in one layer at a time."""
        if not self.layer_edit:
            return []
        return [
            self._setting(
                LAYER,
                layer,
                *(
                    dataclasses.replace(edit, select=dataclasses.replace(self.select, layers=[layer]))
                    for edit in parse_chain(self.layer_edit)
                ),
            )
            for layer in sorted({site.layer for site in self.select.resolve(sites)})
        ]

    def _thresholds(self, histogram: Histogram | None) -> Iterator[Setting]:
        bars = {*self.bars}
        if histogram is not None and self.target is not None and self.relative_to == "one":
            bars.add(float(f"{bar_for(histogram, self.target):.2g}"))
        for bar in sorted(bars):
            edit = Threshold(bar, relative_to=self.relative_to, renormalize=self.renormalize)  # type: ignore[arg-type]
            yield self._setting(THRESHOLD, bar, edit)

    def _methods(self, histogram: Histogram | None) -> Iterator[Setting]:
        for text in self.methods:
            for bits in self.bits if "bits" in METHODS[text.partition(",")[0]].options else (1,):
                yield self._quantise(text, text, bits, bits, histogram)
        for prune in sorted(self.prunes):
            text = f"{self.prune_method},prune={prune:g}"
            yield self._quantise(PRUNE, text, self.prune_bits, prune, histogram)

    def _quantise(self, group: str, text: str, bits: int, value: float, histogram: Histogram | None) -> Setting:
        name, _, options = text.partition(",")
        method = METHODS[name]
        if method.kind == "fitted":
            if options:
                raise ParameterError(f"The fitted method {name!r} takes no options in a sweep; leave out {options!r}.")
            check_bits(bits)
            edits = () if histogram is None else (Quantize(name, bits, fitted=histogram, select=self.select),)
            return Setting(f"quantize:{name},bits={bits},fitted=measured", group, value, edits)
        parts = [name, *([f"bits={bits}"] if "bits" in method.options else []), *([options] if options else [])]
        if self.as_coded:
            parts.append("as_coded=true")
        return self._setting(group, value, parse(EDITS, f"quantize:{','.join(parts)}"))

    def _hidden(self) -> Iterator[Setting]:
        for bar in sorted(self.hidden_bars):
            yield self._setting(HIDDEN_THRESHOLD, bar, parse(EDITS, f"hidden-threshold:{bar!r}"))
        for bits in sorted(self.hidden_bits):
            coded = ",as_coded=true" if self.as_coded else ""
            edit = parse(EDITS, f"hidden-quantize:{self.hidden_method},bits={bits}{coded}")
            yield self._setting(HIDDEN_BITS, bits, edit)

    def _controls(self) -> Iterator[Setting]:
        if self.controls:
            for edit, label in ((Gate(0.0), OFF), (Uniform(), "uniform attention")):
                yield dataclasses.replace(self._setting(CONTROL, 0.0, edit), label=label)

    def _setting(self, group: str, value: float, *edits: Edit) -> Setting:
        chosen = tuple(
            dataclasses.replace(edit, select=self.select) if edit.select == Select() else edit for edit in edits
        )
        return Setting(describe(*chosen), group, value, chosen)


def bar_for(histogram: Histogram, share: float) -> float:
    """The bar that ``share`` of all measured weights, whatever their head, are not above."""
    edges = KNOTS[KNOTS < 1]
    counts = histogram.counts(edges.tolist()).sum((0, 1)).numpy()
    reached = np.concatenate([[0.0], counts.cumsum()]) / float(histogram.total.sum())
    return float(np.interp(share, reached, edges))
