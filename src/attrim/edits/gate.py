"""Scale or switch off heads (head importance, Michel et al. 2019, https://arxiv.org/abs/1905.10650)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
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
        ``sites``; or a dict from site name to a number, ``[H]``, or ``[N, H]``, a row for each example: of the batch
        that the model runs, and in an evaluation of the task, whose batches take the rows of their examples.
    sites : the sites, or their names, that the S rows of ``[S, H]`` stand for, e.g. ``attrim.sites(model)``.
    at : ``output`` multiplies the output of the head instead of its weights, which gives the same and needs no weights,
        so that the model stays on its fused attention kernel.
    """

    factors: float | Tensor | Mapping[str, float | Tensor]
    sites: Sequence[Site | str] | None = field(default=None, kw_only=True)
    at: Literal["weights", "output"] = field(default="weights", kw_only=True)

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
        return gate(weights, self._factors(call, len(weights)))

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        """Outputs ``[B, H, Q, D]`` times the factors of the call's heads."""
        return gate(output, self._factors(call, len(output)))

    def overrides(self, moment: str) -> bool:
        """See :meth:`Edit.overrides`; it is either the weights or the output."""
        return moment == f"edit_{self.at}"

    def for_examples(self, index: NDArray[np.int64]) -> Gate:
        """The gate with the rows of these examples, where it has one for each of them."""
        if not isinstance(self.factors, Mapping):
            return self
        places = torch.as_tensor(index)
        rows: dict[str, float | Tensor] = {}
        for name, factors in self.factors.items():
            each = isinstance(factors, Tensor) and factors.ndim == 2 and len(factors) > 1
            if each and int(places.max()) >= len(factors):  # type: ignore[arg-type]
                raise ShapeError(
                    f"The factors for site {name!r} are for {len(factors)} examples but the task has more; give [H] or "  # type: ignore[arg-type]
                    "one row for each example."
                )
            rows[name] = factors[places] if each else factors  # type: ignore[index]
        changed = any(rows[name] is not factors for name, factors in self.factors.items())
        return dataclasses.replace(self, factors=rows) if changed else self

    def _factors(self, call: Call, examples: int) -> float | Tensor:
        """The factors of a call's heads: a number, ``[H]`` or ``[B|1, H]``."""
        rows = self.factors if self.sites is None else dict(zip(self.sites, self.factors, strict=True))  # type: ignore[arg-type]
        factors: float | Tensor = at_site(rows, call.site, "factor")
        if isinstance(factors, Tensor) and factors.ndim:
            factors = at_heads(factors, call, -1, "factors")
            if factors.ndim == 2 and factors.shape[0] not in (1, examples):
                raise ShapeError(
                    f"The factors for site {call.site.name!r} are for a batch of {factors.shape[0]} but the batch has "
                    f"{examples} examples; give [H] or one row for each example."
                )
        return factors


def gate(tensor: Tensor, factors: float | Tensor) -> Tensor:
    """Multiply weights ``[B, H, Q, K]`` or outputs ``[B, H, Q, D]`` by a number, ``[H]`` or ``[B|1, H]`` factors."""
    if not isinstance(factors, Tensor):
        return tensor * factors
    factors = factors.to(tensor.device, tensor.dtype)
    return tensor * (factors[..., None, None] if factors.ndim else factors)


def _check(factors: float | Tensor | Mapping[str, float | Tensor], sites: Sequence[Site | str] | None) -> None:
    """Refuse factors whose shape does not say which head they are for, and those that would make NaN."""
    if isinstance(factors, Tensor) and factors.ndim > 1 and sites is None:
        raise ShapeError(
            f"Factors of shape {list(factors.shape)} need sites=attrim.sites(model) to say which site each row is for."
        )
    if sites is not None and not (isinstance(factors, Tensor) and factors.ndim == 2 and factors.shape[0] == len(sites)):
        raise ShapeError(f"With {len(sites)} sites, factors must be a tensor [{len(sites)}, H].")
    values = list(factors.values()) if isinstance(factors, Mapping) else [factors]
    if not values:
        raise ParameterError(
            "There is nothing in factors; give a number for all heads, or one for each site by its name."
        )
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
