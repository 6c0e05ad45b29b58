"""Step 1 of the constant study: the average attention over the training data, and how sure it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

from torch import Tensor

from ...stats.bundle import Stats
from ...stats.mean import Mean, count_summary, split_half
from ..bench import Bench

PARTS = ("averages-even", "averages-odd")


@dataclass(frozen=True, eq=False)
class AverageAttention:
    """The average attention of a model on a task.

    Attributes
    ----------
    halves : a ``Mean`` over every second batch of the training data each; one for a single batch.
    slots : how many a text has.
    """

    halves: tuple[Stats, ...]
    slots: int

    @cached_property
    def mean(self) -> Mean:
        """The average over all training data, on all slots; 0 in cells that no text has."""
        mean = copy.deepcopy(self.halves[0][Mean])
        for half in self.halves[1:]:
            mean.merge(half[Mean])
        for record in mean.records.values():
            mean.grow(record, self.slots, self.slots)  # by itself it only grows to the longest text
        return mean

    def correlations(self) -> dict[str, Tensor]:
        """Site name to the correlation ``[H]`` between the two halves; empty where there is only one."""
        return split_half(self.halves[0][Mean], self.halves[1][Mean]) if len(self.halves) > 1 else {}

    def summary(self) -> dict[str, float]:
        """The lowest and the mean correlation between halves, and the share of cells that no text has."""
        counts = count_summary(self.mean).values()
        facts = {"unseen_share": sum(each.unseen for each in counts) / sum(each.cells for each in counts)}
        values = [value for row in self.correlations().values() for value in row.tolist() if value == value]
        if values:
            facts |= {"half_correlation": sum(values) / len(values), "lowest_half_correlation": min(values)}
        return facts


def average(bench: Bench) -> AverageAttention:
    """The averages from the run, or measured now and kept there.

    The two halves of the batches are measured apart, which costs nothing: ``Mean`` merges exactly.
    """
    task, model, tokenizer = bench.training_task(), bench.loaded_model, bench.loaded_tokenizer
    halves = []
    for start, part in enumerate(PARTS):
        batches: Iterator[Any] = islice(task.feed(model, tokenizer), start, None, len(PARTS))
        first = next(batches, None)
        if first is not None:  # a single batch has no second half
            halves.append(bench.measure(Mean(), part, batches=chain([first], batches)))
    return AverageAttention(tuple(halves), task.max_length)
