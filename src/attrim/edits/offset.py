"""Replace a head's attention by one value for each relative position, which extends to any length.

PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495) uses a matrix; here no text is too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError, ShapeError
from .base import Edit, register
from .constant import Averages, constant, load_averages, require_filled
from .persite import at_heads, at_site, choose_heads
from .positions import gather_offsets
from .rows import precise

TAIL = 8


@runtime_checkable
class RelativeAverages(Averages, Protocol):
    """What a stat must offer to serve as relative averages: the :class:`attrim.stats.mean.Mean` stat does."""

    def offsets(self, site: str) -> tuple[Tensor, Tensor]:
        """The relative positions ``[W]``, ascending, and the average attention ``[H, W]`` at each."""

    def counts(self, site: str) -> Tensor:
        """How many examples stand behind each cell, ``[H|1, N, M]``."""


@register("offset")
@dataclass(frozen=True, eq=False)
class Offset(Edit):
    """Replace attention by a value for each relative position, cut to the allowed cells and normalised by row.

    Texts may be longer than those that were measured: a distance that was never seen takes the mean of the last few
    nearer ones that were, on its own side of the query.

    Parameters
    ----------
    curve : a ``Mean`` stat; a dict from site name to ``[H|1, 2 R + 1]``; or one such tensor for all sites. Entry
        ``R + d`` is for a key ``d`` positions after its query (before it, if negative).
    heads : short for ``select=Select(heads=heads)``, e.g. the first entries of an order.
    tail : how many distances "the last few" are.
    """

    curve: RelativeAverages | Tensor | Mapping[str, Tensor] = field(metadata={"parse": load_averages})
    heads: InitVar[Sequence[Any] | int | None] = field(default=None, kw_only=True)
    tail: int = field(default=TAIL, kw_only=True)

    def __post_init__(self, heads: Sequence[Any] | int | None) -> None:
        super().__post_init__()
        choose_heads(self, heads)
        if self.tail < 1:
            raise ParameterError(f"tail must be at least 1, not {self.tail}.")
        given = self.curve
        if isinstance(given, type):
            raise ParameterError(f"{given.__name__} is a class; give a stat that was measured, or tensors.")
        if isinstance(given, RelativeAverages):
            names = [getattr(site, "name", site) for site in given.sites]
            given = {name: offset_curve(given, name, self.tail) for name in names}
            object.__setattr__(self, "curve", given)
        _check(given)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The weights ``[B, H, Q, K]`` for the inputs of this call."""
        curve = at_heads(at_site(self.curve, call.site, "curve"), call, 0, "curve").detach()
        curve = curve.to(weights.device, precise(curve.dtype))
        require_filled(curve, call)
        cells = gather_offsets(curve, call.query_slots(), call.key_slots(), self.tail)
        return constant(cells, call.valid).to(weights.dtype).expand_as(weights)


def offset_curve(mean: RelativeAverages, site: str, tail: int = TAIL) -> Tensor:
    """The average attention of a site by relative position, float32 ``[H, 2 R + 1]``, with no gaps.

    Going outwards from the query, a distance that was never seen takes the mean of the last ``tail`` that were, on its
    side; 0 if there is none, as after the query of a decoder.
    """
    offsets, averages = mean.offsets(site)
    counted = mean.counts(site).amax(0).nonzero()
    if not len(counted):
        raise ParameterError(f"Nothing was measured at site {site!r}; measure texts first.")
    known = set((counted[:, 1] - counted[:, 0]).tolist())
    values = dict(zip(offsets.tolist(), averages.float().unbind(1), strict=True))
    reach = max(abs(offset) for offset in values)
    nothing = torch.zeros(averages.shape[0])
    curve = {0: values[0] if 0 in known else nothing}
    for side in (-1, 1):
        seen: list[Tensor] = []
        for distance in range(1, reach + 1):
            if side * distance in known:
                seen.append(values[side * distance])
                curve[side * distance] = seen[-1]
            else:
                curve[side * distance] = torch.stack(seen[-tail:]).mean(0) if seen else nothing
    return torch.stack([curve[offset] for offset in range(-reach, reach + 1)], dim=1)


def _check(curves: object) -> None:
    for name, curve in (curves if isinstance(curves, Mapping) else {"all sites": curves}).items():
        if not isinstance(curve, Tensor) or not curve.is_floating_point():
            raise ParameterError(f"The curve for {name} must be a floating point tensor [H, 2 R + 1].")
        if curve.ndim != 2 or curve.shape[1] % 2 == 0 or 0 in curve.shape:
            raise ShapeError(
                f"The curve for {name} must have the shape [H, 2 R + 1] or [1, 2 R + 1], not {list(curve.shape)}; "
                "its middle entry is the query's own position."
            )
        if not bool(torch.isfinite(curve).all()):
            raise ParameterError(f"The curve for {name} contains NaN or infinity; replace those entries with 0.")
