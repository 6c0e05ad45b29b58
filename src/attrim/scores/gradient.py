"""How much the loss depends on a head's attention being what it is, to first order.

The way of Michel et al. 2019 (https://arxiv.org/abs/1905.10650), but towards a constant instead of towards nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..core.call import Call
from ..core.modes import in_mode
from ..edits.base import Edit
from ..edits.constant import Constant
from ..edits.mix import mix
from ..errors import DataError
from ..measurement import LABELS
from .base import Scores, register


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
def gradient(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    constants: Any,
    *,
    seed: int = 0,
    signed: bool = False,
) -> Scores:
    """First-order change of the loss when a head moves from its attention to its constant; needs labels.

    With attention ``s * A + (1 - s) * C`` it is ``-d loss / d s`` at ``s = 1``, for every example by itself.

    Parameters
    ----------
    batches : with labels, as ``task.train_batches`` gives them; the loss is the model's own, so train its head first.
    signed : the mean over examples, so that heads that would lower the loss come first. By default the mean of the
        absolute values, where examples cannot cancel each other.
    """
    edit = Towards(constants if isinstance(constants, Edit) else Constant(constants))
    device = next(model.parameters()).device
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise DataError("There is nothing to score heads on: the batches are empty.")
    sums: dict[str, Tensor] = {}
    examples = 0
    example = {name: tensor[:1].to(device) for name, tensor in first.items() if name not in LABELS}
    with in_mode(model, training=False), torch.enable_grad(), attach(model, [edit], example=example) as sites:
        for batch in chain([first], stream):
            loss = _loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
            changes = dict(zip(edit.shares, torch.autograd.grad(loss, list(edit.shares.values())), strict=True))
            for name, change in changes.items():
                # The loss is a mean over the batch; times its size it is the sum of the examples' own losses.
                change = -change.double().cpu() * len(change)
                total = (change if signed else change.abs()).sum(0)
                sums[name] = sums[name] + total if name in sums else total
            examples += len(change)
    return Scores({name: total / examples for name, total in sums.items()}, sites, "gradient")


def _loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    loss = getattr(model(**inputs), "loss", None)
    if loss is None:
        raise DataError(
            f"{type(model).__name__} gave no loss; the score 'gradient' needs a model with a trained head and batches "
            "with labels, as task.train_batches gives them."
        )
    return loss
