"""Switch a model's attention to attrim and back, counted, so that overlapping contexts do not disturb it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..errors import SiteError
from .layers import layer_session, run_layer
from .session import active_sessions
from .softmax import run_private

NAME = "attrim"  # must not contain "flash", "sdpa" or "flex_attention", which transformers looks for in names

# Garbage collection may leave a forgotten context in the thread that is just entering another one.
_lock = threading.RLock()
# The entries keep what they are about alive, so that no other object gets its id meanwhile.
_configs: dict[int, list[Any]] = {}  # id -> [configuration, implementation before, how many contexts]
_modules: dict[int, list[Any]] = {}  # id -> [module, own forward attribute before or None, how many contexts]


class Switched(str):
    """Our name as the implementation of a configuration; a copy of the configuration gets the implementation before.

    Parameters
    ----------
    before : the implementation that the configuration names when no context is active.
    """

    before: str | None

    def __new__(cls, before: str | None) -> Switched:  # noqa: D102
        name = super().__new__(cls, NAME)
        name.before = before
        return name

    def __deepcopy__(self, memo: dict[int, Any]) -> str | None:
        return self.before

    def __reduce__(self) -> Any:
        return copy.copy, (self.before,)


def switch(configs: Iterable[Any]) -> None:
    """Let the configurations choose our attention function."""
    with _lock:
        for config in configs:
            key, current = id(config), config._attn_implementation_internal
            # No call between look-up and change, in which garbage collection could run.
            if key in _configs:
                _configs[key][2] += 1
            else:
                _configs[key] = [config, current, 1]
                config._attn_implementation_internal = Switched(current)


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
    name: str | None = config._attn_implementation_internal
    return name.before if isinstance(name, Switched) else name


def switched() -> int:
    """How many configurations and modules are not as they were, because a context is active."""
    return len(_configs) + len(_modules)


def wrap(modules: Iterable[nn.Module]) -> None:
    """Let :func:`run` stand before the forward of each module."""
    with _lock:
        for module in modules:
            key = id(module)
            if key in _modules:
                _modules[key][2] += 1
            else:
                _modules[key] = [module, module.__dict__.get("forward"), 1]
                module.__dict__["forward"] = Wrapped(module, module.forward)


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
        return type(self.module).forward.__get__(memo[id(self.module)]) if own is None else copy.deepcopy(own, memo)

    def __reduce__(self) -> Any:
        raise SiteError("A model inside of attrim.edit cannot be pickled; leave the context first.")


def run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward of a wrapped module: a whole model, a layer, a module with a private softmax, or several."""
    for session in active_sessions():
        if session.map.root is module:
            session.start_pass()
    layer = layer_session(module)
    if layer is not None:
        return run_layer(*layer, lambda *a, **k: run_private(module, forward, a, k), args, kwargs)
    return run_private(module, forward, args, kwargs)
