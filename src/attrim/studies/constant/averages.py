"""Step 1 of the constant study: the average attention over the training data, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import DataError
from ...measurement import Stats, measure
from ...runs.run import Run
from ...stats import Mean
from ...stats.bundle import INDEX
from ...stats.mean import count_summary, split_half
from ...tasks import Task


@dataclass(frozen=True, eq=False)
class Averages:
    """The average attention of a model on a task.

    Attributes
    ----------
    mean : over all training data, on all slots of the task; 0 in cells that no text has.
    halves : site name to the correlation ``[H]`` between the averages of two halves of the batches; empty for a single
        batch.
    """

    mean: Mean
    halves: dict[str, Tensor]

    def summary(self) -> dict[str, float]:
        """The lowest and the mean correlation between halves, and the share of cells that no text has."""
        counts = count_summary(self.mean).values()
        facts = {"unseen_share": sum(each.unseen for each in counts) / sum(each.cells for each in counts)}
        values = [value for row in self.halves.values() for value in row.tolist() if value == value]
        if values:
            facts |= {"half_correlation": sum(values) / len(values), "lowest_half_correlation": min(values)}
        return facts


def average(run: Run, model: nn.Module, task: Task, tokenizer: Any, progress: bool = False) -> Averages:
    """The averages from the run, or measured now and kept there.

    The two halves of the batches are measured apart, which costs nothing: ``Mean`` merges exactly.
    """
    first = _half(run.folder / "averages" / "even", model, task, tokenizer, 0, progress)
    if first is None:
        raise DataError(f"The task {task.registered_name} has no training data to average attention over.")
    second = _half(run.folder / "averages" / "odd", model, task, tokenizer, 1, progress)
    if second is None:
        return Averages(_on_grid(_mean(first), task.max_length), {})
    halves = split_half(_mean(first), _mean(second))
    return Averages(_on_grid(_mean(first.merge(second)), task.max_length), halves)


def _half(folder: Path, model: nn.Module, task: Task, tokenizer: Any, part: int, progress: bool) -> Stats | None:
    if (folder / INDEX).exists():  # written last: without it the saving was stopped; a damaged one is an error
        return Stats.load(folder)
    batches: Iterator[Any] = islice(task.feed(model, tokenizer), part, None, 2)
    first = next(batches, None)
    if first is None:
        return None
    stats = measure(model, _chain(first, batches), Mean(), progress=progress)
    stats.save(folder)
    return stats


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _on_grid(mean: Mean, length: int) -> Mean:
    """Averages for every slot: without a separator in the last one, a mean only grows to the longest text."""
    for record in mean.records.values():
        mean.grow(record, length, length)
    return mean


def _mean(stats: Stats) -> Mean:
    mean = stats["Mean"]
    assert isinstance(mean, Mean)
    return mean
