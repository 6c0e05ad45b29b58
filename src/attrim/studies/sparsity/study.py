"""The sparsity study: how attention is distributed, how much can be zeroed, how few levels the rest needs.

The experiments of Ji et al. 2021 (https://arxiv.org/abs/2106.01335) on any model and task, with the controls and the
intervals that tell whether a score says anything about attention at all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import UseAppendAction

from ...core.text import parse_chain, parse_heads
from ...errors import ArtefactError, ParameterError
from ..base import Study, register
from ..bench import Bench

if TYPE_CHECKING:
    from ...runs.result import Result
    from ...stats.base import Stat
    from ...stats.bundle import Stats
    from ...stats.histogram import Histogram
    from ...stats.sample import Sample
    from ..findings import Setting
    from .findings import SparsityFindings

log = logging.getLogger(__name__)
Part = Literal["tokens", "distances", "hidden", "matrices"]
CURVE = tuple(10.0 ** (power / 2) for power in range(-16, 0))  # half decades, for the curves of single tokens
PROBES = {"query": 10.0, "key": 10.0, "value": 5.0, "scores": 20.0, "output": 5.0}  # moment to the end of its axis


@register("sparsity")
@dataclass(frozen=True)
class Sparsity(Study):
    """Measure a model's attention, threshold and quantise it at several levels, and compare with controls."""

    bars: tuple[float, ...] = (1e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
    """Thresholds: weights that are not above the bar become zero."""
    relative_to: Literal["one", "uniform", "row-maximum"] = "one"
    """What the bars are a multiple of."""
    renormalize: Literal["both", "no", "yes"] = "both"
    """Whether each row is divided by what a threshold leaves of it (the paper: no); both tries every bar twice."""
    target: float = 0.8
    """Also try the threshold that zeroes about this share of the weights; 0 leaves it out."""
    methods: tuple[str, ...] = (
        "linear-slinear-midval",
        "linear-slinear-clamped-midval",
        "linear-slog-midval",
        "linear-slog-clamped-midval",
        "binarization",
    )
    """Quantising methods, with options as in linear-slog,prune=0.01 (docs/quantize.md)."""
    bits: tuple[int, ...] = (2, 3, 4, 8)
    """Numbers of bits to try each method with."""
    as_coded: bool = False
    """Quantise as the paper's released functions do, oddities included."""
    prunes: tuple[float, ...] = ()
    """Pruning constants to try with --prune-method and --prune-bits."""
    prune_method: str = "linear-slog-clamped-midval"
    """The method whose pruning constant is varied."""
    prune_bits: int = 3
    """Its number of bits."""
    hidden_bars: tuple[float, ...] = ()
    """Thresholds for hidden states."""
    hidden_bits: tuple[int, ...] = ()
    """Numbers of bits for hidden states."""
    hidden_method: Literal["fixed-point", "linear", "log"] = "fixed-point"
    """How hidden states are quantised."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """Further row of the table, as in attrim evaluate."""
    layer_edit: str = ""
    """An edit to try in every layer alone, such as threshold:0.01."""
    no_controls: bool = False
    """Leave out attention off, uniform attention, and random drop at the sparsity of each threshold."""
    no_scores: bool = False
    """Only measure and draw; evaluate nothing."""
    parts: tuple[Part, ...] = ("tokens", "distances")
    """What to measure beside the weights: sparsity of tokens, JS distances, hidden states and probes, heat maps."""
    row_bar: float = 1e-3
    """Row and token sparsity count the weights that are not above it (the paper: 1e-8)."""
    show_heads: tuple[str, ...] = ()
    """Heads to draw in figures of their own, such as 0/2 for head 2 of layer 0."""
    examples: int = 3
    """Single examples that get a table and a figure of their tokens' sparsity."""
    matrix_examples: tuple[int, ...] = ()
    """Examples whose attention --parts matrices draws, by the numbers of the tokens-example figures (default: one)."""
    compare: tuple[Path, ...] = ()
    """Folders of earlier runs of this command, to draw beside this one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.row_bar < 1:
            raise ParameterError(f"The row bar must lie in [0, 1), not {self.row_bar}.")
        if not 0 <= self.target < 1:
            raise ParameterError(f"The target is a share of the weights, between 0 and 1, not {self.target}.")
        _ = self.heads  # raises for one that is not a head
        if self.matrix_examples and "matrices" not in self.parts:
            raise ParameterError("--matrix-examples chooses what --parts matrices draws; add that part.")
        if any(number < 0 for number in self.matrix_examples):
            raise ParameterError(f"Examples are numbered from 0; there is no example {min(self.matrix_examples)}.")

    @property
    def heads(self) -> list[tuple[int, int]]:
        """The heads to show as pairs of layer and head."""
        heads = parse_heads("+".join(self.show_heads)) if self.show_heads else []
        for head in heads:
            if not isinstance(head, tuple) or not isinstance(head[0], int) or min(head) < 0:
                raise ParameterError(f"A head to show is written LAYER/HEAD, such as 5/11, not {head!r}.")
        return heads

    @property
    def texts(self) -> list[str]:
        """The edits that are given as text."""
        return [*self.edit, *filter(None, [self.layer_edit])]

    @classmethod
    def findings(cls) -> type[SparsityFindings]:
        """See :meth:`Study.findings`."""
        from .findings import SparsityFindings

        return SparsityFindings

    def identity(self) -> dict[str, Any]:
        """A hash of the tensors that edits given as text read from folders; everything else is in their names."""
        from ...edits.saving import fingerprint, holds_tensors

        edits = {text: parse_chain(text) for text in self.texts}
        tensors = {text: fingerprint(chain) for text, chain in edits.items() if holds_tensors(chain)}
        return {"tensors": tensors} if tensors else {}

    def prepare(self, bench: Bench) -> Bench:
        """See :meth:`Study.prepare`; what is wrong with the settings is said before anything is loaded.

        Without scores, any head of the model will do.
        """
        from .settings import check

        check(self, bench.select())
        bench = super().prepare(bench)
        return bench.unscored() if self.no_scores else bench

    def work(self, bench: Bench) -> SparsityFindings:
        """Measure every part, evaluate every setting, and keep what tables and figures need of the tokenizer."""
        from .findings import SparsityFindings, compare_forms, token_names

        compared = self._compared()
        bench.check_stats(self.texts)
        stats = self._measure(bench)
        settings: list[Setting] = []
        results: dict[str, Result] = {}
        task = bench.loaded_task
        if task.metrics and not self.no_scores:
            settings, results = self._evaluate(bench, stats["weights"])
        metric = next(iter(task.metrics), "")
        return SparsityFindings(
            folder=bench.run_folder,
            study=self,
            model=bench.name,
            task=bench.task_name,
            smaller_is_better=metric in task.smaller_is_better,
            stats=stats,
            settings=tuple(settings),
            results=results,
            renormalised=compare_forms(settings, results, task),
            tokens=token_names(stats, bench.loaded_tokenizer),
            compared=compared,
        )

    def _compared(self) -> tuple[Path, ...]:
        """The folders of the runs to compare with, each of which holds findings of this study."""
        from ..findings import findings

        for folder in self.compare:
            if not isinstance(findings(folder), self.findings()):
                raise ArtefactError(f"{folder} holds no run of the sparsity study; give a folder that it wrote.")
        return tuple(folder.resolve() for folder in self.compare)

    def _measure(self, bench: Bench) -> dict[str, Stats]:
        """The stats of each part in one pass over the data; of chosen heads in one pass each."""
        from ...core.site import Select
        from ...stats import Histogram, Moments, Sample
        from ...stats.rowfacts import RowCurves
        from ...stats.spread import Extremes, Majority

        wanted: list[Stat] = [Histogram(rows=True, bar=self.row_bar), Moments(), Majority(), Extremes(), RowCurves()]
        found = {"weights": bench.measure(wanted, "weights")}
        histogram = found["weights"][Histogram]
        if self.heads:
            Select(heads=self.heads).resolve(histogram.sites)  # raises when one is missing
        for part in dict.fromkeys(self.parts):
            if part == "tokens" and bench.loaded_task.kind == "image-classification":
                log.warning("Patches of images are no tokens with names, so the part tokens is left out.")
            elif part == "tokens":
                found |= self._measure_tokens(bench)
            elif part == "distances":
                found[part] = bench.measure(self._distances(histogram, bench), part)
            elif part == "hidden":
                found[part] = bench.measure(self._probes(), part)
            else:
                found[part] = bench.measure(Sample(1, numbers=self.matrix_examples), part)
                self._check_examples(found[part][Sample])
        return found

    def _check_examples(self, sample: Sample) -> None:
        """Refuse numbers that no example has."""
        missing = [number for number in self.matrix_examples if number not in sample.examples]
        if missing:
            raise ParameterError(
                f"There is no example {missing[0]} to draw the attention of: the data has {sample.seen} examples, "
                "numbered from 0."
            )

    def _measure_tokens(self, bench: Bench) -> dict[str, Stats]:
        """Tokens of every head together and of single examples, and of each chosen head: a stat has one selection."""
        from ...core.site import Select
        from ...stats.token_sparsity import TokenSparsity, TokenTable

        bars = (*CURVE, self.row_bar)
        every: list[Stat] = [TokenSparsity(bars)]
        if self.examples:
            every.append(TokenTable(self.examples, bar=self.row_bar))
        found = {"tokens": bench.measure(every, "tokens")}
        for layer, head in self.heads:
            part = f"tokens/{layer}-{head}"
            found[part] = bench.measure(TokenSparsity(bars), part, select=Select(heads=[(layer, head)]))
        return found

    def _distances(self, histogram: Histogram, bench: Bench) -> Stat:
        from ...stats.distance import RowDistance
        from .settings import few_bits

        return RowDistance(few_bits(self, bench.select(), histogram))

    def _probes(self) -> list[Stat]:
        """The probes of the paper: hidden states, then queries, keys, values, scores and the outputs of the heads."""
        from ...stats.values import Values

        probes = (Values(moment, -end, end) for moment, end in PROBES.items())  # type: ignore[arg-type]
        return [Values("layer_input"), Values("layer_output"), *probes]

    def _evaluate(self, bench: Bench, weights: Stats) -> tuple[list[Setting], dict[str, Result]]:
        """Evaluate every setting, then what depends on how the thresholds came out, then one layer at a time."""
        from ...evaluation import evaluate_layers
        from ...stats import Histogram
        from .settings import first_settings, layer_settings, matched_settings

        histogram, select = weights[Histogram], bench.select()
        settings = first_settings(self, select, histogram)
        results = bench.evaluate(settings)
        controls = matched_settings(self, select, settings, results)
        if controls:
            results |= bench.evaluate(controls)
        layers = layer_settings(self, select, histogram.sites)
        if layers:
            edits = {item.name: item.edits for item in layers}
            loaded = bench.loaded_model, bench.loaded_task, bench.loaded_tokenizer
            results |= evaluate_layers(*loaded, edits, run=bench.require_run(), progress=bench.progress)
        return [*settings, *controls, *layers], results
