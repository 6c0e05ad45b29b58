"""Scale or switch off heads (head importance, Michel et al. 2019, https://arxiv.org/abs/1905.10650)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..errors import ParameterError, ShapeError, shorten
from .base import Edit, register
from .persite import at_heads, at_site


@register("gate")
@dataclass(frozen=True, eq=False)
class Gate(Edit):
    """Multiply the attention weights, and with them the output, of each head by a factor (0 switches the head off).

    Gradients flow into factors that are tensors, so that the gradient at 1 is the head's importance.

    Parameters
    ----------
    factors : a number or 0-dimensional tensor for all heads; ``[H]``, the same at every site; ``[S, H]`` together with
        ``sites``; or a dict from site name to a number, ``[H]``, or ``[B, H]`` (a factor for each example).
    sites : the sites, or their names, that the S rows of ``[S, H]`` stand for, e.g. ``attrim.sites(model)``.
    """

    factors: float | Tensor | Mapping[str, float | Tensor]
    sites: Sequence[Site | str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites is not None:
            if not isinstance(self.sites, (list, tuple)):
                raise ParameterError(f"sites must be a list of sites or of their names, not {shorten(self.sites)}.")
            object.__setattr__(
                self, "sites", tuple(site.name if isinstance(site, Site) else site for site in self.sites)
            )
        _check(self.factors, self.sites)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """Weights ``[B, H, Q, K]`` times the factors of the call's heads."""
        rows = self.factors if self.sites is None else dict(zip(self.sites, self.factors, strict=True))  # type: ignore[arg-type]
        factors = at_site(rows, call.site, "factor")
        if isinstance(factors, Tensor) and factors.ndim:
            factors = at_heads(factors, call, -1, "factors")
            if factors.ndim == 2 and factors.shape[0] not in (1, weights.shape[0]):
                raise ShapeError(
                    f"The factors for site {call.site.name!r} are for a batch of {factors.shape[0]} but the batch has "
                    f"{weights.shape[0]} examples; give [H] or one row for each example."
                )
        return gate(weights, factors)


def gate(weights: Tensor, factors: float | Tensor) -> Tensor:
    """Multiply weights ``[B, H, Q, K]`` by a number, ``[H]`` or ``[B|1, H]`` factors."""
    if not isinstance(factors, Tensor):
        return weights * factors
    factors = factors.to(weights.device, weights.dtype)
    return weights * (factors[..., None, None] if factors.ndim else factors)


def _check(factors: float | Tensor | Mapping[str, float | Tensor], sites: Sequence[Site | str] | None) -> None:
    """Refuse factors whose shape does not say which head they are for, and those that would make NaN."""
    if isinstance(factors, Tensor) and factors.ndim > 1 and sites is None:
        raise ShapeError(
            f"Factors of shape {list(factors.shape)} need sites=attrim.sites(model) to say which site each row is for."
        )
    if sites is not None and not (isinstance(factors, Tensor) and factors.ndim == 2 and factors.shape[0] == len(sites)):
        raise ShapeError(f"With {len(sites)} sites, factors must be a tensor [{len(sites)}, H].")
    values = list(factors.values()) if isinstance(factors, Mapping) else [factors]
    for value in values:
        if isinstance(value, Tensor):
            if value.ndim > 2 or not value.is_floating_point():
                raise ShapeError(
                    f"Factors must be floating point of shape [H] or [B, H], not {value.dtype} {list(value.shape)}."
                )
            finite = bool(torch.isfinite(value).all())
        else:
            finite = math.isfinite(value)
        if not finite:
            raise ParameterError("Factors must be finite: NaN or infinity was given; use 0 to switch a head off.")
