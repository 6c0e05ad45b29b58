"""One step of training: the loss that it lowers, and what is known about it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import DataError
from .stream import Inputs

Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss of a batch, a scalar with a gradient."""


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
    """

    number: int
    last: bool
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float


def head_loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """The loss that a model of ``transformers`` computes when its inputs hold labels."""
    loss: Tensor | None = model(**inputs).loss
    if loss is None:
        raise DataError(f"{type(model).__name__} gives no loss for these inputs; they need labels, or give a loss.")
    return loss
