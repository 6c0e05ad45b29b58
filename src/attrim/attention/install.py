"""Switch a model's attention to attrim and back, counted, so that overlapping contexts do not disturb it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SiteError
from .example import TARGET_MASKS
from .layers import layer_session, run_layer
from .session import Session, active_sessions, only
from .softmax import run_private

NAME = "attrim"  # must not contain "flash", "sdpa" or "flex_attention", which transformers looks for in names

# Garbage collection may leave a forgotten context in the thread that is just entering another one.
_lock = threading.RLock()
# The entries keep what they are about alive, so that no other object gets its id meanwhile.
_configs: dict[int, list[Any]] = {}  # id -> [configuration, implementation before, how many contexts]
_modules: dict[tuple[int, str], list[Any]] = {}  # id, attribute -> [module, its own one before, how many contexts]

IMPLEMENTATION = "_attn_implementation_internal"
"""The attribute of a configuration that names its attention function."""
IGNORED = -100  # the label of a target step that no loss counts
FORWARD = "forward"
CHECKPOINT = "_gradient_checkpointing_func"  # where transformers keeps it, in each module that uses it


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
            key, current = id(config), _implementation(config)
            # No call between look-up and change, in which garbage collection could run.
            if key in _configs:
                _configs[key][2] += 1
            else:
                _configs[key] = [config, current, 1]
                object.__setattr__(config, IMPLEMENTATION, Switched(current))


def switch_back(configs: Iterable[Any]) -> None:
    """Undo one :func:`switch`; the last one restores the implementation from before."""
    with _lock:
        for config in configs:
            entry = _configs[id(config)]
            entry[2] -= 1
            if entry[2] == 0:
                object.__setattr__(config, IMPLEMENTATION, entry[1])
                del _configs[id(config)]


def before(config: Any) -> str | None:
    """The implementation that a configuration names when no context is active."""
    # As in _implementation, without another call in every layer.
    name: str | None = object.__getattribute__(config, IMPLEMENTATION)
    return name.before if isinstance(name, Switched) else name


def _implementation(config: Any) -> str | None:
    # A configuration looks every name up in a table of other names, which takes longer than all else here.
    name: str | None = object.__getattribute__(config, IMPLEMENTATION)
    return name


def switched() -> int:
    """How many configurations and modules are not as they were, because a context is active."""
    return len(_configs) + len(_modules)


@contextlib.contextmanager
def installed(session: Session) -> Iterator[None]:
    """Everything that lets the attention of a session's model come to attrim, in place."""
    # Without further context managers, because a baked model does this in every pass.
    found, modules = session.map, session.attachment.modules
    assert found.root is not None
    checkpointing = _checkpointing(found.root)
    switch(found.configs)
    try:
        _replace(FORWARD, modules, Wrapped)
        _replace(CHECKPOINT, checkpointing, Remembering)
        try:
            yield
        finally:
            _put_back(CHECKPOINT, checkpointing)
            _put_back(FORWARD, modules)
    finally:
        switch_back(found.configs)


@contextlib.contextmanager
def replaced(attribute: str, modules: Sequence[nn.Module], make: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """An attribute of the modules replaced by what ``make(module, attribute)`` gives; the last context puts it back."""
    _replace(attribute, modules, make)
    try:
        yield
    finally:
        _put_back(attribute, modules)


def _replace(attribute: str, modules: Sequence[nn.Module], make: Callable[[nn.Module, Any], Any]) -> None:
    with _lock:
        for module in modules:
            key = id(module), attribute
            if key in _modules:
                _modules[key][2] += 1
            else:
                _modules[key] = [module, module.__dict__.get(attribute), 1]
                module.__dict__[attribute] = make(module, getattr(module, attribute))


def _put_back(attribute: str, modules: Sequence[nn.Module]) -> None:
    with _lock:
        for module in modules:
            entry = _modules[id(module), attribute]
            entry[2] -= 1
            if entry[2] == 0:
                if entry[1] is None:
                    del module.__dict__[attribute]
                else:
                    module.__dict__[attribute] = entry[1]
                del _modules[id(module), attribute]


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
        own = _modules[id(self.module), FORWARD][1]
        return type(self.module).forward.__get__(memo[id(self.module)]) if own is None else copy.deepcopy(own, memo)

    def __reduce__(self) -> Any:
        raise SiteError("A model inside of attrim.edit cannot be pickled; leave the context first.")

    @property
    def __code__(self) -> Any:
        """Asked for by ``torch.export``, which does not see what a context adds to the model's own code."""
        raise SiteError(
            "A model inside of attrim.edit cannot be exported with torch.export; bake Gate, Constant, Mask or Window "
            "with attrim.bake and export that model, or leave the context first."
        )


def run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward of a wrapped module: a whole model, a layer, a module with a private softmax, or several."""
    beginning = [session for session in active_sessions() if session.map.root is module]
    for session in beginning:
        session.start_pass(real_targets(forward, args, kwargs))
    # Again, because it may have been enabled inside of the context.
    checkpointing = _checkpointing(module) if beginning else []
    layer = layer_session(module)
    try:
        with replaced(CHECKPOINT, checkpointing, Remembering) if checkpointing else contextlib.nullcontext():
            if layer is not None:
                return run_layer(*layer, lambda *a, **k: run_private(module, forward, a, k), args, kwargs)
            return run_private(module, forward, args, kwargs)
    finally:
        for session in beginning:
            session.end_pass()


def real_targets(forward: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
    """Bool ``[B, T]``: the real target steps that a whole model is called with; None when the call does not say."""
    if args:
        names = _parameter_names(forward)
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in TARGET_MASKS:
        mask = kwargs.get(name)
        if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.is_floating_point():
            return mask.detach().bool()
    labels = kwargs.get("labels")
    if isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point():
        return labels.detach() != IGNORED
    return None


def _parameter_names(forward: Callable[..., Any]) -> Sequence[str]:
    """The names of a forward's parameters, without ``self``."""
    if isinstance(forward, types.MethodType):
        return _names(forward.__func__)[1:]
    return list(inspect.signature(forward).parameters)


@functools.lru_cache(maxsize=64)
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _checkpointing(model: nn.Module) -> list[nn.Module]:
    """The modules that run parts of the model again in the backward pass instead of keeping what they computed."""
    if not (model.training and torch.is_grad_enabled()):
        return []
    return [module for module in model.modules() if CHECKPOINT in module.__dict__]


class Remembering:
    """What stands in place of a checkpoint function: what runs again in the backward pass is edited again.

    The backward pass may come after the context was left.
    """

    def __init__(self, module: nn.Module, checkpoint: Callable[..., Any]) -> None:
        self.module, self.checkpoint = module, checkpoint

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function under the checkpoint function."""
        sessions = active_sessions()
        return self.checkpoint(Again(function, sessions) if sessions else function, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_modules[id(self.module), CHECKPOINT][1], memo)


class Again:
    """A function that runs as it is the first time, and later as it did then: with the sessions that were active."""

    def __init__(self, function: Callable[..., Any], sessions: Sequence[Session]) -> None:
        self.function = function
        self.sessions = [session.repeated() for session in sessions]
        self.models = [session.map.root for session in sessions]  # a loss does not keep its model alive
        self.ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        if not self.ran:
            self.ran = True
            return self.function(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            sessions = [session.repeated() for session in self.sessions]
            for session in sessions:
                stack.enter_context(installed(session))
            stack.enter_context(only(*sessions))
            return self.function(*args, **kwargs)
