"""``attrim train``: fine-tune a model on a task."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ParameterError
from ..studies.bench import FinetuningBench
from ..training.recipe import Recipe
from .base import Chain, Command, Outcome, register

if TYPE_CHECKING:
    from ..edits import Edit
    from ..training.callbacks import Callback
    from ..training.finetuning import Finetuned


@register("train")
@dataclass(frozen=True, kw_only=True)
class Train(Command, FinetuningBench, Recipe):
    """Fine-tune a model on a task; a run that was killed goes on, and ends with the same weights."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the computation; the weights are trained in float32. float16 scales the loss, and leaves out steps
    that overflow."""
    seed: int = 123
    """Fixes a new head, the order of the data, dropout, and which examples a limit chooses."""
    batch_size: int = 32
    """Examples a forward pass; a step takes this times accumulation."""
    evaluate_every: int | None = None
    """Evaluate after every so many steps (default: once at the end)."""
    keep_best: bool = False
    """Save the weights with the best evaluation instead of the last ones."""
    save_every: int | None = None
    """Keep the model of every so many steps, and of step 0 and the last one, in the run's folder models."""
    custom_saves: tuple[int, ...] = ()
    """Further steps whose model is kept."""
    edit: Chain = ()
    """Edits that are switched on during training and evaluation, several in order with then."""
    tracker: Literal["tensorboard", "wandb", "mlflow"] | None = None
    """Send losses and metrics to this service as well; its package must be installed."""
    output: Path | None = Path("runs")
    """Folder of runs; the run's folder holds the trained model."""
    save: Path | None = None
    """Write the trained model to this folder as well."""

    def run(self) -> Outcome:
        """Load everything, train what is not trained yet, and say how good the model is."""
        from ..core.text import parse_one_chain
        from ..runs.files import replace_folder, storage
        from ..training.finetuning import finetune

        self._check()
        recipe = Recipe(**{item.name: getattr(self, item.name) for item in dataclasses.fields(Recipe)})
        edits = parse_one_chain(self.edit)
        training, validation = self.training_task(), self.validation_task()
        model, tokenizer = self.loaded_model, self.loaded_tokenizer
        self.check_stats(self.edit)
        with self.begin("train", self._identity(recipe, edits)) as bench:
            found = finetune(
                model,
                tokenizer,
                training,
                validation,
                recipe,
                bench.require_run(),
                edits=edits,
                select=self.select(),
                evaluate_every=self.evaluate_every,
                keep_best=self.keep_best,
                callbacks=self._kept(bench.run_folder, tokenizer),
                tracker=self.tracker,
                progress=self.progress,
            )
        if self.save is not None:
            with storage(self.save):
                replace_folder(self.save, lambda part: shutil.copytree(found.folder, part, dirs_exist_ok=True))
        return self._outcome(found, bench.run_folder)

    def _check(self) -> None:
        from ..training.tracking import require_tracker

        self.check()
        if self.tracker is not None:
            require_tracker(self.tracker)
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ParameterError(f"evaluate-every must be at least 1, not {self.evaluate_every}.")
        head = self.make_task().kind
        if head != "auto" and self.kind not in ("", "saved", head):
            raise ParameterError(f"The task {self.task_name} trains a {head} head, not {self.kind}; leave --kind out.")
        if self.save is not None and self.save.exists() and not (self.save / "config.json").exists():
            raise ParameterError(f"{self.save} is there and holds no model; give another folder to save to.")

    def _kept(self, folder: Path, tokenizer: Any) -> Sequence[Callback]:
        from ..training.scheduled import keep_models

        if self.save_every is None and not self.custom_saves:
            return ()
        return [keep_models(folder / "models", tokenizer, every=self.save_every, extra=self.custom_saves)]

    def _identity(self, recipe: Recipe, edits: Sequence[Edit]) -> dict[str, Any]:
        """What the trained weights, and which of them are kept, depend on beside the bench."""
        from ..edits.saving import fingerprint

        return {
            "recipe": recipe.described(),
            "evaluate_every": self.evaluate_every,
            "keep_best": self.keep_best,
            "edits": fingerprint(edits),
            # Only where some are asked for, so that runs from before there were any are found.
            **({"saves": [self.save_every, *self.custom_saves]} if self.save_every or self.custom_saves else {}),
        }

    def _outcome(self, found: Finetuned, folder: Path) -> Outcome:
        from rich.table import Table

        names = list(next(iter(found.validations.values())).metrics)
        table = Table("step", *names, title=f"{self.name} on {self.task_name}, while it was trained")
        for step, result in found.validations.items():
            table.add_row(
                f"{step}{' (saved)' * (step == found.step)}", *(f"{result.metrics[name]:.2f}" for name in names)
            )
        place = self.save or found.folder
        data = {
            "model": self.name,
            "folder": str(folder),
            "saved": str(place),
            "step": found.step,
            "validations": {step: result.to_json() for step, result in found.validations.items()},
        }
        note = f"The weights of step {found.step} are in {place}, for from_pretrained of transformers."
        return Outcome(data, [table, note, f"Losses and predictions are in {folder}"])
