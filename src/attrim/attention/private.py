"""The softmax route at work: modules with a private softmax, run under a mode that edits and watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..core.call import Call
from ..core.plan import Softmax
from ..core.site import Site
from ..errors import SiteError
from . import install
from .layers import layer_session, run_layer
from .masks import allowed_in
from .session import Firing, active
from .softmax import SoftmaxMode, as_before, as_heads


def run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Stand before the forward of a module that holds a private softmax, of a torch layer, or of a whole model."""
    sessions = active.get()
    for session in sessions:
        if session.map.root is module:
            session.start_pass()
    layer = layer_session(module)
    if layer is not None:
        return run_layer(*layer, lambda *a, **k: _attend(module, forward, a, k), args, kwargs)
    return _attend(module, forward, args, kwargs)


def _attend(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a module's forward with the softmax in it edited and watched, if it is one that has any."""
    sessions = active.get()
    if not any(id(module) in session.map.softmax_modules for session in sessions):
        if any(id(module) in session.map.fused_layers for session in sessions):
            return install.without_fast_path(forward, args, kwargs)
        return forward(*args, **kwargs)
    current: list[tuple[Firing, Call]] = []

    def attention(scores: Tensor, function: Softmax) -> Tensor:
        firing = Firing(module)
        current.clear()
        if firing.site is None:
            return function(scores)
        heads = as_heads(scores, firing.site.heads, firing.site.name)
        call = firing.call(allowed_in(heads))
        if firing.idle:
            return function(scores)
        current.append((firing, call))
        if any(firing.plan.touches(moment) for moment in ("query", "key", "value")):
            raise SiteError(
                f"{call.site.name} computes its attention in private, so queries, keys and values cannot be watched "
                "there; watch scores, weights or output, or leave the site out with Select(names=...)."
            )
        return as_before(firing.plan.weights(heads, call, function), scores.shape)

    def product(output: Tensor) -> Tensor:
        if not current:
            return output
        firing, call = current.pop()
        if not firing.plan.touches("output"):
            return output
        if output.shape[-2] != call.allowed.shape[-2]:
            raise SiteError(_no_output(call.site, f"laid out as {tuple(output.shape)}"))
        heads = as_heads(output, call.site.heads, call.site.name)
        return as_before(firing.plan.output(heads, call), output.shape)

    follow = any(plan.touches("output") for session in sessions for plan in session.plans.values())
    with SoftmaxMode(attention, product if follow else None):
        result = forward(*args, **kwargs)
    if follow and current and current[0][0].plan.touches("output"):
        raise SiteError(_no_output(current[0][1].site, "never seen before the heads are mixed"))
    return result


def _no_output(site: Site, why: str) -> str:
    return (
        f"The output of {site.name} is {why}, so its heads cannot be edited or watched there; "
        "use an edit of weights, or leave the site out with Select(names=...)."
    )
