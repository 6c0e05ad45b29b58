"""A codebook: few values that stand for all attention weights, and the edges that say which one does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import ParameterError, ShapeError, shorten
from ..kernels.operations import LookupTable
from . import lookup
from .rounding import round_up, round_within

PART = 1 << 20
"""Weights whose codes are looked up at once."""

Scope = Literal["row", "head", "layer"]
Tie = Literal["upper", "lower"]


@dataclass(frozen=True, eq=False)
class Codebook:
    """Which value stands for a weight: ``values[k]`` where ``k`` is the number of edges that the weight reaches.

    Everything is kept in float64. A weight of another dtype gets the bin that its exact number has; only the value
    is rounded to that dtype.

    Parameters
    ----------
    edges : float64 ``[..., E]``, growing and not negative. Leading axes, if any, are those of the weights
        (``[B|1, H|1, Q|1]``), so that examples, heads or rows have edges of their own.
    values : float64 ``[..., E + 1]``; ``values[0]`` stands for all below the first edge, negative weights included.
    name : the method that made it.
    bits : how many bits a code has (default: as many as the values need).
    scope : what has edges of its own; None where all weights share them.
    tie : whether a weight equal to an edge belongs to the bin above it or to the one below.
    """

    edges: Tensor
    values: Tensor
    name: str = "custom"
    bits: int | None = None
    scope: Scope | None = None
    tie: Tie = "upper"

    def __post_init__(self) -> None:
        edges, values = (torch.as_tensor(given).detach().double() for given in (self.edges, self.values))
        if not 1 <= edges.ndim <= 4 or values.shape != (*edges.shape[:-1], edges.shape[-1] + 1):
            raise ShapeError(
                f"A codebook with edges {list(edges.shape)} needs values of the same shape with one more at the end, "
                f"not {list(values.shape)}."
            )
        falling = bool((edges.diff(dim=-1) < 0).any()) or not bool((edges >= 0).all())
        if falling or not bool(torch.isfinite(values).all()):
            raise ParameterError("The edges of a codebook must grow from 0 on and its values must be numbers.")
        if self.tie not in get_args(Tie) or self.scope not in (None, *get_args(Scope)):
            raise ParameterError(f"A codebook cannot have the tie rule {self.tie!r} with the scope {self.scope!r}.")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "values", values)
        if self.bits is None:
            object.__setattr__(self, "bits", max(1, edges.shape[-1].bit_length()))

    def codes(self, weights: Tensor) -> Tensor:
        """The code of every weight, int64 of the same shape ``[B, H, Q, K]`` (any shape where all share the edges)."""
        return self._search(weights).long()

    def _search(self, weights: Tensor) -> Tensor:
        """The codes as int32, which are half as much to write and to read."""
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32)).contiguous()
        edges = self._rounded_edges(wide.dtype, wide.device)
        if edges.ndim == 1:
            return torch.bucketize(wide, edges, right=self.tie == "upper", out_int32=True)
        order, groups = self._groups(wide)
        flat = wide.permute(order).reshape(groups, -1)
        found = torch.searchsorted(edges.reshape(groups, -1), flat, right=self.tie == "upper", out_int32=True)
        return found.view([wide.shape[axis] for axis in order]).permute(_inverse(order))

    def apply(self, weights: Tensor, fast: bool = True) -> Tensor:
        """The values that stand for the weights, in their shape and dtype; no gradient.

        Parameters
        ----------
        fast : allow the compiled look-up, which gives the same bits as the sorted search.
        """
        values = self._rounded_values(weights.dtype, weights.device)
        if fast and lookup.supports(weights):
            table = self.table()
            if table is not None:
                return lookup.look_up(weights.detach(), table)
        if values.ndim == 1:
            found = torch.empty(weights.shape, dtype=values.dtype, device=values.device)
            # A part at a time, whose codes stay in the processor's cache; and half the time of values[codes].
            for part, into in zip(weights.reshape(-1).split(PART), found.view(-1).split(PART), strict=True):
                torch.index_select(values, 0, self._search(part), out=into)
            return found
        order, groups = self._groups(weights)
        flat = self._search(weights).permute(order)
        found = values.reshape(groups, -1).gather(1, flat.reshape(groups, -1).long())
        return found.view(flat.shape).permute(_inverse(order))

    def rounded(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The edges and values that decide for weights of a dtype; edges are float32 for those that are shorter."""
        wide, cpu = torch.promote_types(dtype, torch.float32), torch.device("cpu")
        return self._rounded_edges(wide, cpu), self._rounded_values(dtype, cpu)

    @functools.cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def _rounded_edges(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = "edges", dtype, device
        if key not in self._cache:
            # A weight exceeds an edge when it exceeds the edge rounded down, and reaches it when rounded up.
            exact = round_up(self.edges, dtype)
            if self.tie == "lower":
                exact = torch.where(exact.double() > self.edges, torch.nextafter(exact, exact.new_zeros(())), exact)
            self._cache[key] = exact.contiguous().to(device)
        return self._cache[key]

    def _rounded_values(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = "values", dtype, device
        if key not in self._cache:
            self._cache[key] = round_within(self.values, self.edges, dtype).to(device)
        return self._cache[key]

    def table(self) -> LookupTable | None:
        """The codebook for the compiled look-up of float32; None where it has no such form."""
        if self.tie != "upper" or self.edges.ndim != 1:
            return None
        if "table" not in self._cache:
            self._cache["table"] = lookup.make_table(*self.rounded(torch.float32), self.rounded(torch.float64)[1])
        return self._cache["table"]

    def _groups(self, weights: Tensor) -> tuple[list[int], int]:
        """The axes of the weights with those first that have edges of their own, and how many groups these make."""
        leading = self.edges.shape[:-1]
        if len(leading) != weights.ndim - 1 or any(
            own not in (1, size) for own, size in zip(leading, weights.shape, strict=False)
        ):
            raise ShapeError(
                f"A codebook with edges {list(self.edges.shape)} does not fit weights {list(weights.shape)}; "
                "its leading axes must be 1 or those of the weights."
            )
        own = [axis for axis, size in enumerate(leading) if size > 1]
        order = own + [axis for axis in range(weights.ndim) if axis not in own]
        return order, self.edges[..., 0].numel()

    def state(self) -> dict[str, Any]:
        """Everything in it as tensors and JSON values: ``Codebook(**state)`` is the same codebook."""
        fields = ("edges", "values", "name", "bits", "scope", "tie")
        return {name: getattr(self, name) for name in fields}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Codebook:
        """The inverse of :meth:`state`; refuses what is not a codebook."""
        known = {"edges", "values", "name", "bits", "scope", "tie"}
        if not (isinstance(state, Mapping) and {"edges", "values"} <= state.keys() <= known):
            raise ParameterError(f"A codebook has edges and values, not {shorten(state)}.")
        return cls(**state)


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def straight_through(weights: Tensor, values: Tensor) -> Tensor:
    """The ``values``, with a gradient as if those that are not zero were the ``weights`` themselves."""
    if not (weights.requires_grad and torch.is_grad_enabled()):
        return values
    return _StraightThrough.apply(weights, values)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(values != 0)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return gradients[0].masked_fill(~kept, 0.0), None
