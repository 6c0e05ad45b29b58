"""Edits of hidden states: what enters or leaves a layer (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ..core.call import Call
from .base import Edit

Where = Literal["input", "output"]


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenEdit(Edit):
    """Base of the edits that map every number of a hidden state by itself.

    Parameters
    ----------
    where : whether the hidden states that enter a layer or those that leave it are changed.
    """

    where: Where = field(default="output")

    def change(self, hidden: Tensor) -> Tensor:
        """The edited hidden states, same shape."""
        raise NotImplementedError

    def edit_layer_input(self, hidden: Tensor, call: Call) -> Tensor:
        """See :meth:`Edit.edit_layer_input`."""
        return self.change(hidden)

    def edit_layer_output(self, hidden: Tensor, call: Call) -> Tensor:
        """See :meth:`Edit.edit_layer_output`."""
        return self.change(hidden)

    def overrides(self, moment: str) -> bool:
        """Only the moment that ``where`` names."""
        return moment == f"edit_layer_{self.where}"

    def apply(self, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Edit plain hidden states ``[..., D]`` with no model; a mask makes no difference."""
        return self.change(weights)
