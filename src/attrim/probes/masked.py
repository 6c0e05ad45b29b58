"""The masked-language-model probe (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .base import Probe, linear
from .packed import Packed


class MaskedProbe(Probe):
    """One word a token: a hidden layer, and a decoder tied to the model's input embeddings, with a bias of its own.

    Parameters
    ----------
    layers, hidden : see :class:`Probe`.
    embeddings : the weights ``[labels, E]`` of the model's input embeddings, shared and not copied; they are trained
        only when the model is.
    activation : name of the model's activation in ``transformers``.
    """

    kind: ClassVar[str] = "masked-lm"
    by_token: ClassVar[bool] = True

    def __init__(self, layers: int, hidden: int, embeddings: nn.Parameter, activation: str = "gelu") -> None:
        super().__init__(layers, hidden, len(embeddings))
        self.activation = activation
        self.pooler = linear((layers + 1) * hidden, embeddings.shape[1])
        self.embeddings = embeddings
        self.bias = nn.Parameter(torch.zeros(len(embeddings)))

    def read(self, packed: Packed) -> Tensor:
        """Logits ``[T, labels]``."""
        inner = ACT2FN[self.activation](self.pooler(self.checked(packed).flatten(1)))
        return nn.functional.linear(inner, self.embeddings, self.bias)

    def options(self) -> dict[str, Any]:
        """See :meth:`Probe.options`; the embeddings come from the model."""
        return {"layers": self.layers, "hidden": self.hidden, "activation": self.activation}
