"""The sparsity study: how attention is distributed, how much can be zeroed, how few levels the rest needs.

The experiments of Ji et al. 2021 (https://arxiv.org/abs/2106.01335) on any model and task, with the controls and the
intervals that tell whether a score says anything about attention at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ...core.site import Select
from ...evaluation import Result
from ...measurement import Stats
from ...runs.run import Run
from ...stats import Histogram
from ...stats.distance import RowDistance
from ...stats.spread import Majority
from ...tasks import Task
from ..base import register
from ..settings import evaluate_each
from .claims import Claim, claims
from .compare import of_run, read_runs, store_settings
from .figures import draw
from .layerwise import evaluate_layers
from .measuring import Measuring, Part, check_row_bar
from .sweep import Setting, Sweep
from .tables import write_tables
from .weights import layer_mean


@dataclass(frozen=True)
class Findings:
    """What the study found.

    Attributes
    ----------
    folder : of the run.
    stats : of each part that was measured; ``"weights"`` always is.
    settings : what was tried, in the order of the table.
    results : a result for each setting, ``"unedited"`` first; empty for a task without a metric.
    claims : the paper's claims, judged.
    figures, tables : the files that were written.
    """

    folder: Path
    stats: dict[str, Stats]
    settings: list[Setting] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    figures: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)

    @property
    def histogram(self) -> Histogram:
        """The histogram of the weights, with facts about rows."""
        histogram = self.stats["weights"]["Histogram"]
        assert isinstance(histogram, Histogram)
        return histogram

    def layers(self) -> dict[str, list[float]]:
        """Facts about query rows, one number a site, the mean over its heads."""
        majority = self.stats["weights"]["Majority"]
        assert isinstance(majority, Majority)
        columns = {
            "tokens to majority": majority.mean("tokens"),
            "share of the row": majority.mean("share"),
            "median bin": self.histogram.median_bin(),
            "diversity (bins)": self.histogram.diversity(),
        }
        return {name: layer_mean(values).tolist() for name, values in columns.items()}

    def distances(self) -> dict[str, dict[str, float]]:
        """For each quantising method, the mean Jensen-Shannon distance and row sum over all heads."""
        if "distances" not in self.stats:
            return {}
        stat = self.stats["distances"]["RowDistance"]
        assert isinstance(stat, RowDistance)
        distance, sums = (table.nanmean((0, 1)).tolist() for table in (stat.distance(), stat.row_sum()))
        return {edit: {"distance": distance[n], "row_sum": sums[n]} for n, edit in enumerate(stat.edits)}


@register("sparsity")
def sparsity(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    sweep: Sweep | None = None,
    *,
    parts: Sequence[Part] = ("tokens", "distances"),
    evaluate: bool = True,
    row_bar: float = 1e-3,
    heads: Sequence[tuple[int, int]] = (),
    examples: int = 3,
    compare: Sequence[Path | str] = (),
    formats: Sequence[str] = ("png", "svg", "pdf"),
    identity: dict[str, Any] | None = None,
    output: Path | str = "runs",
    progress: bool = True,
) -> Findings:
    """Measure a model's attention, threshold and quantise it at several levels, and compare with controls.

    Parameters
    ----------
    model, tokenizer : from :func:`attrim.models.loading.load_model` with the task's kind, and its tokenizer.
    task : gives the texts to measure, and the score; without a metric nothing is evaluated.
    sweep : what to try.
    parts : what to measure beside the distribution of the weights.
    evaluate : False measures only.
    row_bar : row and token sparsity count the weights that are not above it.
    heads : pairs of layer and head to draw in figures of their own.
    examples : how many single examples get a table and a figure of their tokens.
    compare : folders of earlier runs of this study, to draw beside this one.
    formats : of the figures.
    identity : JSON values that say which model this is (name, revision, dtype), for the run.
    output : folder of runs; a run that was interrupted goes on, and one with other settings is added to.
    """
    sweep = sweep or Sweep()
    check_row_bar(row_bar)
    others = read_runs(compare)
    known = {"study": "sparsity", "select": sweep.select.to_json(), **(identity or {"model": type(model).__name__})}
    known |= {"task": task.options(), "data": task.fingerprint()}
    with Run.open(output, known, name="sparsity") as run:
        measuring = Measuring(run, model, task, tokenizer, sweep, row_bar, heads, examples, progress)
        measuring.part("weights")
        if heads:
            Select(heads=heads).resolve(measuring.histogram.sites)  # raises when one is missing
        for part in dict.fromkeys(parts):
            measuring.part(part)
        stats = measuring.found
        found = Findings(run.folder, stats)
        settings: list[Setting] = []
        results: dict[str, Result] = {}
        judged: list[Claim] = []
        if evaluate and task.metrics:
            settings, results = evaluate_sweep(model, task, tokenizer, sweep, found.histogram, run, progress)
            metric = next(iter(task.metrics))
            judged = claims(settings, results, metric, metric in task.smaller_is_better)
            store_settings(run, settings)
        found = replace(found, settings=settings, results=results, claims=judged)
        tables = write_tables(stats, tokenizer, run.folder / "tables")
        this = of_run(run, stats["weights"], results, settings)
        figures = draw(found, run.folder / "figures", tokenizer, [this, *others], heads, formats)
        found = replace(found, tables=tables, figures=figures)
        run.finish()
    return found


def evaluate_sweep(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    sweep: Sweep,
    histogram: Histogram,
    run: Run,
    progress: bool,
) -> tuple[list[Setting], dict[str, Result]]:
    """Evaluate every setting, then what depends on how the thresholds came out, then one layer at a time."""
    settings = sweep.settings(histogram)
    results = evaluate_each(model, task, tokenizer, {item.name: item.edits for item in settings}, run, progress)
    controls = sweep.matched(settings, results)
    if controls:
        results |= evaluate_each(model, task, tokenizer, {item.name: item.edits for item in controls}, run, progress)
    layers = sweep.layers(histogram.sites)
    if layers:
        edits = {item.name: item.edits for item in layers}
        results |= evaluate_layers(model, task, tokenizer, edits, run=run, progress=progress)
    return [*settings, *controls, *layers], results
