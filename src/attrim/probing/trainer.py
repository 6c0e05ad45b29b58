"""Train and evaluate a probe on hidden states that were computed once (PAPA, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from ..core import record
from ..core.modes import evaluation_mode
from ..evaluation import result_of
from ..runs.result import Result
from ..tasks.base import Array, Task
from ..training.callbacks import Callback
from ..training.data import Inputs, Step
from ..training.loop import Loop
from ..training.recipe import ProbeRecipe
from .backbone import PackedStates, unpack
from .hidden_states import CachedStates
from .probe import Probe

# Examples that are evaluated together.
_TOGETHER = 64


def train_probe(
    features: CachedStates,
    probe: Probe,
    task: Task,
    recipe: ProbeRecipe | None = None,
    *,
    validation: tuple[CachedStates, Task] | None = None,
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    progress: bool = False,
) -> list[dict[str, float]]:
    """Train a probe in place.

    Parameters
    ----------
    features : of the training data, from :func:`attrim.probing.hidden_states`.
    task : the task of the features; says how answers become labels.
    recipe : by default that of the paper.
    validation : features to evaluate on after each epoch, and the task that they are of.
    folder : for checkpoints; see :class:`attrim.training.Loop`.

    Returns
    -------
    the metrics on the validation features after each epoch; none without them.
    """
    recipe = recipe or ProbeRecipe()
    recipe.check()
    labels = features.answers(task, Answering(probe))
    epoch = math.ceil(len(features) / recipe.batch_size)
    steps = recipe.steps or max(1, math.ceil(recipe.epochs * epoch / recipe.accumulation))
    after = _AfterEpochs(validation, max(1, epoch // recipe.accumulation))
    Loop(
        probe,
        features.epochs(labels, recipe.batch_size, recipe.seed),
        dataclasses.replace(recipe, steps=steps),  # counting the batches would read all states once more
        loss=_loss,
        callbacks=[*callbacks, after],
        folder=folder,
        progress=progress,
    ).run()
    return after.metrics


def evaluate_probe(features: CachedStates, probe: Probe, task: Task) -> Result:
    """The result that ``evaluate`` gives for the model with the probe, from hidden states that are there."""
    model = Answering(probe)
    task.check(model)
    parts: list[tuple[Array, Array, Array]] = []
    started = time.perf_counter()
    with evaluation_mode(model):
        for start in range(0, len(features), _TOGETHER):
            rows = np.arange(start, min(start + _TOGETHER, len(features)))
            batch = features.batch(rows)
            outputs = task.run(model, {**features.packed(rows)._asdict(), **batch.targets})
            parts.append((batch.index, outputs.float().cpu().numpy(), batch.labels))
    return result_of(task, parts, features.zero_share, time.perf_counter() - started, "probe")


class Answering(nn.Module):
    """A probe on packed hidden states as a model that tasks can call; its labels are the task's, in its order."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe
        self.config = PretrainedConfig()
        self.config.num_labels = probe.labels

    def forward(self, states: Tensor, slots: Tensor, starts: Tensor, **targets: Any) -> SequenceClassifierOutput:
        """Logits ``[B, labels]``, or ``[B, n, labels]`` with the tokens of each text in their order."""
        logits = self.probe(PackedStates(states, slots, starts))
        if self.probe.by_token:
            counts = starts.diff()
            logits = unpack(logits, torch.arange(int(counts.max()), device=counts.device) < counts[:, None])
        return SequenceClassifierOutput(logits=logits)


class _AfterEpochs(Callback):
    """Evaluates after each epoch, and after the last step."""

    def __init__(self, validation: tuple[CachedStates, Task] | None, every: int) -> None:
        self.validation, self.every = validation, every
        self.metrics: list[dict[str, float]] = []

    def after_step(self, step: Step, loop: Loop) -> None:
        """Evaluate when it is time."""
        if self.validation is not None and (step.number % self.every == 0 or step.last):
            features, task = self.validation
            self.metrics.append(evaluate_probe(features, loop.model, task).metrics)  # type: ignore[arg-type]

    def state(self) -> dict[str, Any]:
        """The metrics so far."""
        return {"metrics": self.metrics}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.metrics[:] = record.load(list[dict[str, float]], state.get("metrics"), "metrics of a checkpoint")


def _loss(model: nn.Module, inputs: Inputs) -> Tensor:
    logits = model(PackedStates(inputs["states"], inputs["slots"], inputs["starts"]))
    probe: Any = getattr(model, "module", model)  # several processes wrap the probe
    return probe.loss(logits, inputs["labels"])
