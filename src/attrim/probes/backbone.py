"""Run a model without a head and pack the hidden states of its real tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DataError
from ..sites.calls import token_slots
from ..sites.session import active
from .compact import Compacted, compacted, has_window, most_empty
from .packed import Packed, pack, slots_of

# How far hidden states may be apart that are computed with and without the padding inside of a grid.
_TOLERANCE = 2e-5


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

    def __call__(self, inputs: dict[str, Tensor]) -> tuple[Packed, Tensor]:
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

        One text tells: that with the most holes, or with the fewest tokens where no text has any.
        """
        text = most_empty(mask)
        inputs, mask = {name: tensor[text] for name, tensor in inputs.items()}, mask[text]
        small = compacted(inputs, mask)
        if small is None:
            return None
        token = active.set(())  # stats must not count what is only tried; edits go by slots either way
        try:
            with torch.no_grad():
                right = pack(self._states(inputs), mask).states
                for positions in self._positions:
                    states = self._packed(small, mask, positions).states
                    if bool((states - right).abs().max() <= _TOLERANCE * right.abs().max().clamp_min(1)):
                        return positions
            return None
        finally:
            active.reset(token)

    def _packed(self, small: Compacted, mask: Tensor, positions: bool) -> Packed:
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
