"""Switch a model's attention to attrim and back, counted, so that overlapping contexts do not disturb it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..errors import SiteError
from .layers import layer_session, run_layer
from .session import active
from .softmax import run_private

NAME = "attrim"  # must not contain "flash", "sdpa" or "flex_attention", which transformers looks for in names

_lock = threading.Lock()
_configs: dict[int, list[Any]] = {}  # id -> [configuration, implementation before, how many contexts]
_modules: dict[int, list[Any]] = {}  # id -> [module, own forward attribute before or None, how many contexts]


def switch(configs: Iterable[Any]) -> None:
    """Let the configurations choose our attention function."""
    with _lock:
        for config in configs:
            entry = _configs.setdefault(id(config), [config, config._attn_implementation_internal, 0])
            entry[2] += 1
            config._attn_implementation_internal = NAME


def switch_back(configs: Iterable[Any]) -> None:
    """Undo one :func:`switch`; the last one restores the implementation from before."""
    with _lock:
        for config in configs:
            entry = _configs[id(config)]
            entry[2] -= 1
            if entry[2] == 0:
                config._attn_implementation_internal = entry[1]
                del _configs[id(config)]


def before(config: Any) -> str | None:
    """The implementation that a configuration names when no context is active."""
    entry = _configs.get(id(config))
    return entry[1] if entry else config._attn_implementation_internal


def wrap(modules: Iterable[nn.Module]) -> None:
    """Let :func:`run` stand before the forward of each module."""
    with _lock:
        for module in modules:
            entry = _modules.get(id(module))
            if entry is None:
                own = module.__dict__.get("forward")
                _modules[id(module)] = [module, own, 1]
                module.__dict__["forward"] = Wrapped(module, module.forward)
            else:
                entry[2] += 1


def unwrap(modules: Iterable[nn.Module]) -> None:
    """Undo one :func:`wrap`; the last one leaves the module as it was."""
    with _lock:
        for module in modules:
            entry = _modules[id(module)]
            entry[2] -= 1
            if entry[2] == 0:
                if entry[1] is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = entry[1]
                del _modules[id(module)]


class Wrapped:
    """What stands in place of a module's forward while a context is active."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module = module
        # What inspects a forward's signature (generate, Trainer, our own example maker) must still find it.
        self.__wrapped__ = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward through :func:`run`."""
        return run(self.module, self.__wrapped__, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module that is made inside of the context computes with its own weights, unedited."""
        own = _modules[id(self.module)][1]
        return type(self.module).forward.__get__(memo[id(self.module)]) if own is None else own

    def __reduce__(self) -> Any:
        raise SiteError("A model inside of attrim.edit cannot be pickled; leave the context first.")


def run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward of a wrapped module: a whole model, a layer, a module with a private softmax, or several."""
    for session in active.get():
        if session.map.root is module:
            session.start_pass()
    layer = layer_session(module)
    if layer is not None:
        return run_layer(*layer, lambda *a, **k: run_private(module, forward, a, k), args, kwargs)
    return run_private(module, forward, args, kwargs)
