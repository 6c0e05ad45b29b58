"""Evaluate a model on a task, with and without edits, and say how sure the difference is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from .attention.context import attach
from .attention.discover import find_sites
from .attention.prefix import Prefix
from .core.modes import Memory, device_of, evaluation_mode, memory_of, set_memory
from .core.progress import track
from .core.site import Site
from .core.text import folders
from .edits.base import Edit
from .errors import DataError, ParameterError, shorten
from .models.digests import comparable_digests, tokenizer_digest
from .models.loading import check_fit, longest_input
from .runs.result import Result as Result
from .runs.result import mcnemar, paired_bootstrap
from .runs.run import Run
from .stats.bundle import Stats
from .stats.zero_count import ZeroCount
from .tasks.base import Array, Task
from .tasks.replay import Replay

UNEDITED = "unedited"


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
    prepared.settings = settings
    options: dict[str, Any] = {"resamples": resamples, "level": level, "announce": announce}
    return drive(task, settings, prepared.point, baseline=baseline, run=run, **options)


class Prepared:
    """A model and the tokenised examples of a task, ready to be evaluated any number of times.

    Parameters
    ----------
    example : arguments of one forward pass, to find the model's attention with; by default the task's first text.
    count_zeros : count the attention weights that are zero. Without it edits of outputs leave the model on its fused
        attention kernel, and results have no ``zero_share`` (NaN).

    Attributes
    ----------
    settings : what will be evaluated, by name: an edit that selects no head is refused before anything is computed.
    """

    def __init__(
        self, model: nn.Module, task: Task, tokenizer: Any, example: Any = None, *, count_zeros: bool = True
    ) -> None:
        check_evaluable(task)
        check_fit(model, tokenizer)
        task.check(model)
        longest = longest_input(model, tokenizer)
        self.model, self.task = model, task
        self.batches = Replay(lambda: task.batches(tokenizer, longest))
        self.settings: Mapping[str, Sequence[Edit]] = {}
        self.count_zeros = count_zeros
        self._example = example
        self._found = False

    def sites(self) -> list[Site]:
        """The sites of the model, found with the first text where they were not known."""
        if not self._found:
            if self._example is None:
                self._example = first_text(self.model, self.task, self.batches)
            sites = find_sites(self.model, self._example)
            for edit in (edit for chosen in self.settings.values() for edit in chosen if isinstance(edit, Edit)):
                edit.select.resolve(sites)
            self._found = True
        return find_sites(self.model, self._example)

    def point(self, name: str, edits: Sequence[Edit]) -> Result:
        """One setting, not yet compared with any other; stores nothing.

        Edits may depend on the examples of a batch (:meth:`Edit.for_examples`).
        """
        self.sites()
        return _run(self.model, self.task, self.batches, edits, name, self.count_zeros)


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


def evaluate_layers(
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    settings: Mapping[str, Sequence[Edit]],
    *,
    run: Run | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    progress: bool = False,
) -> dict[str, Result]:
    """Evaluate settings that leave the first layers alone; gives what ``evaluate_settings`` gives, in less time.

    Every batch goes through the unedited model and then each setting, which begins at the first layer that it edits.
    All settings go through the data together, so they are stored together at the end.

    Parameters
    ----------
    settings, run, resamples, level : as in :func:`evaluate_settings`.
    """
    if UNEDITED in settings:
        raise DataError(f"The name {UNEDITED!r} is kept for the model without edits; choose another one.")
    results = evaluate_settings(model, task, tokenizer, {}, run=run)
    stored = {name: Result.load(run, name) for name in settings} if run is not None else {}
    results |= {name: result for name, result in stored.items() if result is not None}
    missing = {name: edits for name, edits in settings.items() if name not in results}
    if missing:
        for name, result in _run_together(model, task, tokenizer, missing, progress).items():
            compared = compare_results(task, result, results[UNEDITED], resamples, level)
            results[name] = compared if run is None else compared.store(run, name)
    return {name: results[name] for name in (UNEDITED, *settings)}


def check_stats(texts: Iterable[str], model: nn.Module, tokenizer: Any = None) -> None:
    """Refuse edits that read stats (averages, histograms) of another model or tokenizer, whatever their shape."""
    known = "" if tokenizer is None else tokenizer_digest(tokenizer)
    for text in texts:
        for folder in folders(text):
            origin = Stats.origin_of(folder)
            remedy = f"so {text!r} does not fit this model: measure {folder!r} on it"
            origin.require_same_source(comparable_digests(model), known, remedy)


def check_evaluable(task: Task) -> None:
    """Refuse a task that has nothing to score, and what is not a task."""
    if not isinstance(task, Task):
        raise ParameterError(f"A task was expected, not {shorten(task)}; make one with attrim.tasks.base.load_task.")
    if not task.metrics:
        raise DataError(f"The task {task.registered_name} has no metric to evaluate; use it with 'attrim measure'.")


def _run(
    model: nn.Module, task: Task, batches: Replay, edits: Sequence[Edit], name: str, count_zeros: bool = True
) -> Result:
    """One pass over the batches with the edits switched on."""
    device = device_of(model)
    zeros, started = ZeroCount(), time.perf_counter()
    parts: list[tuple[Array, Array, Array]] = []
    attached: tuple[Edit, ...] | None = None
    with evaluation_mode(model), ExitStack() as stack:
        for batch in batches:
            own = tuple(edit.for_examples(batch.index) for edit in edits)
            if own != attached:  # edits are compared by identity: those that treat all examples alike stay attached
                stack.close()
                stack.enter_context(attach(model, edits=own, stats=[zeros] if count_zeros else []))
                attached = own
            inputs = {key: tensor.to(device) for key, tensor in {**batch.inputs, **batch.targets}.items()}
            parts.append((batch.index, task.run(model, inputs).float().cpu().numpy(), batch.labels))
    share = math.nan if not count_zeros else zeros.zeros / zeros.total if zeros.total else 0.0
    return result_of(task, parts, share, time.perf_counter() - started, name)


def _run_together(
    model: nn.Module, task: Task, tokenizer: Any, settings: Mapping[str, Sequence[Edit]], progress: bool
) -> dict[str, Result]:
    """One pass over the batches, in which every batch goes through the unedited model and then each setting."""
    device, longest = device_of(model), longest_input(model, tokenizer)
    batches = Replay(lambda: task.batches(tokenizer, longest))
    prefix = Prefix(model, first_text(model, task, batches))
    parts: dict[str, list[tuple[Array, Array, Array]]] = {name: [] for name in settings}
    zeros: dict[str, list[int]] = {name: [0, 0] for name in settings}
    seconds: dict[str, float] = dict.fromkeys(settings, 0.0)
    memories: dict[str, Memory] = {}  # each setting goes on with its own
    with evaluation_mode(model):
        numbers = track(range(sum(1 for _ in batches)), "evaluating layers, batch {}".format, progress)
        for _, batch in zip(numbers, batches, strict=True):
            inputs = {key: tensor.to(device) for key, tensor in {**batch.inputs, **batch.targets}.items()}
            unedited = ZeroCount()
            set_memory(model, memories.get(UNEDITED, {}))
            with attach(model, stats=[unedited], strict=False), prefix.record():
                task.run(model, inputs)
            memories[UNEDITED] = memory_of(model)
            for name, edits in settings.items():
                started, own = time.perf_counter(), ZeroCount()
                edits = [edit.for_examples(batch.index) for edit in edits]
                # The layers that are skipped do not fire, so nothing may insist on it.
                set_memory(model, memories.get(name, {}))
                with prefix.replay(prefix.unedited(edits)), attach(model, edits=edits, stats=[own], strict=False):
                    outputs = task.run(model, inputs).float().cpu().numpy()
                memories[name] = memory_of(model)
                parts[name].append((batch.index, outputs, batch.labels))
                for counted in (unedited.counts | own.counts).values():
                    zeros[name] = [total + more for total, more in zip(zeros[name], counted, strict=True)]
                seconds[name] += time.perf_counter() - started
    return {
        name: result_of(task, parts[name], zeros[name][0] / max(zeros[name][1], 1), seconds[name], name)
        for name in settings
    }


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
    texts = task.written(outputs)
    return Result(task.score(columns), share, columns, outputs, labels, seconds=seconds, texts=texts)


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


def first_text(model: nn.Module, task: Task, batches: Replay) -> dict[str, Tensor]:
    """The first text of the task, or question about an image, as arguments of a forward pass."""
    one = {key: tensor[:1].to(device_of(model)) for key, tensor in batches.first().inputs.items()}
    return task.arguments(one, model)
