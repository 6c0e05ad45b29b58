"""Leave the empty slots of a grid out of a batch, so that they are not computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_BY_TOKEN = ("input_ids", "token_type_ids")


class Compacted(NamedTuple):
    """A batch without empty slots.

    Attributes
    ----------
    inputs : the arguments of the model, ``[B, n]`` each.
    mask : bool ``[B, n]``, real tokens, which come first.
    slots : int64 ``[B, n]``, where each token stood; 0 at padding.
    holes : whether there were empty slots before the last token of a text.
    """

    inputs: dict[str, Tensor]
    mask: Tensor
    slots: Tensor
    holes: bool


def compacted(inputs: dict[str, Tensor], mask: Tensor) -> Compacted | None:
    """Move the real tokens of each text together; None when nothing is saved or an input is not known.

    Parameters
    ----------
    mask : bool ``[B, N]``.
    """
    lengths = mask.sum(1)
    longest = int(lengths.max())
    begins = mask[:, 0].all()  # padding on the left moves the positions of tokens, each model in its own way
    if longest == mask.shape[1] or longest == 0 or not begins or not {*inputs} <= {*_BY_TOKEN, "attention_mask"}:
        return None
    places = torch.argsort(~mask, dim=1, stable=True)[:, :longest]
    real = torch.arange(longest, device=mask.device) < lengths[:, None]
    slots = places.masked_fill(~real, 0)
    moved = {name: inputs[name].gather(1, places) for name in _BY_TOKEN if name in inputs}
    holes = bool((slots != torch.arange(longest, device=mask.device))[real].any())
    return Compacted({**moved, "attention_mask": real.long()}, real, slots, holes)


def most_empty(mask: Tensor) -> slice:
    """The text of a batch, bool ``[B, N]``, with the most empty slots between its tokens; then the fewest tokens."""
    slots = torch.arange(mask.shape[1], device=mask.device)
    tokens = mask.sum(1)
    holes = (slots * mask).amax(1) + 1 - tokens
    place = int((holes * mask.shape[1] - tokens).argmax())
    return slice(place, place + 1)


def has_window(model: nn.Module) -> bool:
    """Whether attention reaches only near places: which ones would change when places move together."""
    config: Any = model.config
    return any(getattr(config, name, None) for name in ("sliding_window", "local_attention", "attention_window"))
