"""The constant study: how many heads of a frozen model can be replaced by a fixed matrix, and what a probe loses.

The method of PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495) in its three steps: average the attention over
the training data, put the heads in an order, and for each budget make the first heads constant and train a probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...attention.discover import find_sites
from ...core.progress import track
from ...edits.families import make_constants
from ...errors import DataError
from ...models.digests import tokenizer_digest, weights_digest
from ...probing.probe import make_probe
from ...runs.result import Result
from ...runs.run import Run
from ...scores import RankCorrelation, Scores, rank_correlation
from ...tasks import Task
from ..base import register
from .averages import Averages, average
from .design import Design, Setting
from .drops import Row, rows_of, sentences
from .figures import draw
from .ordering import Ordering
from .probing import Probing

Step = Literal["average", "order", "probe"]
# Of the recipe, what does not change any result: every seed has a setting of its own.
_FREE = ("seed", "checkpoint_every")


@dataclass(frozen=True, eq=False)
class Findings:
    """What the study found; what a step did not come to is empty.

    Attributes
    ----------
    averages : of step 1.
    orders : of step 2, the scores of the heads by name of the order.
    rows : of step 3, a row for each setting, the baseline first.
    results : of step 3, name of the setting to a result for each seed.
    """

    folder: Path
    metric: str
    averages: Averages
    orders: dict[str, Scores] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    results: dict[str, list[Result]] = field(default_factory=dict)
    figures: list[Path] = field(default_factory=list)

    @property
    def correlation(self) -> RankCorrelation | None:
        """How well the orders agree; None for a single one."""
        return rank_correlation(self.orders) if len(self.orders) > 1 else None

    def sentences(self) -> list[str]:
        """What the numbers say about the paper's claims."""
        return sentences(self.rows, self.metric)


@register("constant")
def constant(
    model: nn.Module,
    training: Task,
    validation: Task,
    tokenizer: Any,
    design: Design | None = None,
    *,
    until: Step = "probe",
    formats: Sequence[str] = ("png", "svg", "pdf"),
    identity: dict[str, Any] | None = None,
    output: Path | str = "runs",
    progress: bool = True,
) -> Findings:
    """Average a model's attention, order its heads, and probe it with more and more of them constant.

    Parameters
    ----------
    model : without a head (``load_model(name, "auto")``); its weights stay as they are.
    training, validation : one task with its training and its validation data, and with a layout: position i must mean
        the same in all texts, or their average says nothing.
    until : the last step to do; steps that the run has are not repeated.
    identity : JSON values that say which model this is (name, revision), for the run.
    output : folder of runs; a run that was interrupted goes on, and other budgets, families, orders and seeds are
        added to it.
    """
    design = design or Design()
    _check(training, validation)
    make_probe(model, training)  # here and now: a task without a probe is not averaged first
    design.check(sum(site.heads for site in find_sites(model)))
    known = {
        "study": "constant",
        **(identity or {"model": type(model).__name__}),
        "weights": weights_digest(model),
        "tokenizer": tokenizer_digest(tokenizer),
        "training": training.options(),
        "training_data": training.fingerprint(),
        "validation": validation.options(),
        "validation_data": validation.fingerprint(),
        "recipe": {name: value for name, value in vars(design.recipe).items() if name not in _FREE},
        "order_epochs": design.order_epochs,
        "lambda_rate": design.lambda_rate,
        "as_coded": design.as_coded,
    }
    metric = next(iter(training.metrics))
    with Run.open(output, known, name="constant") as run:
        averages = average(run, model, training, tokenizer, progress)
        found = Findings(run.folder, metric, averages)
        sites = averages.mean.sites
        if until == "average":
            return found
        constants = {
            family: make_constants(family, sites, training.max_length, mean=averages.mean, seed=design.seeds[0])
            for family in design.families
        }
        probing = Probing(run, design, model, training, validation, tokenizer, progress)
        baseline = Setting("", "", "0")

        def probed() -> Any:
            probing.results(baseline, {})
            return probing.probed(probing.probe(baseline))

        first = constants[design.families[0]]
        orders = Ordering(run, design, model, training, tokenizer, first, sites, progress).orders(probed)
        found = Findings(run.folder, metric, averages, orders)
        if until == "order":
            return found
        settings = design.settings(orders)
        results = {}
        for setting in track(settings, lambda setting: f"probing {setting.name}", progress):
            results[setting.name] = probing.results(setting, constants.get(setting.family, {}))
        smaller_is_better = metric in training.smaller_is_better
        rows = rows_of(settings, results, metric, smaller_is_better)
        run.store("table", {}, fields={"rows": [row.to_json() for row in rows]})
        figures = draw(run, rows, orders, sites, metric, formats, smaller_is_better)
        run.finish()
    return Findings(run.folder, metric, averages, orders, rows, results, figures)


def _check(training: Task, validation: Task) -> None:
    if not training.metrics:
        raise DataError(
            f"The task {training.registered_name} has no metric to probe a model with; choose another task."
        )
    if not training.layout or training.layout != validation.layout or training.max_length != validation.max_length:
        raise DataError(
            "Constants need texts on fixed slots, the same for training and validation; give both tasks the layout "
            "'grid' (or 'papa') and one max_length."
        )
