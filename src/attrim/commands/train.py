"""``attrim train``: fine-tune a model on a task."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import UseAppendAction

from ..errors import ParameterError
from ..training.recipe import Recipe
from .base import Outcome
from .training import OnTraining

if TYPE_CHECKING:
    from ..edits import Edit
    from ..tasks import Task
    from ..training.finetuning import Finetuned


@dataclass(kw_only=True)
class Train(OnTraining, Recipe):
    """Fine-tune a model on a task; a run that was killed goes on, and ends with the same weights."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the computation; the weights are trained in float32 either way."""
    seed: int = 123
    """Fixes a new head, the order of the data, dropout, and which examples a limit chooses."""
    batch_size: int = 32
    """Examples a forward pass; a step takes this times accumulation."""
    evaluate_every: int | None = None
    """Evaluate after every so many steps (default: once at the end)."""
    keep_best: bool = False
    """Save the weights with the best evaluation instead of the last ones."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """Edit that is on during training and evaluation; several in order: 'threshold:0.1 then gate:0.5'."""
    output: Path | None = Path("runs")
    """Folder of runs; the run's folder holds the trained model."""
    save: Path | None = None
    """Write the trained model to this folder as well."""

    def run(self) -> Outcome:
        """Load everything, train what is not trained yet, and say how good the model is."""
        from ..core.text import parse_one_chain
        from ..runs.files import replace_folder, storage
        from ..runs.run import Run
        from ..training.finetuning import finetune
        from ..training.loop import own_randomness, seed_everything

        self._check()
        recipe = Recipe(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Recipe)})
        edits = parse_one_chain(self.edit)
        training, validation = self.tasks()
        with own_randomness():
            seed_everything(self.seed, "head")
            model = self._load(training)
        tokenizer = self.load_tokenizer()
        self.check_stats(self.edit, model, tokenizer)
        if getattr(model.config, "pad_token_id", None) is None:
            model.config.pad_token_id = tokenizer.pad_token_id  # models that read the last token look for the padding
        with Run.open(self.output or Path("runs"), self._identity(training, validation, edits), name="train") as run:
            found = finetune(
                model,
                tokenizer,
                training,
                validation,
                recipe,
                run,
                edits=edits,
                select=self.select(),
                evaluate_every=self.evaluate_every,
                keep_best=self.keep_best,
                progress=self.progress,
            )
        if self.save is not None:
            with storage(self.save):
                replace_folder(self.save, lambda part: shutil.copytree(found.folder, part, dirs_exist_ok=True))
        return self._outcome(found, run.folder)

    def _check(self) -> None:
        self.check()
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ParameterError(f"evaluate-every must be at least 1, not {self.evaluate_every}.")
        if self.save is not None and self.save.exists() and not (self.save / "config.json").exists():
            raise ParameterError(f"{self.save} is there and holds no model; give another folder to save to.")

    def _load(self, task: Task) -> Any:
        """Load the model with the head that it has for this task, or with a new one."""
        from ..training.finetuning import name_labels

        options = {**self.model_options(), "dtype": "float32"}  # the recipe's number type is that of the computation
        model = task.load_model(self.model, **options, new_head=True)
        name_labels(model, getattr(task, "labels", ()))
        return model

    def _identity(self, training: Task, validation: Task, edits: list[Edit]) -> dict[str, Any]:
        """Everything that the trained weights, and which of them are kept, depend on."""
        from .evaluate import tensors_digest

        recipe = {field.name: getattr(self, field.name) for field in dataclasses.fields(Recipe)}
        del recipe["checkpoint_every"]
        return {
            "model": self.model,
            "revision": self.revision,
            "training": training.options(),
            "training_data": training.fingerprint(),
            "validation": validation.options(),
            "validation_data": validation.fingerprint(),
            "recipe": recipe,
            "evaluate_every": self.evaluate_every,
            "keep_best": self.keep_best,
            "edits": list(self.edit),
            "tensors": tensors_digest(edits) if edits else None,
            "select": self.select().to_json(),
        }

    def _outcome(self, found: Finetuned, folder: Path) -> Outcome:
        from rich.table import Table

        names = list(next(iter(found.validations.values())).metrics)
        table = Table("step", *names, title=f"{self.model} on {self.task}, while it was trained")
        for step, result in found.validations.items():
            table.add_row(
                f"{step}{' (saved)' * (step == found.step)}", *(f"{result.metrics[name]:.2f}" for name in names)
            )
        place = self.save or found.folder
        data = {
            "model": self.model,
            "folder": str(folder),
            "saved": str(place),
            "step": found.step,
            "validations": {step: result.to_json() for step, result in found.validations.items()},
        }
        note = f"The weights of step {found.step} are in {place}, for from_pretrained of transformers."
        return Outcome(data, [table, note, f"Losses and predictions are in {folder}"])
