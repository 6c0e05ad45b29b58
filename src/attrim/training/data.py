"""What the training loop consumes: an endless stream of batches that can begin anywhere, and the loss of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

from ..errors import DataError

Inputs = dict[str, Tensor]
Epochs = Callable[[int], Iterable[Inputs]]
"""Gives the batches of an epoch, the same ones in the same order whenever it is asked."""
Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss of a batch, a scalar with a gradient."""


class BatchStream:
    """The batches of epoch 0, 1, 2 and so on, without those that have no answer to learn from.

    Parameters
    ----------
    epoch, batch : where to begin: this many batches of this epoch are skipped.
    """

    def __init__(self, epochs: Epochs, epoch: int = 0, batch: int = 0) -> None:
        self._epochs = epochs
        self.epoch = epoch
        self.batch = batch

    def __iter__(self) -> Iterator[Inputs]:
        while True:
            empty = self.batch == 0
            for inputs in islice(self._epochs(self.epoch), self.batch, None):
                self.batch += 1
                if weight(inputs):
                    empty = False
                    yield inputs
            if empty:
                raise DataError(
                    "The training data has nothing to learn from; check the data, its labels and its limit."
                )
            self.epoch, self.batch = self.epoch + 1, 0


def count(epochs: Epochs) -> int:
    """How many batches of an epoch have answers; they are made for it, and not kept."""
    return sum(weight(inputs) > 0 for inputs in epochs(0))


def weight(inputs: Inputs) -> int:
    """How many answers the mean loss of a batch is over: its labels, without the ignored ones (-100).

    Labels that are not whole numbers are scores, one or several for an example, and count once for each example.
    """
    labels = inputs.get("labels")
    if labels is None:
        return len(next(iter(inputs.values())))
    known = labels != -100
    return int((known.reshape(len(known), -1).any(1) if labels.is_floating_point() else known).sum())


@dataclass(frozen=True)
class Step:
    """What one step of the optimiser was like.

    Attributes
    ----------
    number : from 1.
    last : whether it is the last one.
    loss : mean over the step's batches, before the step.
    gradient_norm : before it is limited.
    seconds : how long it took.
    skipped : whether it changed nothing, because float16 overflowed; its loss and norm may not be finite.
    """

    number: int
    last: bool
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    skipped: bool = False
