"""The attention function of the interface route."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from ..core.call import Call
from ..core.plan import Softmax
from ..errors import SiteError
from . import install, interface
from .recorder import recorded
from .session import Firing
from .softmax import SoftmaxMode


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention function that models on the interface route call."""
    baked = getattr(module, "attrim_baked", None)
    if baked is None:
        return _attend(module, query, key, value, attention_mask, **arguments)
    # Heads that are constant for good are no site any more; the others are edited and watched as ever.
    return baked.attend(_attend, module, query, key, value, attention_mask, **arguments)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    dry = recorded(module, query, key, value, attention_mask, **arguments)
    if dry is not None:
        return dry
    eager = interface.eager(module)
    mask = interface.additive(attention_mask, query.dtype)
    firing = Firing(module)
    if firing.sessions and firing.site is not None:
        allowed = interface.allowed(attention_mask, query, key)
        offsets = getattr(attention_mask, "attrim_offsets", None)
        call = firing.call(allowed, offsets=offsets, query=query, key=key, value=value)
    if firing.idle:
        # No session in this thread, or nothing to do at this site: exactly what the model did before.
        if install.before(module.config) in ("sdpa", interface.BAKED["sdpa"]):
            from transformers.integrations.sdpa_attention import sdpa_attention_forward as eager
        return eager(module, query, key, value, mask, **arguments)
    plan = firing.plan
    if firing.fast and not plan.edits and not is_grad_enabled() and interface.is_standard(module, arguments):
        from ..kernels.attend import attend as fused

        output = fused(query, key, value, call, arguments.get("scaling"), plan.stats)
        if output is not None:
            return output, None
    for moment, tensor, real in (("query", query, call.queries), ("key", key, call.keys), ("value", value, call.keys)):
        if plan.touches(moment):
            plan.watch(moment, *_probe(tensor, real, call))
    seen = False

    def attention(scores: Tensor, function: Softmax) -> Tensor:
        nonlocal seen
        if seen:
            return function(scores)
        seen = True
        keys = key.shape[-2]
        if scores.shape[-1] == keys:
            return plan.weights(scores, call, function)
        # Attention sinks: extra columns after the keys take part in the softmax and are dropped by the model.
        weights = function(scores)
        if plan.touches("scores") or scores.shape[-1] < keys:
            raise SiteError(
                f"{call.site.name} has attention sinks, and an edit of scores does not support them; "
                "use an edit of weights, or leave the site out with Select(names=...)."
            )
        edited = plan.edited(weights[..., :keys], call)
        return nn.functional.pad(edited, (0, scores.shape[-1] - keys))

    with SoftmaxMode(attention):
        output, weights = eager(module, query, key, value, mask, **arguments)
    if not seen:
        raise SiteError(
            f"{call.site.name} ran without a softmax over keys, so nothing was edited or watched there; "
            "leave it out with Select(names=...) or report the architecture."
        )
    if plan.touches("output"):
        output = plan.output(output.transpose(1, 2), call).transpose(1, 2)
    return output, weights


def _probe(tensor: Tensor, real: Tensor, call: Call) -> tuple[Tensor, Call]:
    """Queries, keys or values ``[B, H, L, D]`` for stats, with the real tokens as allowed cells.

    Keys and values that groups of heads share are repeated, so that every head has its own.
    """
    tensor = tensor.repeat_interleave(len(call.heads) // tensor.shape[1], dim=1)
    return tensor, replace(call, allowed=real[:, None, :, None], queries=real, keys=real)
