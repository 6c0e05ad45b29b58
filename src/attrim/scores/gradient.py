"""How much the loss depends on a head's attention being what it is, to first order.

The way of Michel et al. 2019 (https://arxiv.org/abs/1905.10650), towards nothing as they do, or towards a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..core.call import Call
from ..edits.base import Edit
from ..edits.constant import Constant
from ..edits.mix import mix
from ..tasks.base import Task
from .base import Score, ScoreInputs, Scores, register
from .taps import OutputTap, Tapped, gradients
from .target import example_losses


@dataclass(frozen=True, eq=False)
class Towards(Edit):
    """Attention, written as a mixture with its constant that has none of it yet, so that it has a gradient.

    Parameters
    ----------
    constant : the edit that gives the constants.
    tensors : filled while the model runs: site name to ones ``[B, H]``, how much of the attention each example keeps.
    """

    constant: Edit
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The same weights ``[B, H, Q, K]``."""
        share = torch.ones(weights.shape[:2], device=weights.device, dtype=weights.dtype, requires_grad=True)
        self.tensors[call.site.name] = share
        return mix(weights, self.constant.edit_weights(weights.detach(), call), share)

    def changes(self, slopes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What moving all the way does to first order, ``[B, H]`` by site name, from the gradients of the shares."""
        return {name: -slope for name, slope in slopes.items()}

    def clear(self) -> None:
        """Forget the last pass."""
        self.tensors.clear()


@register("gradient")
@dataclass(frozen=True, kw_only=True)
class Gradient(Score):
    """First-order change of the loss when a head moves from its attention to its constant, or to nothing; needs labels.

    With attention ``s * A + (1 - s) * C`` it is ``-d loss / d s`` at ``s = 1``, for every example by itself. Without
    the constant (``towards="nothing"``) the absolute value is the head importance of Michel et al.

    Parameters
    ----------
    signed : the changes themselves, so that a head whose constant lowers the loss comes first. By default their
        absolute values, where examples cannot cancel each other.
    towards : what the head would be replaced by.
    """

    needs = frozenset({"batches", "constants"})
    targets = ("label",)
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    signed: bool = False
    towards: Literal["constant", "nothing"] = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towards == "nothing":
            object.__setattr__(self, "needs", frozenset({"batches"}))

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        constants = given.constants
        edit: Towards | OutputTap = OutputTap()
        if self.towards == "constant":
            edit = Towards(constants if isinstance(constants, Edit) else Constant(constants))
        tapped = Tapped(given.model, given.batches, given.select)
        with tapped.attached(edit):
            values = self.reduce(self._changes(tapped, edit, given.task))
        return self.scores(values, tapped.sites)

    def _changes(self, tapped: Tapped, edit: Towards | OutputTap, task: Task | None) -> Iterator[dict[str, Tensor]]:
        """Of each batch the changes of its examples' losses, ``[B, H]`` by site name."""
        for batch in tapped.batches():
            edit.clear()
            loss, places = example_losses(tapped.model, batch, self.registered_name, task)
            changes = tapped.filled(edit.changes(gradients(loss, edit.tensors)), len(places))
            yield changes if self.signed else {name: change.abs() for name, change in changes.items()}
