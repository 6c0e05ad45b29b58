"""``attrim new``: a model that is not trained, with a tokenizer for the texts of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..errors import ParameterError
from ..models.size import Size
from ..studies.bench import Bench
from .base import Command, Outcome, register

if TYPE_CHECKING:
    from ..tasks.base import Task


@register("new")
@dataclass(frozen=True)
class New(Command, Size):
    """Make a model with random weights and a tokenizer for the training texts of a task, to train it from scratch."""

    architecture: Positional[Annotated[str, arg(metavar="ARCHITECTURE")]]
    """transformer-xl, marian, gpt2, llama, bert, recurrent-classifier or recurrent-seq2seq."""
    _: KW_ONLY
    task: str
    """Name of the task whose training texts the vocabulary is made from (attrim ls tasks)."""
    output: Path
    """Folder to write the model and its tokenizer to."""
    data: str | None = None
    """File or folder to read (default: the hub)."""
    train_file: str | None = None
    """Your own training data, for tasks that take it."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """Further option of the task as name=value."""
    limit: int | None = None
    """Make the vocabulary from this many examples."""
    vocabulary: int = 10_000
    """Size of the vocabulary, special tokens included."""
    units: Literal["words", "subwords"] = "subwords"
    """Tokens are whole words, of which rare ones are unknown; or subwords (byte-pair encoding), which know all."""
    lowercase: bool = False
    """Turn texts to lower case."""
    minimum_count: int = 1
    """Leave out words, or pairs of subwords, that are rarer."""
    seed: int = 123
    """Fixes the weights, and which examples a limit chooses."""

    def run(self) -> Outcome:
        """Train the tokenizer, draw the weights, and write both."""
        from ..models.fresh import fresh_architecture, fresh_model
        from ..models.vocabulary import train_tokenizer
        from ..training.finetuning import name_labels, save_model

        self._check()
        task = self._task()
        size = Size(**{item.name: getattr(self, item.name) for item in dataclasses.fields(Size)})
        architecture, kind, positions = fresh_architecture(self.architecture, size, task.kind)
        tokenizer = train_tokenizer(
            self._texts(task),
            architecture.special,
            self.vocabulary,
            self.units,
            lowercase=self.lowercase,
            minimum_count=self.minimum_count,
            max_length=positions,
        )
        model = fresh_model(self.architecture, size, tokenizer, kind, seed=self.seed, num_labels=task.num_labels)
        name_labels(model, getattr(task, "labels", ()))
        save_model(model, tokenizer, self.output)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        data = {
            "folder": str(self.output),
            "class": type(model).__name__,
            "parameters": parameters,
            "vocabulary": len(tokenizer),
        }
        notes = [
            f"A {type(model).__name__} with {parameters:,} random weights and a vocabulary of {len(tokenizer):,} "
            f"{self.units} is in {self.output}; train it with 'attrim train {self.output}'.",
        ]
        return Outcome(data, notes)

    def _check(self) -> None:
        from ..runs.files import require_fillable

        if self.minimum_count < 1:
            raise ParameterError(f"minimum-count must be at least 1, not {self.minimum_count}.")
        require_fillable(self.output)
        if self.output.exists() and any(self.output.iterdir()):
            raise ParameterError(f"The folder {self.output} is not empty; remove it, or give another one.")

    def _task(self) -> Task:
        """The task with its training data."""
        bench = Bench(
            self.architecture,
            task=self.task,
            data=self.data,
            train_file=self.train_file,
            option=self.option,
            limit=self.limit,
            seed=self.seed,
        )
        return bench.training_task()

    def _texts(self, task: Task) -> Iterator[str]:
        """The texts of all examples: of a translation the source and the target, so that they share a vocabulary."""
        from ..core.progress import progress_bar

        with progress_bar(None, "reading texts for the vocabulary", self.progress) as bar:
            for example in task.examples():
                yield from example.texts
                bar.advance()
