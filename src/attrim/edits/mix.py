"""Mix a head's attention with its constant (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError, ShapeError
from .base import Edit, register
from .constant import Averages, Constant, Outside, load_averages
from .persite import at_heads, at_site, choose_heads

Lambdas = float | Tensor | Mapping[str, float | Tensor]


@register("mix")
@dataclass(frozen=True, eq=False)
class Mix(Edit):
    """Mix attention with a fixed matrix: ``sigmoid(l) * attention + (1 - sigmoid(l)) * constant``, one l for each head.

    Gradients flow into the attention and into lambdas that are tensors, never into the matrix. After training, the
    heads with the smallest lambda are those that need their attention least (https://arxiv.org/abs/2211.03495).

    Parameters
    ----------
    matrix, heads, outside : as for :class:`~attrim.edits.constant.Constant`.
    lambdas : a number or 0-dimensional tensor for all heads; ``[H]``, the same at every site; or a dict from site name
        to either. Large ones leave the attention as it is, 0 mixes equally.
    """

    matrix: Averages | Tensor | Mapping[str, Tensor] = field(metadata={"parse": load_averages})
    lambdas: Lambdas = 0.0
    heads: InitVar[Sequence[Any] | int | None] = field(default=None, kw_only=True)
    outside: Outside = field(default="error", kw_only=True)

    def __post_init__(self, heads: Sequence[Any] | int | None) -> None:
        super().__post_init__()
        choose_heads(self, heads)
        constant = Constant(self.matrix, outside=self.outside)  # turns averages into tensors, once
        object.__setattr__(self, "matrix", constant.matrix)
        object.__setattr__(self, "_constant", constant)
        _check(self.lambdas)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The mixed weights ``[B, H, Q, K]``."""
        lambdas = at_site(self.lambdas, call.site, "lambda")
        if not isinstance(lambdas, Tensor):
            lambdas = torch.tensor(float(lambdas), device=weights.device)
        elif lambdas.ndim:
            lambdas = at_heads(lambdas, call, 0, "lambdas")
        constant: Constant = self._constant  # type: ignore[attr-defined]
        return mix(weights, constant.edit_weights(weights, call), torch.sigmoid(lambdas))


def mix(weights: Tensor, constants: Tensor, share: Tensor) -> Tensor:
    """``share * weights + (1 - share) * constants``, exact where the share is 0 or 1.

    Parameters
    ----------
    weights, constants : ``[B, H, Q, K]``.
    share : how much of the weights stays: one number, ``[H]`` or ``[B, H]``.
    """
    share = share.to(weights.device, weights.dtype)
    return torch.lerp(constants, weights, share[..., None, None] if share.ndim else share)


def _check(lambdas: Lambdas) -> None:
    """Refuse lambdas that say nothing, and shapes that do not say which head they are for."""
    if isinstance(lambdas, Mapping) and not lambdas:
        raise ParameterError(
            "There is nothing in lambdas; give a number for all heads, or one for each site by its name."
        )
    for value in lambdas.values() if isinstance(lambdas, Mapping) else [lambdas]:
        if isinstance(value, Tensor) and (value.ndim > 1 or not value.is_floating_point()):
            raise ShapeError(
                f"Lambdas must be floating point of shape [H], not {value.dtype} {list(value.shape)}; "
                "give a dict from site name to [H] where sites differ."
            )
        finite = bool(torch.isfinite(value).all()) if isinstance(value, Tensor) else math.isfinite(value)
        if not finite:
            raise ParameterError("Lambdas must be finite; 50 is as good as attention alone, -50 as the constant alone.")
