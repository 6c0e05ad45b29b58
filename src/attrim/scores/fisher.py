"""How much the loss would rise by a change of a head, to second order, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..core.call import Call
from ..core.plan import Plan, guarded_softmax
from ..core.site import Select
from ..edits.base import Edit
from ..edits.constant import Constant
from ..errors import ParameterError
from ..tasks.base import Task
from .base import Score, ScoreInputs, Scores, register
from .taps import OutputTap, Tap, Tapped, gradients
from .target import example_losses


@dataclass(frozen=True, eq=False)
class ChangeTap(Tap):
    """Keeps the tensors of a moment and how an edit would change them, but leaves them as they are.

    Parameters
    ----------
    change : the edit.
    differences : filled while the model runs, as ``tensors`` is: changed minus unchanged.
    """

    change: Edit = field(kw_only=True)
    differences: dict[str, Tensor] = field(default_factory=dict)

    def keep_both(self, tensor: Tensor, changed: Tensor, call: Call) -> Tensor:
        """The tensor, kept together with its change."""
        self.differences[call.site.name] = changed - tensor.detach()
        return self.keep(tensor, call)

    def clear(self) -> None:
        """Forget the last pass, and with it its memory."""
        super().clear()
        self.differences.clear()

    def plan(self, call: Call) -> Plan:
        """The change of the call's heads."""
        return Plan([(self.change, call.heads)])


@dataclass(frozen=True, eq=False)
class ChangedOutput(ChangeTap):
    """For edits of outputs."""

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        """The same outputs ``[B, H, Q, D]``."""
        return self.keep_both(output, self.plan(call).output(output.detach(), call), call)


@dataclass(frozen=True, eq=False)
class ChangedWeights(ChangeTap):
    """For edits of weights: a row of weights times the values is the output, so rows stand for it."""

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The same weights ``[B, H, Q, K]``."""
        return self.keep_both(weights, self.plan(call).edited(weights.detach(), call), call)


@dataclass(frozen=True, eq=False)
class ChangedScores(ChangeTap):
    """For edits of scores, such as masks, and for those that replace the softmax."""

    def normalise(self, scores: Tensor, call: Call) -> Tensor:
        """The softmax of scores ``[B, H, Q, K]``."""
        return self.keep_both(guarded_softmax(scores), self.plan(call).weights(scores.detach(), call), call)


TAPS: dict[str, type[ChangeTap]] = {
    "edit_output": ChangedOutput,
    "edit_weights": ChangedWeights,
    "edit_scores": ChangedScores,
    "normalise": ChangedScores,
}
"""What an edit overrides, and the tap that shows its change."""


@register("fisher")
@dataclass(frozen=True, kw_only=True)
class Fisher(Score):
    """Second-order rise of the loss by a change of a head's output, from squared gradients of its tokens; needs labels.

    Half the sum over tokens of the squared product of the loss's gradient by the head's output and the change of that
    output: the diagonal by tokens of the empirical Fisher matrix, for every example by itself. It is never negative, so
    that examples and tokens cannot cancel each other. With a loss that is a mean over n tokens the gradient is that
    of their sum, and the result is divided by n.

    Parameters
    ----------
    change : ``removed``: the output becomes 0. ``replaced``: by the constants that the score is given, or by any edit
        in their place (``Mask`` for windows, ``Threshold``, ...).
    """

    needs = frozenset({"batches"})
    targets = ("label",)
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    change: Literal["removed", "replaced"] = "removed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.change == "replaced":
            object.__setattr__(self, "needs", frozenset({"batches", "constants"}))

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        tap = OutputTap() if self.change == "removed" else change_tap(given.constants)
        tapped = Tapped(given.model, given.batches, given.select)
        with tapped.attached(tap):
            values = self.reduce(self._rises(tapped, tap, given.task))
        return self.scores(values, tapped.sites)

    def _rises(self, tapped: Tapped, tap: OutputTap | ChangeTap, task: Task | None) -> Iterator[dict[str, Tensor]]:
        """Of each batch the rises of its examples' losses, ``[B, H]`` by site name."""
        for batch in tapped.batches():
            tap.clear()
            loss, places = example_losses(tapped.model, batch, self.registered_name, task)
            rises = half_squares(gradients(loss, tap.tensors), tap)
            weight = places[:, None].double().cpu()
            yield {name: rise * weight for name, rise in tapped.filled(rises, len(places)).items()}


def change_tap(constants: object) -> ChangeTap:
    """The tap for an edit, or for what :class:`~attrim.edits.constant.Constant` takes."""
    change = constants if isinstance(constants, Edit) else Constant(constants)  # type: ignore[arg-type]
    if change.select != Select():
        raise ParameterError(
            "The edit of the score 'fisher' chooses heads itself; choose them by select= of the score."
        )
    for moment, tap in TAPS.items():
        if change.overrides(moment):
            return tap(change=change)
    raise ParameterError(f"{type(change).__name__} changes no head, so the score 'fisher' does not apply to it.")


def half_squares(slopes: Mapping[str, Tensor], tap: OutputTap | ChangeTap) -> dict[str, Tensor]:
    """Half the sum over queries of squared products, ``[B, H]`` by site name."""
    found = {}
    for name, slope in slopes.items():
        # Without the output, its change is its negative, whose square is the same.
        change = tap.differences[name] if isinstance(tap, ChangeTap) else tap.tensors[name].detach()
        products = torch.linalg.vecdot(slope, change.to(slope.dtype))
        found[name] = products.square().sum(-1) / 2
    return found
