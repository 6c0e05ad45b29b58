"""Which heads can be pruned for free: one head at a time, beside what could have told so before.

Attention Pruning and constant heads begin with the same averages, so both are tried on each head: its cells removed as
the pattern does, and its attention replaced by the average (https://arxiv.org/abs/2211.03495).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...attention.context import attach
from ...core.modes import device_of, evaluation_mode
from ...core.progress import track
from ...core.site import Select, Site
from ...edits.base import Edit
from ...edits.constant import Constant
from ...edits.mask import Mask
from ...edits.persite import at_site, names_of
from ...edits.saving import fingerprint
from ...measurement import measure
from ...runs.result import Interval
from ...runs.run import Run
from ...stats.distance import RowDivergence
from ...stats.mean import Mean
from ...tasks.base import Task
from ...training.data import weight
from ..bench import TrainingBench
from ..heads.prediction import rank_interval
from .sets import task_key

CHANGES = ("pruned", "constant")
PREDICTORS = {
    "entropy": "entropy of the average",
    "distance": "distance to the average",
    "lost": "average attention that is removed",
}


@dataclass(frozen=True)
class HeadFacts:
    """One head: what could tell that it is not needed, and what the loss rises by when it is changed.

    Attributes
    ----------
    entropy : of the rows of its average attention, as a share of the largest possible; the mean over rows.
    distance : mean Jensen-Shannon divergence of its attention from the average, in nats (that of the constant study).
    lost : the share of its average attention on cells that the pattern removes.
    pruned, constant : the rise of the mean loss when its cells are removed, and when it is replaced by its average.
    """

    site: str
    role: str
    layer: int
    head: int
    entropy: float
    distance: float
    lost: float
    pruned: float
    constant: float


@dataclass(frozen=True)
class RankAgreement:
    """Spearman's rank correlation of a predictor with the rise of the loss, with its bootstrap interval over heads.

    Attributes
    ----------
    size : of the correlation with the size of the rise, whatever its sign: on few examples a loss falls by chance, too.
    """

    predictor: str
    change: str
    correlation: Interval
    size: Interval


@dataclass(frozen=True)
class PrunedHeads:
    """All heads, and how well each predictor tells what they cost.

    Attributes
    ----------
    tau : of the pattern that heads are pruned by.
    examples : that the loss is over, at most.
    loss : of the unchanged model.
    """

    tau: float
    examples: int
    loss: float
    heads: tuple[HeadFacts, ...]
    agreements: tuple[RankAgreement, ...]


def prune_heads(
    bench: TrainingBench,
    run: Run,
    mean: Mean,
    mask: Mask,
    tau: float,
    averaged: Task,
    evaluated: Task,
    chosen: Mapping[Site, Sequence[int]],
    key: str,
) -> PrunedHeads:
    """Change one head at a time; the run keeps every number when it is known.

    Parameters
    ----------
    bench : has the dense model.
    averaged, evaluated : the data that distances, and losses, are measured on.
    chosen : the heads of the model.
    key : tells the model from others in the run.
    """
    constant = Constant(mean, outside="zero")
    part = f"heads/{key}/{fingerprint([mask])[:8]}-{task_key(evaluated)}-{task_key(averaged)}"
    losses = _Losses(bench, evaluated)
    distances = _distances(bench, run, part, constant, averaged)
    unchanged = _kept(run, f"{part}/unchanged", lambda: {"loss": losses.of(())})["loss"]
    edits = {"pruned": mask, "constant": constant}
    heads = [(site, head) for site, own in chosen.items() for head in own]
    found = []
    for site, head in track(heads, lambda each: f"pruning head {each[1]} of {each[0].name}", bench.progress):
        select = Select(heads=[(site.name, head)])

        def rises(select: Select = select) -> dict[str, float]:
            changed = {name: dataclasses.replace(edit, select=select) for name, edit in edits.items()}
            return {name: losses.of((edit,)) - unchanged for name, edit in changed.items()}

        found.append(
            HeadFacts(
                site.name,
                site.role,
                site.layer,
                head,
                entropy=row_entropy(mean, site, head),
                distance=distances[site.name][head],
                lost=lost_mass(mean, mask, site, head),
                **_kept(run, f"{part}/{site.name}/{head}", rises),
            )
        )
    return PrunedHeads(tau, evaluated.limit or 0, unchanged, tuple(found), agreements(found))


def _kept(run: Run, name: str, compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Numbers from the run, or computed now and kept there."""
    known = run.fields(name)
    if known is None:
        known = compute()
        run.store(name, {}, fields=known)
    return known


def agreements(heads: Sequence[HeadFacts]) -> tuple[RankAgreement, ...]:
    """The rank correlation of every predictor with every change."""
    if len(heads) < 3:
        return ()
    numbers = {name: np.array([getattr(head, name) for head in heads]) for name in (*CHANGES, *PREDICTORS)}
    return tuple(
        RankAgreement(
            predictor,
            change,
            rank_interval(numbers[predictor], numbers[change]),
            rank_interval(numbers[predictor], np.abs(numbers[change])),
        )
        for change in CHANGES
        for predictor in PREDICTORS
    )


def row_entropy(mean: Mean, site: Site, head: int) -> float:
    """The mean entropy of a head's average rows, each as a share of the largest that its cells allow."""
    name = next(name for name in names_of(site) if name in mean.records)
    average, known = mean.matrix(name)[head], (mean.counts(name) > 0).expand(site.heads, -1, -1)[head]
    rows = (known.sum(-1) > 1) & (average.sum(-1) > 0)
    weights = (average * known)[rows]
    weights = weights / weights.sum(-1, keepdim=True)
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / known[rows].sum(-1).double().log()
    return float(entropy.mean()) if len(entropy) else math.nan


def lost_mass(mean: Mean, mask: Mask, site: Site, head: int) -> float:
    """The share of a head's average attention on cells that a mask removes."""
    average = mean.matrix(next(name for name in names_of(site) if name in mean.records))[head]
    removed = at_site(mask.cells, site, "mask")
    return float((average * removed[head if len(removed) > 1 else 0]).sum() / average.sum())


def _distances(bench: TrainingBench, run: Run, key: str, constant: Constant, task: Task) -> dict[str, dict[int, float]]:
    """The distance of every head's attention from its average, by site name and head."""
    name = f"{key}/distance"
    if run.fields(name) is None:
        stat, model = RowDivergence(constant), bench.loaded_model
        measure(model, task.feed(model, bench.loaded_tokenizer), stat, bench.select(), progress=bench.progress)
        values = stat.values()
        rows = {
            site: {str(head): float(value) for head, value in zip(own.heads, values[site], strict=True)}
            for site, own in stat.records.items()
        }
        run.store(name, {}, fields=rows)
    fields: Any = run.fields(name)
    return {site: {int(head): value for head, value in row.items()} for site, row in fields.items()}


class _Losses:
    """The mean loss of a model over the examples of a task, as it is trained with, in evaluation mode."""

    def __init__(self, bench: TrainingBench, task: Task) -> None:
        self.bench, self.task = bench, task
        self._batches: list[dict[str, Tensor]] = []

    def of(self, edits: Sequence[Edit]) -> float:
        """The loss with some edits."""
        model: nn.Module = self.bench.loaded_model
        if not self._batches:
            self._batches = list(self.task.train_batches(self.bench.loaded_tokenizer, model))
        device = device_of(model)
        total, answers = 0.0, 0
        with evaluation_mode(model), attach(model, edits):
            for batch in self._batches:
                inputs = {name: tensor.to(device) for name, tensor in batch.items()}
                count = weight(inputs)
                total, answers = total + float(self.task.loss(model, inputs)) * count, answers + count
        return total / max(answers, 1)
