"""Find every attention computation of a model by running it once on a small example."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..errors import AttrimError, SiteError
from ..select import Site
from . import install, interface
from .calls import allowed_by, allowed_in
from .example import make_example
from .softmax import PRODUCTS, SOFTMAX
from .table import Facts, facts, is_vision, role_of

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads", "nhead", "heads")
_FUSED_LAYERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer)


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


@dataclass
class Map:
    """A model's attention: its sites, and which module's which call each of them is."""

    root_reference: weakref.ReferenceType[nn.Module]
    sites: list[Site]
    events: dict[int, list[Site | None]]
    softmax_modules: set[int]
    fused_layers: set[int]
    configs: list[Any]
    facts: Facts

    @property
    def root(self) -> nn.Module | None:
        """The model itself."""
        return self.root_reference()

    def wrapped(self) -> list[nn.Module]:
        """The modules whose forward is wrapped while a context is active."""
        root = self.root
        assert root is not None
        wanted = self.softmax_modules | self.fused_layers | {id(root)}
        return [module for module in root.modules() if id(module) in wanted]


_maps: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Map]] = weakref.WeakKeyDictionary()
_recorders = threading.local()


def find_sites(model: nn.Module, example: Any = None) -> list[Site]:
    """List every attention computation of a model.

    Parameters
    ----------
    model : any ``nn.Module`` with attention.
    example : arguments of one forward pass (a dict of keyword arguments, or a tuple of positional ones). Only needed
        when attrim cannot make up an input from the model's configuration.

    Returns
    -------
    the sites in the order in which they run.
    """
    return list(map_of(model, example).sites)


def map_of(model: nn.Module, example: Any = None) -> Map:
    """The map of a model's attention, from a dry run that is remembered until the model's modules change."""
    layout = tuple(id(module) for module in model.modules())
    known = _maps.get(model)
    if known is not None and known[0] == layout and example is None:
        return known[1]
    found = _dry_run(model, example)
    _maps[model] = (layout, found)
    return found


def recorded(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None] | None:
    """Note a call of the attention interface and answer it with stock eager attention; None without a dry run."""
    recorder: Recorder | None = getattr(_recorders, "current", None)
    if recorder is None:
        return None
    allowed = allowed_by(attention_mask, (query.shape[-2], key.shape[-2]), query.device)
    recorder.events.append(_event(module, "interface", query.shape[1], allowed))
    recorder.paused = True  # the stock function's own softmax is this event, not another one
    try:
        return interface.eager(module)(
            module, query, key, value, interface.additive(attention_mask, query.dtype), **arguments
        )
    finally:
        recorder.paused = False


class Recorder(TorchFunctionMode):
    """Notes every softmax over keys, the module it happens in, and whether a product consumes its result."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.stack: list[nn.Module] = []
        self.paused = False
        self._open: list[tuple[Event, Tensor]] = []

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
        fits = scores.ndim == 3 or scores.shape[-3] == heads
        allowed = allowed_in(scores.reshape(-1, heads, *scores.shape[-2:])) if fits else None
        event = _event(module, "softmax", heads, allowed) if allowed is not None else None
        if event is None:
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


def _dry_run(model: nn.Module, example: Any) -> Map:
    row = facts(getattr(getattr(model, "config", None), "model_type", None))
    if row.unreachable:
        name = model.config.model_type  # type: ignore[union-attr]
        raise SiteError(f"The attention of {name} cannot be reached: {row.unreachable}; use another architecture.")
    configs = interface.switchable(model)
    if configs:
        interface.register()
    recorder = Recorder()
    with _everything_quiet(model), _module_stack(model, recorder.stack):
        inputs = make_example(model) if example is None else example
        install.switch(configs)
        _recorders.current = recorder
        try:
            with recorder, torch.inference_mode():
                _call(model, inputs)
        except AttrimError:
            raise
        except Exception as error:
            raise SiteError(_cannot_run(model, example, error)) from error
        finally:
            _recorders.current = None
            install.switch_back(configs)
    return _make_map(model, recorder.events, configs, row)


def _cannot_run(model: nn.Module, example: Any, error: Exception) -> str:
    what = "the given example" if example is not None else "a made-up example"
    cause = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return (
        f"{type(model).__name__} could not run on {what} ({cause}); pass example= with the arguments of a forward pass."
    )


def _call(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, Tensor):
        model(inputs)
    elif isinstance(inputs, (tuple, list)):
        model(*inputs)
    else:
        model(**inputs)


@contextlib.contextmanager
def _everything_quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout, no running averages) in the dry run; modes and random state as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    try:
        model.eval()
        with torch.random.fork_rng(devices=list(devices)):  # layer drop draws even in evaluation mode
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _module_stack(model: nn.Module, stack: list[nn.Module]) -> Iterator[None]:
    """Keep ``stack`` at the modules whose forward is running; torch's own small layers belong to their parent."""

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    handles = []
    for module in model.modules():
        own = type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.MultiheadAttention)
        if own and not list(module.children()):
            continue
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _make_map(model: nn.Module, events: list[Event], configs: list[Any], row: Facts) -> Map:
    names = {id(module): name for name, module in model.named_modules()}
    reached = [event for event in events if event.attention]
    for event in reached:
        if event.route.startswith("layout"):
            raise SiteError(
                f"The scores of {names.get(id(event.module), '?')} have the {event.route}, which does not show "
                f"{event.heads} heads; this architecture is not reachable yet."
            )
    if not reached:
        raise SiteError(
            f"No attention was seen in {type(model).__name__}: it neither calls the attention interface nor takes a "
            "softmax over keys that multiplies values; if it does on other inputs, pass example=."
        )
    towers = len({is_vision(names.get(id(event.module), "")) for event in reached}) == 2
    two_stacks = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    sites: list[Site] = []
    calls: dict[int, list[Site | None]] = {}
    layers: dict[str, int] = {}
    for event in events:
        identity = id(event.module)
        mine = calls.setdefault(identity, [])
        if not event.attention:
            mine.append(None)
            continue
        call = sum(site is not None for site in mine)
        name = names.get(identity, "") + (f"#{call}" if call else "")
        cross = event.queries != event.keys
        role = role_of(name, row, cross=cross, causal=event.causal, towers=towers, two_stacks=two_stacks)
        layer = layers.get(role, 0)
        layers[role] = layer + 1
        site = Site(name, role, layer, event.heads, call, event.route)
        mine.append(site)
        sites.append(site)
    softmax = {id(event.module) for event in events if event.route == "softmax"}
    fused = {id(module) for module in model.modules() if isinstance(module, _FUSED_LAYERS)}
    return Map(weakref.ref(model), sites, calls, softmax, fused, configs, row)
