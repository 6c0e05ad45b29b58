"""What the commands that train have in common: one task, with training and with validation data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from ..core.text import parse_options
from ..errors import DataError
from .base import OnData

if TYPE_CHECKING:
    from ..tasks import Task


@dataclass(kw_only=True)
class OnTraining(OnData):
    """A command that trains something on one part of the data and evaluates it on another."""

    limit: int | None = None
    """Train on this many examples."""
    train_option: UseAppendAction[tuple[str, ...]] = ()
    """Option of the task for its training data only, as name=value (repeatable); the split is train by default."""
    evaluate_limit: int | None = None
    """Evaluate on this many examples."""

    def tasks(self) -> tuple[Task, Task]:
        """The task with its training data, and with its validation data."""
        from ..core.registry import TASKS

        training = self.load_task()
        validation = dataclasses.replace(self, limit=self.evaluate_limit).load_task()
        if not training.metrics:
            raise DataError(f"The task {self.task} has no metric, so a model cannot be trained for it; choose another.")
        known = [field.name for field in dataclasses.fields(training)]
        options: dict[str, Any] = {"split": "train"} if "split" in known else {}
        options |= parse_options(self.train_option, TASKS[self.task], f"task {self.task}")
        return dataclasses.replace(training, **options), validation
