"""Hidden states of real tokens only: padding is left out, and each token keeps its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ShapeError

HiddenStates = Tensor | Sequence[Tensor]
"""``[B, L+1, N, D]``, or ``L+1`` tensors ``[B, N, D]`` as models of ``transformers`` give them."""


class Packed(NamedTuple):
    """The tokens of some texts, one text after the other.

    Attributes
    ----------
    states : ``[T, L+1, D]``, the output of the embeddings and of every layer.
    slots : int64 ``[T]``, the position of each token in its text (in the grid of a layout).
    starts : int64 ``[B+1]``, where each text begins, and T.
    """

    states: Tensor
    slots: Tensor
    starts: Tensor

    def rows(self) -> Tensor:
        """Int64 ``[T]``: which text each token is of."""
        texts = torch.arange(len(self.starts) - 1, device=self.starts.device)
        return texts.repeat_interleave(self.starts.diff(), output_size=len(self.slots))


def pack(hidden_states: HiddenStates, mask: Tensor, slots: Tensor | None = None) -> Packed:
    """Keep the real tokens of hidden states.

    Parameters
    ----------
    mask : ``[B, N]``, nonzero at real tokens.
    slots : int64 ``[T]``, when they do not follow from the mask.
    """
    mask = mask.bool()
    layers = hidden_states.unbind(1) if isinstance(hidden_states, Tensor) else hidden_states
    if any(layer.shape[:2] != mask.shape for layer in layers):
        raise ShapeError(
            f"Hidden states of shape {list(layers[0].shape)} do not fit a mask of shape {list(mask.shape)}; "
            "give [B, L+1, N, D] or tensors [B, N, D], and [B, N]."
        )
    states = torch.stack([layer[mask] for layer in layers], dim=1)
    starts = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    return Packed(states, slots_of(mask) if slots is None else slots, starts)


def slots_of(mask: Tensor) -> Tensor:
    """Int64 ``[T]``: the slot of every real token; padding before the first real token of a text does not count."""
    mask = mask.bool()
    slots = torch.arange(mask.shape[1], device=mask.device) - mask.int().argmax(1, keepdim=True)
    return slots[mask]


def unpack(values: Tensor, mask: Tensor) -> Tensor:
    """Values ``[T, ...]`` of the real tokens in their places, ``[B, N, ...]``; zeros elsewhere."""
    result = values.new_zeros(*mask.shape, *values.shape[1:])
    result[mask.bool()] = values
    return result
