"""The probe of single tokens (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from .base import Probe, linear
from .packed import Packed


class TokenProbe(Probe):
    """One answer a token: ``W2 tanh(W1 [h_0; ...; h_L] + b1) + b2`` (https://arxiv.org/abs/2211.03495)."""

    kind: ClassVar[str] = "token-classification"
    by_token: ClassVar[bool] = True

    def __init__(self, layers: int, hidden: int, labels: int) -> None:
        super().__init__(layers, hidden, labels)
        self.pooler = linear((layers + 1) * hidden, hidden)
        self.classifier = linear(hidden, labels)

    def read(self, packed: Packed) -> Tensor:
        """Logits ``[T, labels]``."""
        return self.classifier(torch.tanh(self.pooler(self.checked(packed).flatten(1))))
