"""Step 2 of the constant study: which heads to make constant first."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ...probes import Probed
from ...runs import Run
from ...scores import SCORES, Scores
from ...scores.lambdas import lambda_scores, train_lambdas
from ...select import Site
from ...tasks import Task
from .design import LAMBDAS, Design


def order_heads(
    run: Run,
    design: Design,
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    constants: Mapping[str, Tensor],
    sites: Sequence[Site],
    probed: Callable[[], Probed],
    progress: bool = False,
) -> dict[str, Scores]:
    """The scores of every order, from the run or computed now and kept there.

    Parameters
    ----------
    task : with its training data.
    probed : gives the model with a trained probe, for scores that need a loss.
    """
    found: dict[str, Scores] = {}
    for name in design.orders:
        if name == LAMBDAS:
            found[name] = _trained(run, design, model, task, tokenizer, constants, sites, progress)
            continue
        setting = f"order/{name}"
        stored = run.fields(setting)
        if stored is None:
            batches = islice(task.train_batches(tokenizer, model, seed=design.seeds[0]), design.score_batches)
            stored = SCORES[name](probed(), batches, constants, seed=design.seeds[0]).to_json()
            run.store(setting, {}, fields=stored)
        found[name] = Scores.from_json(stored)
    return found


def _trained(
    run: Run,
    design: Design,
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    constants: Mapping[str, Tensor],
    sites: Sequence[Site],
    progress: bool,
) -> Scores:
    """The lambdas of every seed; a seed that was interrupted goes on from its last checkpoint."""
    epochs = design.recipe.epochs if design.order_epochs is None else design.order_epochs
    found: list[dict[str, Tensor]] = []
    for seed in design.seeds:
        setting = f"order/{LAMBDAS}/seed-{seed}"
        stored = run.fields(setting)
        if stored is None:
            folder = run.folder / "checkpoints" / f"{LAMBDAS}-{seed}"
            trained = train_lambdas(
                model,
                task,
                tokenizer,
                constants,
                dataclasses.replace(design.recipe, seed=seed, epochs=epochs),
                rate=design.lambda_rate,
                as_coded=design.as_coded,
                folder=folder,
                progress=progress,
            )
            stored = {"lambdas": {name: values.tolist() for name, values in trained.items()}}
            run.store(setting, {}, fields=stored)
            shutil.rmtree(folder, ignore_errors=True)
        found.append({name: torch.tensor(values) for name, values in stored["lambdas"].items()})
    return lambda_scores(found, sites)
