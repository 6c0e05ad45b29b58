"""Step 2 of the constant study: which heads to make constant first."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ...core.registry import SCORES
from ...core.site import Site
from ...probing.probed import Probed
from ...runs.run import Run
from ...scores import Scores
from ...scores.lambdas import lambda_scores, train_lambdas
from ...tasks import Task
from .design import LAMBDAS, Design


@dataclass(frozen=True)
class Ordering:
    """What every order is worked out from.

    Parameters
    ----------
    task : with its training data.
    constants : the matrices by site name that the heads would get, those of the design's first family.
    """

    run: Run
    design: Design
    model: nn.Module
    task: Task
    tokenizer: Any
    constants: Mapping[str, Tensor]
    sites: Sequence[Site]
    progress: bool = False

    def orders(self, probed: Callable[[], Probed]) -> dict[str, Scores]:
        """The scores of every order, from the run or computed now and kept there.

        Parameters
        ----------
        probed : gives the model with a trained probe, for scores that need a loss.
        """
        return {name: self._lambdas() if name == LAMBDAS else self._scores(name, probed) for name in self.design.orders}

    def _scores(self, name: str, probed: Callable[[], Probed]) -> Scores:
        """A score without training of its own."""
        seed, batches = self.design.seeds[0], self.design.score_batches
        setting = f"{self._name(name, seed)}/batches-{batches}"
        stored = self.run.fields(setting)
        if stored is None:
            model = probed()  # not the model alone: the labels are numbered as the probe has them
            some = islice(self.task.train_batches(self.tokenizer, model, seed=seed), batches)
            stored = SCORES[name]().with_seed(seed)(model, some, self.constants).to_json()
            self.run.store(setting, {}, fields=stored)
        return Scores.from_json(stored)

    def _lambdas(self) -> Scores:
        """The lambdas of every seed; a seed that was interrupted goes on from its last checkpoint."""
        design = self.design
        epochs = design.recipe.epochs if design.order_epochs is None else design.order_epochs
        found: list[dict[str, Tensor]] = []
        for seed in design.seeds:
            setting = self._name(LAMBDAS, seed)
            stored = self.run.fields(setting)
            if stored is None:
                folder = self.run.folder / "checkpoints" / setting.replace("/", "-")
                trained = train_lambdas(
                    self.model,
                    self.task,
                    self.tokenizer,
                    self.constants,
                    dataclasses.replace(design.recipe, seed=seed, epochs=epochs),
                    rate=design.lambda_rate,
                    as_coded=design.as_coded,
                    folder=folder,
                    progress=self.progress,
                )
                stored = {"lambdas": {name: values.tolist() for name, values in trained.items()}}
                self.run.store(setting, {}, fields=stored)
                shutil.rmtree(folder, ignore_errors=True)
            found.append({name: torch.tensor(values) for name, values in stored["lambdas"].items()})
        return lambda_scores(found, self.sites)

    def _name(self, order: str, seed: int) -> str:
        """An order in the run, with what it was worked out with."""
        return f"order/{order}/{self.design.constants_name(self.design.families[0])}/seed-{seed}"
