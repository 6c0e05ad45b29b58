"""Fine-tune a model on a task: the loop, the task's own loss, evaluation on the way, and the model at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker
from torch import Tensor, nn

from ..attention.context import edit
from ..baking import bake
from ..baking.model import BakedModel
from ..core.site import Select
from ..edits.base import Edit
from ..errors import ArtefactError, ParameterError
from ..models.loading import check_fit, quiet
from ..runs.files import remove_folder, replace_folder, storage
from ..runs.result import Result
from ..runs.run import Run
from ..tasks.base import Task
from .callbacks import Callback, Record, Validate, validations
from .data import Epochs
from .loop import Loop
from .recipe import Recipe
from .tracking import tracking


@dataclass(frozen=True)
class Finetuned:
    """What fine-tuning gave.

    Attributes
    ----------
    folder : the model and its tokenizer, as ``save_pretrained`` writes them.
    step : the step that the saved weights are from.
    validations : the evaluation after each step that had one; with edits, those of the edited model.
    """

    folder: Path
    step: int
    validations: dict[int, Result]


def finetune(
    model: Any,
    tokenizer: Any,
    training: Task,
    validation: Task,
    recipe: Recipe,
    run: Run,
    *,
    edits: Sequence[Edit] = (),
    select: Select | None = None,
    evaluate_every: int | None = None,
    keep_best: bool = False,
    callbacks: Sequence[Callback] = (),
    tracker: str | GeneralTracker | None = None,
    progress: bool = False,
) -> Finetuned:
    """Train a model on a task and keep everything in a run; a run that was killed resumes.

    Parameters
    ----------
    model : with the head that the task needs (``task.load_model(name, new_head=True)``).
    training, validation : the same task with its training and its validation data.
    edits, select : switched on during training and evaluation. Masks, windows and functions in the place of softmax
        are carried by the saved model (:func:`attrim.bake`); its weights do not hold other edits.
    evaluate_every : steps between evaluations; None evaluates once at the end.
    keep_best : save the weights with the best evaluation, not the last ones.
    callbacks : further ones, called before the loop's own record and evaluation.
    tracker : a service that gets losses and metrics (:mod:`attrim.training.tracking`).
    """
    check_fit(model, tokenizer)
    training.check(model)
    if edits and isinstance(model, BakedModel):
        raise ParameterError(
            "The model carries edits already, and can carry no others; train it as it is, or begin with the model that "
            "it was baked from."
        )
    folder, checkpoints = run.folder / "model", run.folder / "checkpoints"
    problem_type = getattr(model.config, "problem_type", None)
    epochs: Epochs = lambda epoch: training.train_batches(tokenizer, model, seed=recipe.seed, epoch=epoch)
    if not run.finished:
        record = Record(run)
        validate = Validate(validation, tokenizer, run, evaluate_every, keep_best)
        loop = Loop(
            model,
            epochs,
            recipe,
            loss=training.smoothed(recipe.label_smoothing) if recipe.label_smoothing else training.loss,
            callbacks=[*callbacks, record, validate],
            folder=checkpoints,
            progress=progress,
        )
        example = _example(model, training, epochs) if edits else None
        # A kill may have come after the last step: then the model does not run, which edits would object to.
        context = edit(model, *edits, select=select, example=example) if edits and loop.steps_left else nullcontext()
        with tracking(tracker if loop.is_main else None, run, vars(recipe)) as record.tracker, context:
            validate.tracker = record.tracker
            loop.run()
        loop.restore_pinned()
        if loop.is_main:
            # A pass with labels writes it into the configuration, but after a kill there may be none.
            model.config.problem_type = problem_type
            save_model(_carrying(model, edits, select, example), tokenizer, folder)
            run.store("model", {"step": loop.pinned or loop.done})
            run.finish()
            remove_folder(checkpoints)  # several times the model's size, and of no more use
        loop.wait()
    elif checkpoints.exists():  # a kill came between the two
        with suppress(FileNotFoundError):  # another process removes them, too
            remove_folder(checkpoints)
    step = run.metrics().get("model", {}).get("step")
    if step is None:
        raise ArtefactError(f"The run in {run.folder} is finished but lacks its model; move the folder away.")
    return Finetuned(folder, int(step), validations(run))


def _carrying(model: Any, edits: Sequence[Edit], select: Select | None, example: Any) -> Any:
    """The model with the edits that it was trained with, where a model can carry all of them; otherwise as it is."""
    if not edits or not all(edit.carried for edit in edits):
        return model
    everything = Select()
    own = [replace(edit, select=select) if select and edit.select == everything else edit for edit in edits]
    return bake(model, *own, example=example)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer (None where there is none) for stock ``transformers``; a folder is replaced whole."""

    def write(part: Path) -> None:
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)

    with storage(folder), quiet():
        replace_folder(folder, write)


def make_trainable(model: nn.Module, task: Task, tokenizer: Any) -> None:
    """Name the classes and the padding token of a model in its configuration, where it does not name them itself."""
    name_labels(model, getattr(task, "labels", ()))
    config: Any = model.config
    if getattr(config, "pad_token_id", None) is None and hasattr(tokenizer, "pad_token_id"):
        config.pad_token_id = tokenizer.pad_token_id  # models that read the last token look for the padding


def name_labels(model: nn.Module, labels: Sequence[str]) -> None:
    """Name the classes of a model that only numbers them, in its configuration, where evaluation looks for names."""
    config: Any = model.config
    if len(labels) > 1 and list(config.id2label.values()) == [f"LABEL_{number}" for number in range(len(labels))]:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}


def _example(model: nn.Module, task: Task, epochs: Epochs) -> dict[str, Tensor]:
    """One text of the training data without its labels, to find the model's attention with."""
    device = next(model.parameters()).device
    labels = ("labels", "start_positions", "end_positions")
    first = {name: tensor[:1].to(device) for name, tensor in next(iter(epochs(0))).items() if name not in labels}
    return task.arguments(first, model)
