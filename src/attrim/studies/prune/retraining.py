"""The models of the prune study: dense ones, and those that are trained with cells removed; each is trained once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import record
from ...edits.base import Edit
from ...edits.entmax import Entmax
from ...edits.saving import fingerprint
from ...errors import ArtefactError
from ...models.digests import weights_digest
from ...models.fresh import redraw
from ...runs.result import Result
from ...runs.run import Run
from ...training.finetuning import finetune, make_trainable
from ..bench import FinetuningBench, TrainingBench
from .study import Prune

FOLDER = "trainings"
"""Where the run of the study has the runs of its trainings."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model that is trained, with the edits that it carries.

    Attributes
    ----------
    key : tells it from others in the names of results.
    bench : loads it.
    result : of the evaluation at the end of its training; None for one that was given.
    """

    key: str
    bench: TrainingBench
    result: Result | None = None


def normaliser_edits(normaliser: str) -> tuple[Edit, ...]:
    """What a model is trained with in place of softmax."""
    return (Entmax(),) if normaliser == "entmax" else ()


def bench_of(bench: TrainingBench, folder: Path) -> TrainingBench:
    """The bench with the trained model of a folder, in float32 as models are trained; it has the same run."""
    fields = {item.name: getattr(bench, item.name) for item in dataclasses.fields(TrainingBench)}
    changes = {"model": str(folder), "revision": None, "dtype": "float32", "tokenizer": bench.loaded_tokenizer}
    own = TrainingBench(**{**fields, **changes})
    if "opened" in vars(bench):
        vars(own)["opened"] = bench.require_run()
    return own


class Retraining:
    """Trains the models of a study, or reads them from its run."""

    def __init__(self, bench: TrainingBench, study: Prune) -> None:
        self.bench, self.study = bench, study

    def dense(self, seed: int, normaliser: str) -> TrainedModel:
        """The dense model of a seed: MODEL itself, one that was given, or one that is trained."""
        if self.study.retrain == "never":
            return TrainedModel("given", self.bench)
        if self.study.dense:
            place = self.study.seeds.index(seed) if len(self.study.dense) > 1 else 0
            own = bench_of(self.bench, self.study.dense[place])
            return TrainedModel(f"given-{weights_digest(own.loaded_model)[:8]}", own)
        return self.trained(f"dense-{normaliser}", normaliser_edits(normaliser), seed)

    def trained(self, name: str, edits: Sequence[Edit], seed: int) -> TrainedModel:
        """A model that is trained with edits from the first weights of a seed."""
        run, study = self.bench.require_run(), self.study
        identity = {
            "study": "prune training",
            "of": run.key,
            "name": name,
            "seed": seed,
            "edits": fingerprint(edits),
            "recipe": record.dump(study.recipe(seed).described()),
        }
        with Run.open(run.folder / FOLDER, identity, name=f"{name}-seed-{seed}") as own:
            model = None if own.finished else self.initial(seed)
            found = finetune(
                self.bench.loaded_model if model is None else model,
                self.bench.loaded_tokenizer,
                self.bench.training_task(),
                self.bench.validation_task(),
                study.recipe(seed),
                own,
                edits=edits,
                evaluate_every=study.evaluate_every,
                keep_best=study.keep_best,
                progress=self.bench.progress,
            )
            folder = own.folder
        if found.step not in found.validations:
            raise ArtefactError(f"The training in {folder} lacks its evaluation; move the folder away to repeat it.")
        return TrainedModel(f"seed-{seed}", bench_of(self.bench, found.folder), found.validations[found.step])

    def initial(self, seed: int) -> Any:
        """The model with its weights before training: those of MODEL with the head of the seed, or drawn ones."""
        bench = self.bench
        if bench.live:
            model = copy.deepcopy(bench.model)
            make_trainable(model, bench.loaded_task, bench.loaded_tokenizer)
        else:
            fields = {item.name: getattr(bench, item.name) for item in dataclasses.fields(FinetuningBench)}
            model = FinetuningBench(**{**fields, "seed": seed, "tokenizer": bench.loaded_tokenizer}).load_model()
        return redraw(model, seed) if self.study.initial == "drawn" else model
