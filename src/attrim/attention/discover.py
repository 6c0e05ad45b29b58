"""Find every attention computation of a model by running it once on a small example."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from ..core.modes import in_mode, own_memory, weights_missing
from ..core.processor import prepare_for
from ..core.site import Site
from ..errors import AttrimError, SiteError, require_model
from ..kernels import team
from . import install, interface
from .architectures import Facts, facts, has_two_stacks, is_vision, role_of
from .example import make_example, run_example, shortened
from .layers import layers_of
from .recorder import Event, Recorder
from .session import only

_FUSED_LAYERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer)


@dataclass
class Map:
    """A model's attention: its sites, and which module's which call each of them is.

    Modules are referred to weakly, by themselves: a map must not keep its model alive, and the address of a module that
    was freed may soon be that of another.
    """

    root_reference: weakref.ReferenceType[nn.Module]
    layout: tuple[weakref.ReferenceType[nn.Module] | None, ...]
    sites: list[Site]
    events: WeakKeyDictionary[nn.Module, list[Site | None]]
    modules: WeakSet[nn.Module]
    layers: WeakKeyDictionary[nn.Module, list[Site]]
    softmax_modules: WeakSet[nn.Module]
    fused_layers: WeakSet[nn.Module]
    configs: list[Any]
    facts: Facts

    @property
    def root(self) -> nn.Module | None:
        """The model itself."""
        return self.root_reference()

    @torch.compiler.disable
    def fits(self, model: nn.Module) -> bool:
        """Whether the model still consists of the modules that it had in the dry run."""
        # A baked model asks in every pass.
        if team.available():
            from ..kernels import _compiled

            return _compiled.same_modules(model, self.layout, LEAVES)
        return [None if known is None else known() for known in self.layout] == all_modules(model)

    def wrapped(self, layers: bool) -> list[nn.Module]:
        """The modules whose forward is wrapped while a context is active (that of layers only when they matter)."""
        root = self.root
        assert root is not None
        return [
            module
            for module in root.modules()
            if module is root
            or module in self.softmax_modules
            or module in self.fused_layers
            or (layers and module in self.layers)
        ]


LEAVES = frozenset((nn.Linear, nn.LayerNorm, nn.Dropout, nn.Embedding))
"""Modules that no model puts others into: most of them. Looking into each takes long in a pass over a short text."""


def all_modules(model: nn.Module) -> list[nn.Module | None]:
    """All modules of a model in a fixed order, shared ones as often as they are there, None where one was left out.

    Nothing is looked for inside of :data:`LEAVES`.
    """
    found: list[nn.Module | None] = [model]
    for module in found:  # grows meanwhile
        if module is not None and type(module) not in LEAVES and module._modules:
            found.extend(module._modules.values())
    return found


_dry_runs = threading.RLock()  # a model may enter a context of its own while it runs
_maps: WeakKeyDictionary[nn.Module, Map] = WeakKeyDictionary()


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
    """The map of a model's attention, from a dry run that is remembered until the model's modules change.

    A module that wraps a model stands for that model (:func:`root_of`), so that sites keep their names.
    """
    require_model(model)
    model = root_of(model)
    if weights_missing(model):
        raise SiteError(
            f"The weights of {type(model).__name__} are on the meta device, which holds no numbers; load the model "
            "with from_pretrained first."
        )
    prepare_for(model)
    with _dry_runs:
        known = _maps.get(model)
        if known is not None and example is None and known.fits(model):
            return known
        found = _maps[model] = _dry_run(model, example)
        return found


def is_mapped(model: nn.Module) -> bool:
    """Whether the attention of a model is known already, so that no dry run is needed."""
    known = _maps.get(root_of(model))
    return known is not None and known.fits(root_of(model))


def knows_map(model: nn.Module, found: Map) -> bool:
    """Whether a map is the one that contexts on a model use."""
    return _maps.get(model) is found and found.fits(model)


def root_of(model: nn.Module) -> nn.Module:
    """The model whose attention is meant: that inside of a model of PEFT, and what has it as ``attention_root``."""
    if type(model).__module__.partition(".")[0] == "peft" and hasattr(model, "get_base_model"):
        model = model.get_base_model()  # type: ignore[operator]  # torch types every attribute as a tensor or module
    root: nn.Module = getattr(model, "attention_root", model)
    return root


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
        try:
            # Outer contexts neither edit nor watch the dry run.
            with only(), recorder, torch.inference_mode():
                run_example(model, inputs)
            _tell_sequences_apart(model, inputs, recorder)
        except AttrimError:
            raise
        except Exception as error:
            raise SiteError(_cannot_run(model, example, error)) from error
        finally:
            install.switch_back(configs)
    return _make_map(model, recorder.events, configs, row)


def _tell_sequences_apart(model: nn.Module, inputs: Any, recorder: Recorder) -> None:
    """Mark the attention between two sequences of the same length, as in copying: one can be cut without the other.

    Only for models that say nothing about themselves, or that they have an encoder and a decoder.
    """
    config = getattr(model, "config", None)
    alike = {event.queries for event in recorder.events if event.attention and event.queries == event.keys}
    if config is not None and not getattr(config, "is_encoder_decoder", False):
        return
    for inputs_of_one in (changed for length in alike for changed in shortened(inputs, length)):
        again = Recorder()
        again.stack = recorder.stack
        try:
            with only(), again, torch.inference_mode():
                run_example(model, inputs_of_one)
        except Exception:  # sequences that go together (a text and its mask) do not fit when one of them is cut
            recorder.stack.clear()
            continue
        if len(again.events) == len(recorder.events):
            for event, other in zip(recorder.events, again.events, strict=True):
                event.cross |= (other.queries == event.queries) != (other.keys == event.keys)


def _cannot_run(model: nn.Module, example: Any, error: Exception) -> str:
    what = "the given example" if example is not None else "a made-up example"
    cause = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return (
        f"{type(model).__name__} could not run on {what} ({cause}); pass example= with the arguments of a forward pass."
    )


@contextlib.contextmanager
def _everything_quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout, no running averages) in the dry run; modes and random state as before afterwards."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    # Random state too: layer drop draws even in evaluation mode.
    with in_mode(model, training=False), own_memory(model), torch.random.fork_rng(devices=list(devices)):
        yield


@contextlib.contextmanager
def _module_stack(model: nn.Module, stack: list[nn.Module]) -> Iterator[None]:
    """Keep ``stack`` at the modules whose forward is running; torch's own small layers belong to their parent."""
    here = threading.get_ident()  # another thread may be running the model for its own purposes

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            stack.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == here:
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


def _baked_sites(model: nn.Module) -> dict[str, Site]:
    """The sites that were baked, as they were before, by name: layers keep their numbers where others are gone.

    By the names with and without a head: a model that was baked with one may be loaded without.
    """
    return {
        ".".join(filter(None, (prefix, name))): site
        for prefix, module in model.named_modules()
        for layer in getattr(module, "attrim_layers", ())
        for site in layer.sites
        for name in site.aliases
    }


def _make_map(model: nn.Module, events: list[Event], configs: list[Any], row: Facts) -> Map:
    names = {module: name for name, module in model.named_modules()}
    reached = [event for event in events if event.attention]
    for event in reached:
        if event.route.startswith("layout"):
            raise SiteError(
                f"The scores of {names.get(event.module, '?')} have the {event.route}, which does not show "
                f"{event.heads} heads; this architecture is not reachable yet."
            )
    # A baked model may have no head left that attends.
    if not reached and not any(hasattr(module, "attrim_baked") for module in model.modules()):
        raise SiteError(
            f"No attention was seen in {type(model).__name__}: it neither calls the attention interface nor takes a "
            "softmax over keys that multiplies values; if it does on other inputs, pass example=."
        )
    towers = len({is_vision(names.get(event.module, "")) for event in reached}) == 2
    config = getattr(model, "config", None)
    two_stacks = getattr(config, "is_encoder_decoder", None)
    if two_stacks is None:  # a plain module's paths are all there is to go by
        two_stacks = has_two_stacks(names.get(event.module, "") for event in reached)
    sites: list[Site] = []
    calls: WeakKeyDictionary[nn.Module, list[Site | None]] = WeakKeyDictionary()
    baked = _baked_sites(model)
    layers: dict[str, int] = {}
    for event in events:
        mine = calls.setdefault(event.module, [])
        if not event.attention:
            mine.append(None)
            continue
        call = sum(site is not None for site in mine)
        name = names.get(event.module, "") + (f"#{call}" if call else "")
        # A single stack may pool its keys (CvT, SegFormer); only two sequences make cross-attention.
        cross = event.cross or (event.queries != event.keys and (two_stacks or config is None))
        role = role_of(name, row, cross=cross, causal=event.causal, towers=towers, two_stacks=two_stacks)
        if name in baked:
            role, layer = baked[name].role, baked[name].layer
        else:
            taken = {other.layer for other in baked.values() if other.role == role}
            layer = next(number for number in itertools.count(layers.get(role, 0)) if number not in taken)
            layers[role] = layer + 1
        backbone = str(getattr(model, "base_model_prefix", ""))
        site = Site(name, role, layer, event.heads, call, event.route, backbone)
        mine.append(site)
        sites.append(site)
    modules = list(model.modules())
    return Map(
        root_reference=weakref.ref(model),
        layout=tuple(None if module is None else weakref.ref(module) for module in all_modules(model)),
        sites=sites,
        events=calls,
        modules=WeakSet(modules),
        layers=layers_of(model, sites),
        softmax_modules=WeakSet(event.module for event in events if event.route == "softmax"),
        fused_layers=WeakSet(module for module in modules if isinstance(module, _FUSED_LAYERS)),
        configs=configs,
        facts=row,
    )
