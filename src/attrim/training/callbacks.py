"""What can happen after a step of training: recording, evaluating, keeping the best; studies add their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

from ..core import record
from ..evaluation import evaluate
from ..runs.result import Result
from ..runs.run import Run
from ..tasks.base import Task
from .data import Step

if TYPE_CHECKING:
    from .loop import Loop


class Callback:
    """Base of all callbacks; what :meth:`state` gives is in every checkpoint, so that resuming changes no result."""

    def before_first_step(self, loop: Loop) -> None:
        """Act once, before a training that begins; not when it resumes."""

    def after_step(self, step: Step, loop: Loop) -> None:
        """Act after a step; ``loop`` has the model, and can pin its weights."""

    def state(self) -> dict[str, Any]:
        """What the callback remembers, as JSON values."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""


class Record(Callback):
    """Keep loss, learning rate and gradient norm in a run, as the setting ``train/000010`` and so on.

    Parameters
    ----------
    every : steps between records; the loss is the mean over the steps since the last one, without skipped ones, which
        are counted.

    Attributes
    ----------
    tracker : a service that gets the same numbers.
    """

    def __init__(self, run: Run, every: int = 10) -> None:
        self.run = run
        self.every = every
        self.tracker: GeneralTracker | None = None
        self._losses: list[float] = []

    def after_step(self, step: Step, loop: Loop) -> None:
        """Add the step, and store the mean when it is time."""
        if not step.skipped:
            self._losses.append(step.loss)
        if step.number % self.every == 0 or step.last:
            metrics = {"learning_rate": step.learning_rate}
            if not step.skipped:
                metrics["gradient_norm"] = step.gradient_norm
            if self._losses:
                metrics = {"loss": sum(self._losses) / len(self._losses), **metrics}
            if loop.recipe.dtype == "float16":
                metrics["skipped"] = loop.skipped
            self.run.store(f"train/{step.number:06d}", metrics, fields={"seconds_a_step": step.seconds})
            if self.tracker is not None and loop.is_main:
                self.tracker.log({f"train/{name}": value for name, value in metrics.items()}, step=step.number)
            self._losses.clear()

    def state(self) -> dict[str, Any]:
        """The losses that are not stored yet."""
        return {"losses": list(self._losses)}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._losses = record.load(list[float], state.get("losses"), "losses of a checkpoint")


class Validate(Callback):
    """Evaluate the model now and then, and keep every result in the run (``validation/000050``).

    Parameters
    ----------
    every : steps between evaluations; None evaluates only after the last step.
    keep_best : pin the weights with the best first metric (the earliest of equal ones).

    Attributes
    ----------
    tracker : a service that gets the metrics, too.
    """

    def __init__(self, task: Task, tokenizer: Any, run: Run, every: int | None = None, keep_best: bool = False) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.run = run
        self.every = every
        self.keep_best = keep_best
        self.tracker: GeneralTracker | None = None
        self.best: float | None = None

    def after_step(self, step: Step, loop: Loop) -> None:
        """Evaluate when it is time."""
        if not step.last and (self.every is None or step.number % self.every):
            return
        result = evaluate(loop.model, self.task, self.tokenizer)
        result.store(self.run, setting(step.number))
        if self.tracker is not None and loop.is_main:
            named = {f"validation/{name}": value for name, value in result.metrics.items()}
            self.tracker.log(named, step=step.number)
        name, value = next(iter(result.metrics.items()))
        score = -value if name in self.task.smaller_is_better else value
        if self.keep_best and (self.best is None or score > self.best):
            self.best = score
            loop.pin()

    def state(self) -> dict[str, Any]:
        """The best value of the first metric so far, with its sign turned where smaller is better."""
        return {"best": self.best}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.best = record.load(float | None, state.get("best"), "best value of a checkpoint")


def setting(step: int) -> str:
    """The name under which a run keeps the evaluation after a step."""
    return f"validation/{step:06d}"


def validations(run: Run) -> dict[int, Result]:
    """Every evaluation that a run has, by step."""
    results = {name: Result.load(run, name) for name in sorted(run.settings()) if name.startswith("validation/")}
    return {int(name.rpartition("/")[2]): result for name, result in results.items() if result is not None}
