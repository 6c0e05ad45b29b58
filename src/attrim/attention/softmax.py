"""The softmax route: see and change the attention softmax inside a module, whatever the module's code is."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from ..core.call import Call
from ..core.plan import Softmax, guarded_softmax
from ..core.site import Site
from ..errors import SiteError
from .masks import MaskFacts, allowed_in
from .session import Firing, active_sessions

Attention = Callable[[Tensor, Softmax], Tensor]

SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
PRODUCTS = {
    torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum, torch.baddbmm, Tensor.baddbmm,
}  # fmt: skip

_modes = threading.local()


class SoftmaxMode(TorchFunctionMode):
    """While active, hands every softmax over the last axis to ``attention`` and every product to ``product``.

    Parameters
    ----------
    attention : called with the scores and the stock softmax as a function of scores; returns the weights.
    product : called with the product of weights and values; returns the result to use. When None, the weights are
        not followed to that product.
    """

    def __init__(
        self,
        attention: Attention,
        product: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.product = product
        self._follow: Tensor | None = None

    def __enter__(self) -> SoftmaxMode:
        stack = _modes.__dict__.setdefault("stack", [])
        stack.append(self)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        _modes.stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _modes.stack[-1] is not self:  # an attention module inside another one answers for itself
            return func(*args, **kwargs)
        if func in SOFTMAX:
            return self._softmax(func, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            output = scaled_dot_product_attention(self.attention, *args, **kwargs)
            return output if self.product is None else self.product(output)
        if func is functional.multi_head_attention_forward:
            return multi_head_attention(self.attention, args, kwargs)
        result = func(*args, **kwargs)
        return result if self._follow is None else self._followed(func, args, result)

    def _softmax(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scores = args[0] if args else kwargs.pop("input")
        rest = args[1:]
        dim = kwargs.get("dim", rest[0] if rest else None)
        if dim is None or dim % scores.ndim != scores.ndim - 1 or scores.ndim < 3:
            return func(scores, *rest, **kwargs)
        # The last axis by its negative number, because the scores may come back with an axis more for the heads.
        rest, kwargs = ((-1, *rest[1:]), kwargs) if rest else ((), {**kwargs, "dim": -1})
        weights = self.attention(scores, lambda tensor: func(tensor, *rest, **kwargs))
        if self.product is not None:
            self._follow = weights
        return weights

    def _followed(self, func: Any, args: tuple[Any, ...], result: Any) -> Any:
        """Follow the weights through dropout, casts and reshapes to the product with the values."""
        flat = args[1] if func is torch.einsum and len(args) == 2 and isinstance(args[1], (tuple, list)) else args
        if not any(arg is self._follow for arg in flat) or not isinstance(result, Tensor):
            return result
        if func in PRODUCTS:
            self._follow = None
            return self.product(result) if self.product is not None else result
        if self._follow is not None and result.numel() == self._follow.numel():
            self._follow = result
        return result


def run_private(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a module's forward with its private softmax edited and watched; a module without one runs as it is."""
    sessions = active_sessions()
    if not any(module in session.map.softmax_modules for session in sessions):
        if any(module in session.map.fused_layers for session in sessions):
            # Torch uses its fused kernel, which hides the attention, only while no function mode is active.
            with BaseTorchFunctionMode():
                return forward(*args, **kwargs)
        return forward(*args, **kwargs)
    current: list[tuple[Firing, Call]] = []

    def attention(scores: Tensor, function: Softmax) -> Tensor:
        firing = Firing(module)
        current.clear()
        if firing.site is None:
            return function(scores)
        heads = as_heads(scores, firing.site.heads, firing.site.name)
        mask = MaskFacts(
            allowed_in(heads),
            offsets=firing.offsets(*heads.shape[-2:]),
            padding_sees_itself=firing.architecture.padding_sees_itself,
        )
        call = firing.call(mask, heads.shape[0])
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


def scaled_dot_product_attention(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The plain form of torch's fused attention, with the softmax handed to ``attention``; ``[..., Q, D]``."""
    if enable_gqa:
        key, value = (side.repeat_interleave(query.shape[-3] // side.shape[-3], -3) for side in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        additive = attn_mask.dtype != torch.bool
        scores = scores + attn_mask if additive else scores.masked_fill(~attn_mask, float("-inf"))
    weights = attention(scores, guarded_softmax)
    return torch.dropout(weights, dropout_p, train=dropout_p > 0) @ value


def multi_head_attention(
    attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Torch's own multi-head attention, with the softmax handed to ``attention``.

    The stock function asks first whether a function mode is active and, if so, hands itself over whole. A copy of it
    whose globals say "no mode" runs the same code, every option included, and calls our softmax.
    """
    stock = functional.multi_head_attention_forward

    def softmax(scores: Tensor, dim: int) -> Tensor:
        return attention(scores, guarded_softmax)

    names = {**vars(functional), "has_torch_function": lambda tensors: False, "softmax": softmax}
    copy = types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    copy.__kwdefaults__ = stock.__kwdefaults__
    wanted = kwargs.get("need_weights", True)
    output, weights = copy(*args, **{**kwargs, "need_weights": True})
    return output, weights if wanted else None


def shows_heads(shape: Sequence[int], heads: int) -> bool:
    """Whether a tensor of this shape has its heads where :func:`as_heads` looks for them."""
    if len(shape) == 3:
        return shape[0] % heads == 0
    return heads in (shape[-3], shape[1])


def as_heads(scores: Tensor, heads: int, name: str) -> Tensor:
    """Scores of any known layout as ``[B, H, Q, K]``.

    Known are ``[..., H, Q, K]``, ``[B, H, ..., Q, K]`` (windows), ``[B*H, Q, K]`` and ``[B, Q, K]`` (one head).
    """
    if shows_heads(scores.shape, heads):
        if scores.ndim > 4 and scores.shape[-3] != heads:
            scores = scores.movedim(1, -3)
        return scores.reshape(-1, heads, *scores.shape[-2:])
    raise SiteError(
        f"The scores at {name} have the shape {tuple(scores.shape)}, which is not a layout of {heads} heads that "
        "attrim knows; leave the site out with Select(names=...) or report the architecture."
    )


def as_before(weights: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of :func:`as_heads`: ``[B, H, Q, K]`` in the layout that the scores had."""
    heads = weights.shape[1]
    if len(shape) > 4 and shape[-3] != heads:
        return weights.reshape(shape[0], *shape[2:-2], heads, *shape[-2:]).movedim(-3, 1)
    return weights.reshape(shape)
