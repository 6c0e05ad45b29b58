"""How much the loss depends on a head's attention being what it is, to first order.

The way of Michel et al. 2019 (https://arxiv.org/abs/1905.10650), but towards a constant instead of towards nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..attention.discover import find_sites
from ..core.call import Call
from ..core.modes import device_of, in_mode
from ..edits.base import Edit
from ..edits.constant import Constant
from ..edits.mix import mix
from ..errors import DataError
from ..measurement import LABELS
from .base import Score, ScoreInputs, Scores, register


@dataclass(frozen=True, eq=False)
class Towards(Edit):
    """Attention, written as a mixture with its constant that has none of it yet, so that it has a gradient.

    Parameters
    ----------
    constant : the edit that gives the constants.
    shares : filled while the model runs: site name to ones ``[B, H]``, how much of the attention each example keeps.
    """

    constant: Edit
    shares: dict[str, Tensor] = field(default_factory=dict)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The same weights ``[B, H, Q, K]``."""
        share = torch.ones(weights.shape[:2], device=weights.device, dtype=weights.dtype, requires_grad=True)
        self.shares[call.site.name] = share
        return mix(weights, self.constant.edit_weights(weights.detach(), call), share)


@register("gradient")
@dataclass(frozen=True, kw_only=True)
class Gradient(Score):
    """First-order change of the loss when a head moves from its attention to its constant; needs labels.

    With attention ``s * A + (1 - s) * C`` it is ``-d loss / d s`` at ``s = 1``, for every example by itself.

    Parameters
    ----------
    signed : the changes themselves, so that a head whose constant lowers the loss comes first. By default their
        absolute values, where examples cannot cancel each other.
    """

    needs = frozenset({"batches", "constants"})
    targets = ("label",)
    reductions = ("mean", "sum")
    scopes = ("dataset", "example")
    signed: bool = False

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        model, constants = given.model, given.constants
        edit = Towards(constants if isinstance(constants, Edit) else Constant(constants), select=given.select)
        stream = iter(given.batches)
        first = next(stream, None)
        if first is None:
            raise DataError("There is nothing to score heads on: the batches are empty.")
        device = device_of(model)
        example = {name: tensor[:1].to(device) for name, tensor in first.items() if name not in LABELS}
        with in_mode(model, training=False), torch.enable_grad(), attach(model, [edit], example=example):
            values = self.reduce(self._changes(model, chain([first], stream), edit, device))
        return self.scores(values, given.select.resolve(find_sites(model, example)))

    def _changes(
        self, model: nn.Module, batches: Iterable[Mapping[str, Any]], edit: Towards, device: torch.device
    ) -> Iterator[dict[str, Tensor]]:
        """Of each batch the changes of its examples' losses, ``[B, H]`` by site name."""
        for batch in batches:
            loss = _loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
            slopes = torch.autograd.grad(loss, list(edit.shares.values()))
            # The loss is a mean over the batch; times its size it is the sum of the examples' own losses.
            changes = {
                name: -slope.double().cpu() * len(slope) for name, slope in zip(edit.shares, slopes, strict=True)
            }
            yield changes if self.signed else {name: change.abs() for name, change in changes.items()}


def _loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    loss = getattr(model(**inputs), "loss", None)
    if loss is None:
        raise DataError(
            f"{type(model).__name__} gave no loss; the score 'gradient' needs a model with a trained head and batches "
            "with labels, as task.train_batches gives them."
        )
    return loss
