"""Evaluate a model on a task, with and without edits, and say how sure the difference is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .attention.context import attach
from .attention.discover import find_sites
from .core.call import Call
from .core.modes import in_mode
from .core.text import folders
from .edits.base import Edit
from .errors import DataError
from .models.digests import attention_digests, tokenizer_digest
from .models.loading import check_fit, longest_input
from .runs.result import Result as Result
from .runs.result import mcnemar, paired_bootstrap
from .runs.run import Run
from .stats.base import Stat
from .stats.bundle import Stats
from .tasks.base import Array, Task
from .tasks.batching import with_decoder
from .tasks.replay import Replay

UNEDITED = "unedited"


class ZeroCount(Stat):
    """Counts the valid attention cells of every site and how many of them are exactly zero."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """Add the cells of one call, weights ``[B, H, Q, K]``."""
        valid = call.valid.expand(tensor.shape[0], tensor.shape[1], -1, -1)
        zeros, total = self.counts.get(call.site.name, (0, 0))
        self.counts[call.site.name] = zeros + int(((tensor == 0) & valid).sum()), total + int(valid.sum())

    @property
    def zeros(self) -> int:
        """The zeros of all sites."""
        return sum(zeros for zeros, _ in self.counts.values())

    @property
    def total(self) -> int:
        """The cells of all sites."""
        return sum(total for _, total in self.counts.values())


def evaluate(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    edits: Sequence[Edit] | Edit = (),
    *,
    baseline: Result | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    example: Any = None,
) -> Result:
    """Evaluate a model on a task while edits are switched on.

    Parameters
    ----------
    edits : applied in order; none evaluates the model as it is.
    baseline : the result of the unedited model on the same task; computed here when it is needed and not given.
    resamples, level : of the paired bootstrap interval.
    example : arguments of one forward pass, to find the model's attention with; by default the task's first text.

    Examples
    --------
    >>> result = attrim.evaluate(model, load_task("glue/sst2", data="glue"), tokenizer, attrim.Threshold(1e-3))
    >>> result.metrics["accuracy"], str(result.changes["accuracy"]), result.zero_share
    """
    edits = (edits,) if isinstance(edits, Edit) else tuple(edits)
    if not edits and baseline is None:
        return evaluate_settings(model, task, tokenizer, {}, example=example)[UNEDITED]
    settings = {"edited": edits}
    options: dict[str, Any] = {"resamples": resamples, "level": level, "example": example}
    return evaluate_settings(model, task, tokenizer, settings, baseline=baseline, **options)["edited"]


def evaluate_settings(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    settings: Mapping[str, Sequence[Edit]],
    *,
    baseline: Result | None = None,
    run: Run | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    example: Any = None,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Result]:
    """Evaluate several edit settings on the same tokenised examples, the unedited model first.

    Parameters
    ----------
    settings : a name for each group of edits; ``"unedited"`` is added.
    run : keeps every setting as soon as it is done; settings that it already has are read, not repeated.
    announce : called with the name of each setting before it is evaluated, for progress bars.

    Returns
    -------
    The results by name, ``"unedited"`` first.
    """
    prepared = Prepared(model, task, tokenizer, example)
    options: dict[str, Any] = {"resamples": resamples, "level": level, "announce": announce}
    return drive(task, settings, prepared.point, baseline=baseline, run=run, **options)


class Prepared:
    """A model and the tokenised examples of a task, ready to be evaluated any number of times.

    Parameters
    ----------
    example : arguments of one forward pass, to find the model's attention with; by default the task's first text.
    """

    def __init__(self, model: nn.Module, task: Task, tokenizer: Any, example: Any = None) -> None:
        check_evaluable(task)
        check_fit(model, tokenizer)
        task.check(model)
        longest = longest_input(model, tokenizer)
        self.model, self.task = model, task
        self.batches = Replay(lambda: task.batches(tokenizer, longest))
        self._example = example
        self._found = False

    def point(self, name: str, edits: Sequence[Edit]) -> Result:
        """One setting, not yet compared with any other; stores nothing."""
        if not self._found:
            find_sites(self.model, first_text(self.model, self.batches) if self._example is None else self._example)
            self._found = True
        return _run(self.model, self.task, self.batches, edits, name)


def drive(
    task: Task,
    settings: Mapping[str, Sequence[Edit]],
    point: Callable[[str, Sequence[Edit]], Result],
    *,
    baseline: Result | None = None,
    run: Run | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Result]:
    """Evaluate what the run does not have yet by calling ``point``, compare it with the unedited model, and store it.

    Parameters
    ----------
    settings, baseline, run, resamples, level, announce : as in :func:`evaluate_settings`.
    point : gives the result of one setting; it may compute it in another process.
    """
    check_evaluable(task)
    if UNEDITED in settings and tuple(settings[UNEDITED]):
        raise DataError(f"The name {UNEDITED!r} is kept for the model without edits; choose another one.")
    results: dict[str, Result] = {} if baseline is None else {UNEDITED: baseline}
    for name, edits in {UNEDITED: (), **settings}.items():
        if name in results:
            continue
        result = Result.load(run, name) if run is not None else None
        if result is None:
            if announce is not None:
                announce(name)
            result = point(name, edits)
            if name != UNEDITED:
                result = compare_results(task, result, results[UNEDITED], resamples, level)
            if run is not None:
                result = result.store(run, name)
        results[name] = result
    return results


def check_stats(texts: Iterable[str], model: nn.Module, tokenizer: Any = None) -> None:
    """Refuse edits that read stats (averages, histograms) of another model or tokenizer, whatever their shape."""
    known = "" if tokenizer is None else tokenizer_digest(tokenizer)
    for text in texts:
        for folder in folders(text):
            origin = Stats.origin_of(folder)
            remedy = f"so {text!r} does not fit this model: measure {folder!r} on it"
            origin.require_same_source(attention_digests(model), known, remedy)


def check_evaluable(task: Task) -> None:
    """Refuse a task that has nothing to score."""
    if not task.metrics:
        raise DataError(f"The task {task.registered_name} has no metric to evaluate; use it with 'attrim measure'.")


def _run(model: nn.Module, task: Task, batches: Replay, edits: Sequence[Edit], name: str) -> Result:
    """One pass over the batches with the edits switched on."""
    device = device_of(model)
    zeros, started = ZeroCount(), time.perf_counter()
    parts: list[tuple[Array, Array, Array]] = []
    with evaluation_mode(model), attach(model, edits=edits, stats=[zeros]):
        for batch in batches:
            inputs = {key: tensor.to(device) for key, tensor in {**batch.inputs, **batch.targets}.items()}
            parts.append((batch.index, task.run(model, inputs).float().cpu().numpy(), batch.labels))
    share = zeros.zeros / zeros.total if zeros.total else 0.0
    return result_of(task, parts, share, time.perf_counter() - started, name)


def result_of(
    task: Task, parts: Sequence[tuple[Array, Array, Array]], share: float, seconds: float, name: str
) -> Result:
    """The result of one setting from what each batch gave: example numbers, outputs and labels."""
    order = np.argsort(np.concatenate([index for index, _, _ in parts]), kind="stable")
    outputs, labels = (np.concatenate([part[place] for part in parts])[order] for place in (1, 2))
    broken = int((~np.isfinite(outputs.reshape(len(outputs), -1)).all(1)).sum())
    if broken:
        raise DataError(
            f"The model's answers to {broken} of {len(outputs)} examples are not finite numbers (setting {name!r}); "
            "use dtype float32 or a weaker edit."
        )
    columns = task.columns(outputs, labels)
    return Result(task.score(columns), share, columns, outputs, labels, seconds=seconds)


def compare_results(task: Task, result: Result, unedited: Result, resamples: int, level: float) -> Result:
    """Add what changed against the unedited model."""
    changes = {
        name: paired_bootstrap(metric, unedited.columns, result.columns, resamples=resamples, level=level)
        for name, metric in task.metrics.items()
    }
    before, after = task.hits(unedited.columns), task.hits(result.columns)
    p_value = mcnemar(before, after) if before is not None and after is not None else None
    distances = task.distances(result.outputs, unedited.outputs, result.labels)
    return replace(result, changes=changes, distances=distances, p_value=p_value)


def first_text(model: nn.Module, batches: Replay) -> dict[str, Tensor]:
    """The first text of the task, as arguments of a forward pass."""
    one = {key: tensor[:1].to(device_of(model)) for key, tensor in batches.first().inputs.items()}
    return with_decoder(one, getattr(model, "config", None))


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next(model.parameters()).device


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in its old mode."""
    with in_mode(model, training=False), torch.inference_mode():
        yield
