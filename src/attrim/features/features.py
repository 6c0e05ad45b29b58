"""Hidden states of a frozen model that were computed once, to train and evaluate probes on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError
from ..probes.packed import Packed
from ..tasks.base import Task
from ..tasks.batching import Batch
from ..tasks.rows import IGNORED
from ..training.stream import Epochs

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Features:
    """The hidden states of the tokens of some examples, without padding, and what the task wants to know about them.

    Attributes
    ----------
    parts : the states ``[T, L+1, D]`` of all tokens, cut between examples.
    slots : int64 ``[T]``, where each token stood in its text.
    starts : int64 ``[E+1]``, where the tokens of each example (row of the task) begin, and T.
    index, labels : ``[E]``, as in :class:`attrim.tasks.Batch`.
    targets, token_targets : ``[E]`` each, and ``[T, ...]`` each.
    key : what the states depend on, as a hash.
    zero_share : exact-zero share of the valid attention cells while they were computed.
    seconds : how long that took.
    """

    parts: tuple[Tensor, ...]
    slots: Tensor
    starts: Tensor
    index: Tensor
    labels: Tensor
    targets: dict[str, Tensor] = field(default_factory=dict)
    token_targets: dict[str, Tensor] = field(default_factory=dict)
    key: str = ""
    zero_share: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        begins = np.cumsum([0, *(len(part) for part in self.parts)])
        starts = self.starts.numpy()
        # For each example its part, and where it begins in it.
        numbers = np.searchsorted(begins, starts[:-1], side="right") - 1
        object.__setattr__(self, "_place", (numbers, starts[:-1] - begins[numbers], np.diff(starts)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states, in memory or in a file."""
        return sum(part.nbytes for part in self.parts)

    def packed(self, rows: Rows) -> Packed:
        """The tokens of some examples."""
        numbers, begins, counts = (column[rows] for column in self._place)  # type: ignore[attr-defined]
        states = torch.cat(
            [
                self.parts[number][begin : begin + count]
                for number, begin, count in zip(numbers, begins, counts, strict=True)
            ]
        )
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        return Packed(states.float(), self._tokens(self.slots, rows), starts)

    def batch(self, rows: Rows) -> Batch:
        """What the task knows about some examples; token targets ``[B, n, ...]`` stand in the order of the tokens."""
        counts = self._place[2][rows]  # type: ignore[attr-defined]
        places = torch.arange(int(counts.max(initial=1))) < torch.from_numpy(counts)[:, None]
        targets = {name: column[rows] for name, column in self.targets.items()}
        for name, column in self.token_targets.items():
            targets[name] = column.new_full((*places.shape, *column.shape[1:]), IGNORED)
            targets[name][places] = self._tokens(column, rows)
        return Batch(self.index.numpy()[rows], {}, self.labels.numpy()[rows], targets)

    def answers(self, task: Task, model: nn.Module) -> Tensor:
        """The labels to train with: ``[E]``, or ``[T]`` where each token has one.

        Parameters
        ----------
        model : has the labels in its configuration, as in :meth:`attrim.tasks.Task.train_labels`.
        """
        if not task.trains_as_evaluated:
            raise DataError(
                f"The task {task.registered_name} trains on other inputs than it is evaluated on, so hidden states "
                "cannot be kept for it; train the probe together with the model (Probed)."
            )
        everything = {name: column[None] for name, column in self.token_targets.items()}
        batch = Batch(self.index.numpy(), {}, self.labels.numpy(), {**self.targets, **everything})
        return task.train_labels(batch, model)["labels"].flatten()

    def epochs(self, labels: Tensor, batch_size: int, seed: int) -> Epochs:
        """The batches of an epoch by its number, for the training loop, in an order that seed and epoch fix.

        Parameters
        ----------
        labels : of :meth:`answers`.
        """

        def batches(epoch: int) -> Iterator[dict[str, Tensor]]:
            for rows in orders(len(self), batch_size, seed, epoch):
                wanted = self._tokens(labels, rows) if self.token_targets else labels[rows]
                yield {**self.packed(rows)._asdict(), "labels": wanted}

        return batches

    def _tokens(self, column: Tensor, rows: Rows) -> Tensor:
        """The entries ``[T, ...]`` of some examples."""
        starts = self.starts.numpy()
        return torch.cat([column[starts[row] : starts[row + 1]] for row in rows])


def orders(count: int, batch_size: int, seed: int, epoch: int) -> list[Rows]:
    """Which examples are in each batch of an epoch; the last one may be smaller."""
    numbers = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(numbers)
    return [np.array(numbers[start : start + batch_size]) for start in range(0, count, batch_size)]


def joined(columns: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Named columns that came part by part."""
    return {name: torch.cat([part[name] for part in columns]) for name in columns[0]} if columns else {}
