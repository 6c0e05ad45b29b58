"""Zero the small attention weights (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from ..kernels.operations import KeepAbove
from .base import Edit, register
from .rows import allowed_keys, normalise_rows, precise

RelativeTo = Literal["one", "uniform", "row-maximum"]


@register("threshold")
@dataclass(frozen=True)
class Threshold(Edit):
    """Keep the large attention weights of each row and zero the rest (https://arxiv.org/abs/2106.01335).

    Give exactly one of ``bar``, ``top`` and ``mass``.

    Parameters
    ----------
    bar : keep the weights strictly above it; 0 changes nothing.
    relative_to : what the bar is a multiple of: ``one`` (an absolute bar), ``uniform`` (1/n, with n the allowed keys
        of the row) or ``row-maximum``.
    renormalize : divide each row by what is left of it (not part of the paper's rule).
    top : keep so many of each row's weights: an int is a number, a float a share of the allowed keys, rounded up.
    mass : keep the fewest of each row's largest weights that together reach this mass.
    """

    bar: float | None = None
    relative_to: RelativeTo = "one"
    renormalize: bool = False
    top: int | float | None = field(default=None, kw_only=True)
    mass: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("bar", "top", "mass") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ParameterError(
                f"Threshold needs exactly one of bar, top and mass, not {' and '.join(given) or 'none of them'}."
            )
        if self.relative_to not in get_args(RelativeTo):
            raise ParameterError(
                f"relative_to must be one of {', '.join(get_args(RelativeTo))}, not {self.relative_to!r}."
            )
        if self.bar is None and self.relative_to != "one":
            raise ParameterError(f"relative_to={self.relative_to!r} goes with bar, not with {given[0]}; leave it out.")
        if self.bar is not None and not (math.isfinite(self.bar) and self.bar >= 0):
            raise ParameterError(f"bar must be a number that is not negative, not {self.bar}.")
        if self.top is not None:
            _check_top(self.top)
        if self.mass is not None and not 0 < self.mass <= 1:
            raise ParameterError(f"mass must lie above 0 and not above 1, not {self.mass}.")

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """Apply the rule that was given to the weights ``[B, H, Q, K]``."""
        if self.bar is not None:
            return threshold(weights, self.bar, call.allowed, self.relative_to, self.renormalize)
        if self.top is not None:
            return keep_top(weights, self.top, call.allowed, self.renormalize)
        assert self.mass is not None
        return keep_mass(weights, self.mass, call.allowed, self.renormalize)

    def compiles(self, call: Call) -> KeepAbove | None:
        """See :meth:`Edit.compiles`; the rules that rank the weights of a row are left to :meth:`edit_weights`."""
        return None if self.bar is None else KeepAbove(self.bar, self.relative_to, self.renormalize)


def threshold(
    weights: Tensor,
    bar: float,
    allowed: Tensor | None = None,
    relative_to: RelativeTo = "one",
    renormalize: bool = False,
) -> Tensor:
    """Zero the weights that are not strictly above the bar.

    Parameters
    ----------
    weights : ``[..., Q, K]``, not negative.
    allowed : bool that broadcasts to ``weights`` with its own last axis K; the other cells come out zero.

    Notes
    -----
    The bar is rounded to the dtype of the weights, so that a weight equal to it falls in every dtype.
    """
    allowed = _allowed(weights, allowed)
    if bar == 0:
        return _kept(weights, allowed, renormalize)
    level = torch.tensor(bar, dtype=precise(weights.dtype), device=weights.device)
    if relative_to == "uniform":
        level = level / allowed_keys(allowed).clamp_min(1)
    elif relative_to == "row-maximum":
        level = level * weights.detach().masked_fill(~allowed, 0.0).amax(-1, keepdim=True)
    return _kept(weights, (weights > level.to(weights.dtype)) & allowed, renormalize)


def keep_top(weights: Tensor, top: int | float, allowed: Tensor | None = None, renormalize: bool = False) -> Tensor:
    """Keep each row's ``top`` largest weights (a float: that share of its allowed keys, rounded up).

    Among equal weights the earlier key stays, so exactly that many do.
    """
    _check_top(top)
    allowed = _allowed(weights, allowed)
    # 0.1 * 30 is 3.0000000000000004: without the small step back the share would round up to 4 keys.
    count = torch.ceil(allowed_keys(allowed).double() * top - 1e-9) if isinstance(top, float) else top
    _, order = _ranked(weights, allowed)
    large = _unranked(torch.arange(weights.shape[-1], device=weights.device) < count, order)
    return _kept(weights, large & allowed, renormalize)


def keep_mass(weights: Tensor, mass: float, allowed: Tensor | None = None, renormalize: bool = False) -> Tensor:
    """Keep the fewest of each row's largest weights whose sum reaches ``mass`` (all of a row that never reaches it)."""
    allowed = _allowed(weights, allowed)
    ranked, order = _ranked(weights, allowed)
    ranked = ranked.to(precise(weights.dtype)).clamp_min(0)
    before = ranked.cumsum(-1).roll(1, -1)
    before[..., 0] = 0
    return _kept(weights, _unranked(before < mass, order) & allowed, renormalize)


def _allowed(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """What is allowed: by default every key."""
    return torch.ones(weights.shape[-1], dtype=torch.bool, device=weights.device) if allowed is None else allowed


def _ranked(weights: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's weights from the largest to the smallest, forbidden cells last, and the keys they belong to."""
    return weights.detach().masked_fill(~allowed, -1.0).sort(dim=-1, descending=True, stable=True)


def _unranked(flags: Tensor, order: Tensor) -> Tensor:
    """Bool flags by rank, put back to the keys of ``order`` ``[..., K]``."""
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, flags.expand_as(order))


def _kept(weights: Tensor, keep: Tensor, renormalize: bool) -> Tensor:
    kept = torch.where(keep, weights, 0.0)
    return normalise_rows(kept) if renormalize else kept


def _check_top(top: int | float) -> None:
    if isinstance(top, bool) or not (0 < top <= 1 if isinstance(top, float) else top >= 1):
        raise ParameterError(
            f"top must be a whole number from 1 on, or a share above 0.0 and not above 1.0, not {top!r}."
        )
