"""Layers: the blocks of a model around its self-attention, whose inputs and outputs are hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.call import Call
from ..core.plan import Plan
from ..core.site import Site
from ..errors import SiteError
from .masks import Stream
from .session import Session, active_sessions


def layers_of(model: nn.Module, sites: Sequence[Site]) -> WeakKeyDictionary[nn.Module, list[Site]]:
    """The self-attention sites of every layer module, in the order of their calls.

    A layer is the outermost member of a list of modules on the way from the model to the attention. Members that hold
    the self-attention of several streams (LXMERT's cross layers) are left out, because their inputs and outputs do not
    say which stream each tensor belongs to.
    """
    found: dict[nn.Module, list[Site]] = {}
    for site in sites:
        query, key = site.streams
        parts = site.path.split(".")
        for end in range(1, len(parts) + 1):
            parent = model.get_submodule(".".join(parts[: end - 1]))
            if query == key and isinstance(parent, (nn.ModuleList, nn.Sequential)):
                found.setdefault(model.get_submodule(".".join(parts[:end])), []).append(site)
                break
    return WeakKeyDictionary({layer: own for layer, own in found.items() if len({site.role for site in own}) == 1})


def check_layers(layers: Mapping[nn.Module, list[Site]], plans: dict[Site, Plan]) -> None:
    """Refuse edits and stats of hidden states that would find no layer to act on."""
    known = {site for own in layers.values() for site in own}
    touched = [site for site, plan in plans.items() if touches_layers(plan)]
    for site in touched:
        query, key = site.streams
        if query == key and site not in known:
            raise SiteError(
                f"{site.name} has no layer of its own whose hidden states could be edited or watched; "
                "choose other sites with select=Select(names=...)."
            )
    if touched and not known.intersection(touched):
        raise SiteError(
            "An edit or stat of hidden states selects no layer; select self-attention sites: each one means its layer."
        )


def run_layer(
    session: Session, site: Site, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a layer's forward with its input and output edited and watched."""
    plan = session.plans[site]
    hidden, put = _input(site, args, kwargs)
    edited = plan.layer("layer_input", hidden, _call(site, hidden, None))
    args, kwargs = put(edited)
    result = forward(*args, **kwargs)
    # By now the layer's own attention has found out which tokens are real.
    stream = session.streams.get(site.streams[0])
    plan.watch("layer_input", *_rows(site, edited, stream))
    output, replace = _output(site, result)
    output = plan.layer("layer_output", output, _call(site, output, stream))
    plan.watch("layer_output", *_rows(site, output, stream))
    return replace(output)


def layer_session(module: nn.Module) -> tuple[Session, Site] | None:
    """The innermost active session that edits or watches hidden states at this layer, and the layer's site."""
    chosen: tuple[Session, Site] | None = None
    for session in active_sessions():
        site = session.next_layer(module)
        if site is None or not touches_layers(session.plans.get(site, Plan())):
            continue
        if chosen is not None:
            raise SiteError(f"Two contexts change the hidden states at {site.name}; put their edits into one context.")
        chosen = session, site
    return chosen


def touches_layers(plan: Plan) -> bool:
    """Whether a plan edits or watches hidden states."""
    return plan.touches("layer_input") or plan.touches("layer_output")


def _input(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Callable[[Tensor], Any]]:
    if args and isinstance(args[0], Tensor):
        return args[0], lambda hidden: ((hidden, *args[1:]), kwargs)
    if isinstance(kwargs.get("hidden_states"), Tensor):
        return kwargs["hidden_states"], lambda hidden: (args, {**kwargs, "hidden_states": hidden})
    raise SiteError(f"The layer of {site.name} gets no hidden states that attrim recognises; leave it out with Select.")


def _output(site: Site, result: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    if isinstance(result, Tensor):
        return result, lambda hidden: hidden
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0], lambda hidden: type(result)((hidden, *result[1:]))
    raise SiteError(
        f"The layer of {site.name} returns no hidden states that attrim recognises; leave it out with Select."
    )


def _rows(site: Site, hidden: Tensor, stream: Stream | None) -> tuple[Tensor, Call]:
    """Hidden states ``[B, L, D]`` (or ``[L, B, D]`` as XLNet has them) as ``[B, 1, L, D]``, and their call."""
    if stream is not None and hidden.shape[1] != stream.real.shape[1] == hidden.shape[0]:
        hidden = hidden.transpose(0, 1)
    return hidden[:, None], _call(site, hidden, stream)


def _call(site: Site, hidden: Tensor, stream: Stream | None) -> Call:
    """A call whose one "head" is the whole layer and whose allowed cells are the real tokens."""
    length = hidden.shape[1]
    real = torch.ones(1, length, dtype=torch.bool, device=hidden.device)
    if stream is not None and stream.real.shape[1] == length:
        real = stream.real
    one = dataclasses.replace(site, heads=1)
    return Call(site=one, allowed=real[:, None, :, None], queries=real, keys=real, heads=(0,))
