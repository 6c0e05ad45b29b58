"""Note every softmax over keys that happens while a model runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .masks import allowed_by, allowed_in
from .softmax import PRODUCTS, SOFTMAX, as_heads, shows_heads

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads", "nhead", "heads")

_current = threading.local()


@dataclass
class Event:
    """One softmax over keys that the dry run saw (or one call of the attention interface)."""

    module: nn.Module
    route: str
    heads: int
    queries: int
    keys: int
    causal: bool
    attention: bool = True  # False for a softmax whose result no product consumed
    cross: bool = False  # True where queries and keys are known to be of two sequences of the same length


class Recorder(TorchFunctionMode):
    """Notes every softmax over keys, the module it happens in, and whether a product consumes its result."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.stack: list[nn.Module] = []
        self.paused = False
        self._open: list[tuple[Event, Tensor]] = []

    def __enter__(self) -> Recorder:
        _current.recorder = self
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        _current.recorder = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and self.stack:
            self._note_fused(*args, **kwargs)
        elif func is functional.multi_head_attention_forward and self.stack:
            self._note_multi_head(args, kwargs)
        result = func(*args, **kwargs)
        if func in SOFTMAX and self.stack:
            self._note_softmax(args, kwargs, result)
        elif self._open:
            self._note_use(func, args, result)
        return result

    def note_interface(self, module: nn.Module, heads: int, allowed: Tensor) -> None:
        """Note a call of the attention interface with the allowed cells ``[B|1, H|1, Q, K]``."""
        self.events.append(_event(module, "interface", heads, allowed))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Note nothing meanwhile."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def _note_fused(self, query: Tensor, key: Tensor, *rest: Any, **kwargs: Any) -> None:
        mask = kwargs.get("attn_mask", rest[1] if len(rest) > 1 else None)
        causal = bool(kwargs.get("is_causal", rest[3] if len(rest) > 3 else False))
        heads = query.shape[-3] if query.ndim > 3 else 1
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape[-4:])
        allowed = allowed_by(mask, (query.shape[-2], key.shape[-2]), query.device)
        event = _event(self.stack[-1], "softmax", heads, allowed)
        event.causal |= causal
        self.events.append(event)

    def _note_multi_head(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        query, key, heads = args[0], args[1], args[4]
        mask = kwargs.get("attn_mask")
        causal = mask is not None and bool((mask if mask.dtype == torch.bool else mask < 0).triu(1).any())
        self.events.append(Event(self.stack[-1], "softmax", heads, query.shape[0], key.shape[0], causal))

    def _note_softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None or scores.ndim < 3 or dim % scores.ndim != scores.ndim - 1:
            return
        module = self.stack[-1]
        known = head_count(module)
        heads = known or (scores.shape[-3] if scores.ndim > 3 else 1)
        if scores.ndim == 3 and scores.shape[0] % heads:
            heads = 1
        if shows_heads(scores.shape, heads):
            event = _event(module, "softmax", heads, allowed_in(as_heads(scores, heads, "")))
        else:
            event = Event(module, f"layout {tuple(scores.shape)}", heads, scores.shape[-2], scores.shape[-1], False)
        event.attention = False  # until a product consumes it
        self.events.append(event)
        self._open.append((event, result))

    def _note_use(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        flat = args[1] if func is torch.einsum and len(args) == 2 and isinstance(args[1], (tuple, list)) else args
        for place, (event, tensor) in enumerate(self._open):
            if any(arg is tensor for arg in flat):
                if func in PRODUCTS:
                    event.attention = True
                    del self._open[place]
                elif isinstance(result, Tensor):
                    self._open.append((event, result))  # dropout, casts, reshapes, slices
                return


def head_count(module: nn.Module) -> int | None:
    """The number of heads that a module says it has."""
    for name in _HEADS:
        value = getattr(module, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _event(module: nn.Module, route: str, heads: int, allowed: Tensor) -> Event:
    queries, keys = allowed.shape[-2:]
    future = torch.ones(queries, keys, dtype=torch.bool, device=allowed.device).triu(1 + keys - queries)
    causal = bool(future.any()) and not bool((allowed & future).any())
    return Event(module, route, heads, queries, keys, causal)


def current_recorder() -> Recorder | None:
    """The recorder of the dry run of this thread; None when there is none."""
    return getattr(_current, "recorder", None)
