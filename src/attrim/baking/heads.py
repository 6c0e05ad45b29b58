"""Attention with some heads gone and some fixed, on both routes.

On the interface route :class:`Baked` answers the module's attention function. A module with a private softmax computes
its own heads as before, and :class:`Beside` adds the constant ones.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import interface
from ..attention.architectures import Facts
from ..attention.masks import Factors, MaskFacts, Stream, make_call, note
from ..attention.session import Session, active_sessions
from ..core.call import Call
from ..core.site import Site
from ..core.tracing import is_symbolic
from ..errors import SiteError
from ..kernels.team import differentiates
from .constants import Constants
from .planning import Layer
from .projections import Projections

Attention = Callable[..., tuple[Tensor, Tensor | None]]


class Running(threading.local):
    """How far a pass of a baked model has come; every thread that runs the model has one of its own.

    Attributes
    ----------
    count : how often a module has attended, for its next site.
    streams : where self-attention leaves the positions that cross-attention needs, one for the whole model.
    """

    def __init__(self) -> None:
        self.count = 0
        self.streams: dict[str, Stream] = {}

    def __reduce__(self) -> Any:
        return type(self), ()


class Baked(nn.Module):
    """What an attention module on the interface route knows about its heads; it is the module's ``attrim_baked``.

    Heads that attend as before come first and constant heads after them, in the output and, unless groups of heads
    share them, in the values.

    Parameters
    ----------
    layer : which heads are kept and which are constant.
    keys, kept_values, constant_values : the entries on the head axis of keys and values that the heads use.
    running : what all modules of the model share in a pass.
    feeds_stream : whether cross-attention with constant heads needs the positions of this module's queries.
    """

    def __init__(
        self,
        layer: Layer,
        keys: Sequence[int],
        kept_values: Sequence[int],
        constant_values: Sequence[int],
        facts: Facts,
        running: Running,
        feeds_stream: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.keys, self.kept_values, self.constant_values = tuple(keys), tuple(kept_values), tuple(constant_values)
        self.facts = facts
        self.value_heads = max((*self.kept_values, *self.constant_values), default=-1) + 1
        self.running, self.own = running, Running()
        self.feeds_stream = feeds_stream
        self.calls = nn.ModuleList(Constants(shape, layer.outside) for shape in layer.shapes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A model that comes from a pickle is not cut again, and may be the first one of its process."""
        register()
        super().__setstate__(state)

    def attend(
        self,
        function: Attention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        causal: bool = False,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs ``[B, Q, H, D]``: ``function`` does the heads that attend, the matrices do the others.

        Parameters
        ----------
        function : an attention function of transformers' interface.
        causal : what the module's attention is when there is no mask.
        """
        place = self.own.count % len(self.layer.sites)
        self.own.count = place + 1
        weights = None
        kept, site = len(self.layer.kept), self.layer.sites[place]
        if query.shape[1] < kept or value.shape[1] < self.value_heads:
            raise SiteError(
                f"{site.name} was baked with {kept} heads that attend, and some of their queries or values are gone; "
                "remove heads with Gate(0), baked together with all other edits."
            )
        heads = kept + len(self.layer.constant)
        # Where no head attends, no session sees this call.
        listening = [] if kept else listeners(module)
        if self.calls or self.feeds_stream or listening:
            mask = MaskFacts.of(
                attention_mask,
                (query.shape[-2], key.shape[-2]),
                value.device,
                causal=causal,
                padding_sees_itself=self.facts.padding_sees_itself,
            )
            call, factors = read_call(site, mask, self.running.streams, value.shape[0])
            tell(listening, site, self.running.streams)
        if kept:
            bias = arguments.get("position_bias")
            if bias is not None and bias.shape[1] not in (1, kept):
                arguments["position_bias"] = _take(bias, self.layer.kept)
            keys, values = _take(key, self.keys), _take(value, self.kept_values)
            attending, weights = function(module, query[:, :kept], keys, values, attention_mask, **arguments)
            if not self.calls:
                return attending, weights
        if not heads:
            return query.new_zeros(query.shape[0], query.shape[2], 0, query.shape[3]), None
        constants, dropout = self.calls[place], float(arguments.get("dropout") or 0.0)
        value = _take(value, self.constant_values)
        if torch.is_grad_enabled() or not kept or differentiates(query, key, value) or is_symbolic():
            output = constants(value, call, factors, dropout)
            return torch.cat([attending, output], dim=2) if kept else output, weights
        output = value.new_empty(query.shape[0], query.shape[2], heads, value.shape[3])
        output[:, :, :kept] = attending
        constants(value, call, factors, dropout, output[:, :, kept:])
        return output, weights


def _take(tensor: Tensor, entries: tuple[int, ...]) -> Tensor:
    """Some entries of the head axis; a view where they follow each other."""
    if not entries or entries == tuple(range(entries[0], entries[0] + len(entries))):
        return tensor[:, entries[0] : entries[0] + len(entries)] if entries else tensor[:, :0]
    return tensor.index_select(1, torch.tensor(entries, device=tensor.device))


@functools.cache
def register() -> None:
    """Make the attention and mask functions of baked models known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(interface.BAKED["sdpa"], _with_sdpa)
    AttentionMaskInterface.register(interface.BAKED["sdpa"], _sdpa_mask)
    AttentionInterface.register(interface.BAKED["eager"], _with_eager)
    AttentionMaskInterface.register(interface.BAKED["eager"], interface.make_mask)


def _with_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    baked: Baked | None = getattr(module, "attrim_baked", None)
    if baked is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    asked = arguments.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
    causal = causal and attention_mask is None and query.shape[-2] > 1
    return baked.attend(sdpa_attention_forward, module, query, key, value, attention_mask, causal, **arguments)


def _with_eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    eager = interface.eager(module)
    mask = interface.additive(attention_mask, query.dtype)
    baked: Baked | None = getattr(module, "attrim_baked", None)
    if baked is None:
        return eager(module, query, key, value, mask, **arguments)
    return baked.attend(eager, module, query, key, value, mask, **arguments)


def _sdpa_mask(*, q_offset: Any = 0, kv_offset: Any = 0, **arguments: Any) -> Tensor | None:
    """The mask that SDPA gets, with the offsets of a cache noted; None only where the shapes imply the offsets."""
    from transformers.masking_utils import sdpa_mask

    implied = int(kv_offset) == 0 and int(q_offset) + arguments["q_length"] == arguments["kv_length"]
    arguments["allow_is_causal_skip"] = implied and arguments.get("allow_is_causal_skip", True)
    mask = sdpa_mask(q_offset=q_offset, kv_offset=kv_offset, **arguments)
    if mask is not None:
        note(mask, q_offset, kv_offset, arguments.get("attention_mask"))
    return mask


def read_call(site: Site, mask: MaskFacts, streams: dict[str, Stream], batch: int) -> tuple[Call, Factors | None]:
    """The call at a site, and the factors of its mask where every text starts at position 0 and there are any."""
    call = make_call(site, mask, streams, batch)
    if call.position or call.key_position or call.query_lead is not call.key_lead:
        return call, None
    return call, mask.factors


def listeners(module: Any) -> list[Session]:
    """The sessions of this thread that are about a module."""
    return [session for session in active_sessions() if module in session.map.modules]


def tell(sessions: Iterable[Session], site: Site, streams: dict[str, Stream]) -> None:
    """Tell sessions that see no call of self-attention where its tokens are, which their cross-attention asks."""
    if site.streams[0] == site.streams[1]:
        for session in sessions:
            session.streams[site.streams[0]] = streams[site.streams[0]]


class Beside(nn.Module):
    """The constant heads of a module with a private softmax; it is the module's ``attrim_baked``.

    Parameters
    ----------
    layer : which heads are kept and which are constant.
    value : the projection to the values of the constant heads.
    """

    def __init__(self, layer: Layer, value: nn.Linear, row: Projections, facts: Facts, running: Running) -> None:
        super().__init__()
        self.layer, self.row, self.facts = layer, row, facts
        self.running, self.own = running, Running()
        self.value = value
        self.calls = nn.ModuleList(Constants(shape, layer.outside) for shape in layer.shapes)

    def forward(
        self, states: Tensor, queries: int, mask: Tensor | None, dropout: float, listening: Sequence[Session]
    ) -> Tensor:
        """The joined outputs ``[B, Q, C x D]`` of the constant heads from states ``[B, K, hidden]``.

        Parameters
        ----------
        listening : see :func:`tell`.
        """
        place = self.own.count % len(self.layer.sites)
        self.own.count = place + 1
        facts = MaskFacts.of(
            mask,
            (queries, states.shape[1]),
            states.device,
            padding_sees_itself=self.facts.padding_sees_itself,
            one_is_real=self.row.real_is_one,
        )
        site = self.layer.sites[place]
        call, factors = read_call(site, facts, self.running.streams, states.shape[0])
        tell(listening, site, self.running.streams)
        value = self.value(states).unflatten(-1, (len(self.layer.constant), -1)).transpose(1, 2)
        return self.calls[place](value, call, factors, dropout).flatten(2)


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
        listening = [] if beside.layer.kept else listeners(self)
        constant = beside(given[beside.row.states], queries, given.get("attention_mask"), dropout, listening)
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
def _signature(kind: type) -> inspect.Signature:
    stock = next(cls for cls in kind.__mro__ if "forward" in vars(cls) and issubclass(cls, nn.Module))
    return inspect.signature(stock.forward)


def _arguments(kind: type, module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by their names, without the module itself."""
    given = _signature(kind).bind(module, *args, **kwargs).arguments
    given.pop("self")
    return given
