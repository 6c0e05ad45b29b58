"""A frozen model as a source of hidden states: those of real tokens only, packed, each with its slot in the text.

Where the model allows it, empty slots inside of a text are not computed at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.masks import token_slots
from ..attention.session import only
from ..errors import DataError, ShapeError

HiddenStates = Tensor | Sequence[Tensor]
"""``[B, L+1, N, D]``, or ``L+1`` tensors ``[B, N, D]`` as models of ``transformers`` give them."""
_BY_TOKEN = ("input_ids", "token_type_ids")
# How far hidden states may be apart that are computed with and without the padding inside of a grid.
_TOLERANCE = 2e-5


class PackedStates(NamedTuple):
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


def pack(hidden_states: HiddenStates, mask: Tensor, slots: Tensor | None = None) -> PackedStates:
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
    return PackedStates(states, slots_of(mask) if slots is None else slots, starts)


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


class Backbone:
    """Hidden states of a model, where possible without computing the padding of a grid.

    Slots that a layout leaves empty inside of a text are left out, and the tokens keep their positions. Whether this
    gives the same hidden states depends on the model (it does not where attention looks at distances between places
    in the batch, as in DeBERTa), so it is tried on a text of the first such batch, and not done when they differ.

    Parameters
    ----------
    model : an ``AutoModel``; called in the mode it is in.
    compact : False never leaves slots out.
    """

    def __init__(self, model: nn.Module, compact: bool = True) -> None:
        self.model = model
        known = inspect.signature(model.forward).parameters
        self._options: dict[str, Any] = {"output_hidden_states": True}
        if "use_cache" in known:
            self._options["use_cache"] = False
        self._compact = compact and not has_window(model)
        # The arguments that give positions, by whether texts have holes: a model that ignores holes fails only there.
        self._ways: dict[bool, bool | None] = {}
        self._positions = (True, False) if "position_ids" in known else (False,)

    def __call__(self, inputs: dict[str, Tensor]) -> tuple[PackedStates, Tensor]:
        """Packed hidden states of one batch, and its bool mask ``[B, N]`` of real tokens."""
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
        if mask.ndim != 2:
            raise DataError(f"A probe needs a mask [B, N] of real tokens, not one of shape {list(mask.shape)}.")
        small = compacted(inputs, mask) if self._compact and not self._random() else None
        if small is None:
            return pack(self._states(inputs), mask), mask
        if small.holes not in self._ways:
            self._ways[small.holes] = self._choose(inputs, mask)
        way = self._ways[small.holes]
        if way is None:
            return pack(self._states(inputs), mask), mask
        return self._packed(small, mask, way), mask

    def _random(self) -> bool:
        """Whether the model drops at random, so that two ways could not be compared."""
        return self.model.training

    def _choose(self, inputs: dict[str, Tensor], mask: Tensor) -> bool | None:
        """Whether positions must be given to the model for equal hidden states; None when they differ either way.

        One text decides: the one with the most holes, or with the fewest tokens if no text has any.
        """
        text = most_empty(mask)
        inputs, mask = {name: tensor[text] for name, tensor in inputs.items()}, mask[text]
        small = compacted(inputs, mask)
        if small is None:
            return None
        with only(), torch.no_grad():  # stats must not count what is only tried; edits go by slots either way
            right = pack(self._states(inputs), mask).states
            for positions in self._positions:
                states = self._packed(small, mask, positions).states
                if bool((states - right).abs().max() <= _TOLERANCE * right.abs().max().clamp_min(1)):
                    return positions
        return None

    def _packed(self, small: Compacted, mask: Tensor, positions: bool) -> PackedStates:
        extra = {"position_ids": small.slots} if positions else {}
        token = token_slots.set(small.slots)
        try:
            states = self._states({**small.inputs, **extra})
        finally:
            token_slots.reset(token)
        return pack(states, small.mask, slots_of(mask))

    def _states(self, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        output: Any = self.model(**inputs, **self._options)
        states = getattr(output, "hidden_states", None)
        if states is None:
            raise DataError(
                f"{type(self.model).__name__} gives no hidden states; a probe needs a single encoder or decoder "
                "(AutoModel)."
            )
        return states
