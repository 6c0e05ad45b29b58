"""Settings that each edit one layer, evaluated batch by batch so that they share the unedited first layers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ...attention.context import attach
from ...attention.prefix import Prefix
from ...core.modes import device_of, evaluation_mode
from ...core.progress import track
from ...edits import Edit
from ...errors import DataError
from ...evaluation import UNEDITED, compare_results, evaluate_settings, first_text, result_of
from ...models.loading import longest_input
from ...runs.result import Result
from ...runs.run import Run
from ...stats.zero_count import ZeroCount
from ...tasks import Task
from ...tasks.base import Array
from ...tasks.replay import Replay


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

    All settings go through the data together, so they are stored together at the end.

    Parameters
    ----------
    settings, run, resamples, level : as in :func:`attrim.evaluation.evaluate_settings`.
    """
    if UNEDITED in settings:
        raise DataError(f"The name {UNEDITED!r} is kept for the model without edits; choose another one.")
    results = evaluate_settings(model, task, tokenizer, {}, run=run)
    stored = {name: Result.load(run, name) for name in settings} if run is not None else {}
    results |= {name: result for name, result in stored.items() if result is not None}
    missing = {name: edits for name, edits in settings.items() if name not in results}
    if missing:
        for name, result in _run_together(model, task, tokenizer, missing, progress).items():
            results[name] = compare_results(task, result, results[UNEDITED], resamples, level)
            if run is not None:
                results[name].store(run, name)
    return {name: results[name] for name in (UNEDITED, *settings)}


def _run_together(
    model: nn.Module, task: Task, tokenizer: Any, settings: Mapping[str, Sequence[Edit]], progress: bool
) -> dict[str, Result]:
    """One pass over the batches, in which every batch goes through the unedited model and then each setting."""
    device, longest = device_of(model), longest_input(model, tokenizer)
    batches = Replay(lambda: task.batches(tokenizer, longest))
    prefix = Prefix(model, first_text(model, batches))
    parts: dict[str, list[tuple[Array, Array, Array]]] = defaultdict(list)
    zeros: dict[str, list[int]] = {name: [0, 0] for name in settings}
    seconds: dict[str, float] = dict.fromkeys(settings, 0.0)
    with evaluation_mode(model):
        numbers = track(range(sum(1 for _ in batches)), "evaluating layers, batch {}".format, progress)
        for _, batch in zip(numbers, batches, strict=True):
            inputs = {key: tensor.to(device) for key, tensor in {**batch.inputs, **batch.targets}.items()}
            unedited = ZeroCount()
            with attach(model, stats=[unedited], strict=False), prefix.record():
                task.run(model, inputs)
            for name, edits in settings.items():
                started, own = time.perf_counter(), ZeroCount()
                # The layers that are skipped do not fire, so nothing may insist on it.
                with prefix.replay(prefix.unedited(edits)), attach(model, edits=edits, stats=[own], strict=False):
                    outputs = task.run(model, inputs).float().cpu().numpy()
                parts[name].append((batch.index, outputs, batch.labels))
                for counted in (unedited.counts | own.counts).values():
                    zeros[name] = [total + more for total, more in zip(zeros[name], counted, strict=True)]
                seconds[name] += time.perf_counter() - started
    return {
        name: result_of(task, parts[name], zeros[name][0] / max(zeros[name][1], 1), seconds[name], name)
        for name in settings
    }
