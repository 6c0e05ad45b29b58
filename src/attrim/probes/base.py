"""What a probe is: a small head on all hidden states of a frozen model (PAPA, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from ..errors import ParameterError, ShapeError
from .packed import HiddenStates, Packed, pack, unpack

STANDARD_DEVIATION = 0.02


class Probe(nn.Module):
    """Base of the probes.

    Parameters
    ----------
    layers : L, the layers of the model; a probe reads ``L+1`` hidden states, that of the embeddings first.
    hidden : D, the width of the model.
    labels : outputs; 1 means regression.
    """

    kind: ClassVar[str]  # of the tasks that it is for, as in attrim.loading.KINDS
    by_token: ClassVar[bool]  # one answer a token, or one a text

    def __init__(self, layers: int, hidden: int, labels: int) -> None:
        super().__init__()
        if min(layers, hidden, labels) < 1:
            raise ParameterError(f"A probe needs layers, a width and labels, not {layers}, {hidden} and {labels}.")
        self.layers, self.hidden, self.labels = layers, hidden, labels

    def forward(self, hidden_states: HiddenStates | Packed, mask: Tensor | None = None) -> Tensor:
        """Logits from hidden states.

        Parameters
        ----------
        hidden_states : ``[B, L+1, N, D]``, ``L+1`` tensors ``[B, N, D]``, or packed ones.
        mask : ``[B, N]``, nonzero at real tokens; packed hidden states need none.

        Returns
        -------
        ``[B, labels]`` for a probe of texts. For a probe of tokens ``[B, N, labels]``, zeros at padding, or
        ``[T, labels]`` when the hidden states are packed.
        """
        if isinstance(hidden_states, Packed):
            return self.read(hidden_states)
        if mask is None:
            raise ParameterError("A probe needs the mask of real tokens beside the hidden states; give mask [B, N].")
        logits = self.read(pack(hidden_states, mask))
        return unpack(logits, mask) if self.by_token else logits

    def read(self, packed: Packed) -> Tensor:
        """Logits ``[B, labels]`` of the texts, or ``[T, labels]`` of the tokens."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What the probe is made from, as JSON values."""
        return {"layers": self.layers, "hidden": self.hidden, "labels": self.labels}

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of logits ``[..., labels]`` for labels ``[...]``: cross-entropy without those that are -100,
        or the square error for a single output.
        """
        if self.labels == 1:
            return nn.functional.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def checked(self, packed: Packed) -> Tensor:
        """The states ``[T, L+1, D]`` of packed tokens; an error when they are of another model."""
        states = packed.states
        if states.shape[1:] != (self.layers + 1, self.hidden):
            raise ShapeError(
                f"The probe reads {self.layers + 1} hidden states of width {self.hidden}, not {states.shape[1]} of "
                f"width {states.shape[2]}; make a probe for this model."
            )
        return states


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer as BERT begins with: weights from a normal distribution of 0.02, biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=STANDARD_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer
