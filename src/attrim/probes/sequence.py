"""The probe of whole texts (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from .base import Probe, linear
from .packed import Packed


class SequenceProbe(Probe):
    """One answer a text: a weighted sum over the slots in every layer, then a hidden layer and a classifier.

    ``z_l = sum_j w[l, j] h[l, j]`` over the real tokens j, ``pooled = tanh(W [z_0; ...; z_L] + b)``. The sum is not
    divided by the number of tokens (https://arxiv.org/abs/2211.03495).

    Parameters
    ----------
    layers, hidden, labels : see :class:`Probe`.
    length : N, the slots of the layout.
    dropout : before the classifier, while training.
    """

    kind: ClassVar[str] = "sequence-classification"
    by_token: ClassVar[bool] = False

    def __init__(self, layers: int, length: int, hidden: int, labels: int, dropout: float = 0.0) -> None:
        super().__init__(layers, hidden, labels)
        self.length = length
        self.weights = nn.Parameter(torch.full((layers + 1, length), 1 / length))
        self.pooler = linear((layers + 1) * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = linear(hidden, labels)

    def read(self, packed: Packed) -> Tensor:
        """Logits ``[B, labels]``."""
        pooled = torch.tanh(self.pooler(self.sums(packed).flatten(1)))
        return self.classifier(self.dropout(pooled))

    def sums(self, packed: Packed) -> Tensor:
        """The weighted sums ``[B, L+1, D]`` over the tokens of each text."""
        states = self.checked(packed)
        if len(packed.slots) and int(packed.slots.max()) >= self.length:
            raise ShapeError(
                f"A token stands in slot {int(packed.slots.max())} but the probe has {self.length} slots; "
                "make it for the task's max_length."
            )
        # One product of a sparse [B, T] by [T, D] in every layer: as dense matrices this still takes no longer than
        # reading the states once, and nothing of their size is written.
        spread = states.new_zeros(self.layers + 1, len(packed.starts) - 1, len(packed.slots))
        tokens = torch.arange(len(packed.slots), device=states.device)
        spread[:, packed.rows(), tokens] = self.weights.to(states.dtype).index_select(1, packed.slots)
        return torch.bmm(spread, states.transpose(0, 1)).transpose(0, 1)

    def options(self) -> dict[str, Any]:
        """See :meth:`Probe.options`."""
        return {**super().options(), "length": self.length, "dropout": self.dropout.p}
