"""Attention modules with a private softmax, cut to fewer heads: what their own code cannot know is done around it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..sites.calls import Stream
from ..sites.table import Facts
from .constants import Constants
from .plan import Layer
from .reading import read
from .table import Row


class Beside(nn.Module):
    """The constant heads of a module with a private softmax; it is the module's ``attrim_baked``.

    Parameters
    ----------
    layer : which heads are kept and which are constant.
    value : the projection to the values of the constant heads.
    """

    def __init__(self, layer: Layer, value: nn.Linear, row: Row, facts: Facts, streams: dict[str, Stream]) -> None:
        super().__init__()
        self.layer, self.row, self.facts, self.streams = layer, row, facts, streams
        self.value = value
        self.calls = nn.ModuleList(Constants(shape, layer.outside) for shape in layer.shapes)
        self.count = 0

    def forward(self, states: Tensor, queries: int, mask: Tensor | None, dropout: float) -> Tensor:
        """The joined outputs ``[B, Q, C x D]`` of the constant heads from states ``[B, K, hidden]``."""
        place = self.count % len(self.layer.sites)
        self.count = place + 1
        if mask is not None and self.row.real_is_one:
            known = getattr(mask, "attrim_boolean", None)
            if known is None:
                known = mask.attrim_boolean = mask.bool()  # type: ignore[attr-defined]
            mask = known
        shape = queries, states.shape[1]
        reading = read(mask, shape, states.device, self.layer.sites[place], self.facts, self.streams)
        value = self.value(states).unflatten(-1, (len(self.layer.constant), -1)).transpose(1, 2)
        return self.calls[place](value, reading, dropout).flatten(2)


class WithConstants:
    """Mixed into a module's class: its own heads first, the constant ones after them."""

    attrim_baked: Beside

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The module's result, with the constant heads joined to its heads."""
        beside = self.attrim_baked
        given = _arguments(type(self), self, args, kwargs)
        asked = given.get("query_states")
        queries = (given["hidden_states"] if asked is None else asked).shape[1]
        dropout = self.dropout.p if self.training else 0.0  # type: ignore[attr-defined]
        constant = beside(given[beside.row.states], queries, given.get("attention_mask"), dropout)
        if not beside.layer.kept:
            return (constant, None) if beside.row.weights_follow else (constant,)
        result = super().forward(*args, **kwargs)  # type: ignore[misc]
        return torch.cat([result[0], constant], dim=-1), *result[1:]


class WithBias:
    """Mixed into a module's class: a position bias that is made for all heads, reduced to those that are left."""

    attrim_bias: tuple[str, int, tuple[int, ...]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        name, heads, kept = self.attrim_bias
        given = _arguments(type(self), self, args, kwargs)
        bias = given[name]
        if bias is not None:
            given[name] = bias.unflatten(0, (-1, heads))[:, list(kept)].flatten(0, 1)
        more = given.pop("kwargs", {})
        return super().forward(**given, **more)  # type: ignore[misc]


@functools.cache
def mixed(mixin: type, stock: Any) -> Any:
    """The class of an attention module with one of the above mixed in, under its own name."""
    return type(stock.__name__, (mixin, stock), {"__module__": stock.__module__})


@functools.cache
def _signature(kind: type) -> inspect.Signature:
    stock = next(cls for cls in kind.__mro__ if "forward" in vars(cls) and issubclass(cls, nn.Module))
    return inspect.signature(stock.forward)


def _arguments(kind: type, module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by their names, without the module itself."""
    given = _signature(kind).bind(module, *args, **kwargs).arguments
    given.pop("self")
    return given
