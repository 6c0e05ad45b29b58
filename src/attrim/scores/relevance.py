"""Layer-wise relevance propagation (LRP): which share of an answer comes from where, layer by layer, down to the input.

The rules are those of https://arxiv.org/abs/2012.09838, each as the backward pass of an operation. While a
:class:`RelevanceMode` is active, the model's operations run with these in place of their gradients, so that autograd
hands down relevance: tensors that are copied, split, moved or selected need no rule, because what autograd does with
their gradients (sum, move) is right for relevance too. No model is changed and none is written anew.

Relevance begins at the seed that autograd is given and ends at the input of the first layer of each stream; what
comes before, embeddings and the projection of image regions, is not traversed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name

from ..attention.discover import map_of
from ..errors import SiteError

Rules = Literal["original", "safe"]
"""``original``: as published, where a divisor near zero may explode and an addition may turn the sign of a branch.
``safe``: the stabiliser has the sign of the divisor, and an addition shares by the plain quotient."""

EPSILON = 1e-9


def quotient(relevance: Tensor, divisor: Tensor, rules: Rules) -> Tensor:
    """Relevance through the divisor, stabilised; 0 where the divisor is."""
    step = EPSILON if rules == "original" else torch.where(divisor < 0, -EPSILON, EPSILON)
    # In place: attention maps are large, and every pass over them costs.
    shares = relevance / (divisor + step)
    return shares.masked_fill_(divisor == 0, 0)


class LinearRule(Function):
    """``x W^T + b``: shared by positive contributions (z+ rule); the bias takes none."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rules: Rules) -> Tensor:
        """Inputs ``[..., I]`` and weight ``[O, I]`` to ``[..., O]``; or a weight for each matrix, ``[..., O, I]``."""
        ctx.save_for_backward(inputs, weight)
        ctx.rules = rules
        return functional.linear(inputs, weight, bias) if weight.ndim == 2 else inputs @ weight.mT

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """Relevance ``[..., O]`` to that of the inputs."""
        inputs, weight = ctx.saved_tensors
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        above, below = inputs.clamp(min=0), inputs.clamp(max=0)
        contributions = (above @ positive.mT).add_(below @ negative.mT)
        shares = quotient(relevance, contributions, ctx.rules)
        return (shares @ positive).mul_(above).addcmul_(shares @ negative, below), None, None, None


class ProductRule(Function):
    """A product of two matrices that both carry relevance: half for each, shared by contributions."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, rules: Rules) -> Tensor:
        """``[..., M, K]`` and ``[..., K, N]`` to ``[..., M, N]``."""
        product = left @ right
        ctx.save_for_backward(left, right, product)
        ctx.rules = rules
        return product

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """Relevance of the product to that of both."""
        left, right, product = ctx.saved_tensors
        shares = quotient(relevance, product, ctx.rules).div_(2)
        of_left = (shares @ right.mT).sum_to_size(left.shape).mul_(left)
        of_right = (left.mT @ shares).sum_to_size(right.shape).mul_(right)
        return of_left, of_right, None


class SumRule(Function):
    """A sum of two tensors that both carry relevance: shared by their values.

    The original rules then rescale both so that their totals are positive and add up. Totals are those of each example.
    """

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor, rules: Rules) -> Tensor:
        """``[B, ...]`` each."""
        ctx.save_for_backward(one, other)
        ctx.rules = rules
        return one + other

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """Relevance of the sum to that of both."""
        one, other = ctx.saved_tensors
        shares = quotient(relevance, one + other, ctx.rules)
        parts = [one * shares, other * shares]
        if ctx.rules == "original":
            axes = tuple(range(1, relevance.ndim))
            totals = [part.sum(axes, keepdim=True) for part in parts]
            sizes = sum(total.abs() for total in totals)
            wanted = [relevance.sum(axes, keepdim=True) * quotient(total.abs(), sizes, "original") for total in totals]
            parts = [
                part * quotient(goal, total, "original")
                for part, goal, total in zip(parts, wanted, totals, strict=True)
            ]
        return parts[0].sum_to_size(one.shape), parts[1].sum_to_size(other.shape), None


class ScaleRule(Function):
    """An elementwise product of two tensors that both carry relevance (gated feed-forward layers): half for each."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        """Two tensors of any shapes that broadcast."""
        ctx.shapes = one.shape, other.shape
        return one * other

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """Half of the relevance to each."""
        return tuple((relevance / 2).sum_to_size(shape) for shape in ctx.shapes)


class IdentityRule(Function):
    """Relevance passes: softmax, norms, activations, scaling, and sums with what carries none."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, result: Tensor) -> Tensor:
        """The result of the operation, which has the shape of the inputs, or one they broadcast to."""
        ctx.shape, ctx.dtype = inputs.shape, inputs.dtype
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """The same relevance."""
        return relevance.sum_to_size(ctx.shape).to(ctx.dtype), None


class NoRule(Function):
    """An operation without a rule, which is an error only where relevance arrives."""

    @staticmethod
    def forward(ctx: Any, name: str, result: Tensor, *inputs: Tensor) -> Tensor:
        """The result of the operation."""
        ctx.name = name
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        """Refuse."""
        raise SiteError(_no_rule(ctx.name))


IDENTITY = {
    "softmax", "layer_norm", "rms_norm", "gelu", "relu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "neg",
}  # fmt: skip
"""Operations of one tensor that relevance passes."""
MOVES = {
    "get", "getitem", "setitem", "view", "view_as", "reshape", "reshape_as", "transpose", "permute", "movedim", "t",
    "swapaxes", "contiguous", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to",
    "repeat", "repeat_interleave", "tile", "split", "tensor_split", "chunk", "unbind", "cat", "stack", "select",
    "narrow", "gather", "index_select", "take_along_dim", "masked_fill", "where", "pad", "roll", "flip", "clone",
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "dropout", "detach", "requires_grad",
    "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
}  # fmt: skip
"""Operations that move, copy, choose or ignore numbers: what autograd does with gradients is right for relevance."""
ADD = {"add", "radd", "iadd"}
SCALE = {"mul", "rmul", "imul", "multiply"}
DIVIDE = {"div", "truediv", "itruediv", "divide"}
PRODUCT = {"matmul", "bmm", "mm"}


class RelevanceMode(TorchFunctionMode):
    """While active, operations on tensors that carry relevance have the rules as their backward pass.

    Parameters
    ----------
    rules : which form of the rules.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        tensors = [item for item in _flat((args, kwargs)) if isinstance(item, Tensor) and item.requires_grad]
        name = getattr(func, "__name__", "").strip("_")
        if not tensors or not torch.is_grad_enabled() or name in MOVES:
            return func(*args, **kwargs)
        if func.__name__.endswith("_") and not func.__name__.startswith("_"):
            raise SiteError(_no_rule(func.__name__))  # its result takes the place of what the rules need
        rule = self._rule(name)
        result = NotImplemented if rule is None else rule(func, args, kwargs)
        if result is not NotImplemented:
            return result
        with torch.no_grad():
            result = func(*args, **kwargs)
        named = resolve_name(func) or name
        return _mapped(lambda found: NoRule.apply(named, found, *tensors), result)

    def _rule(self, name: str) -> Callable[[Any, Any, Any], Any] | None:
        if name == "linear":
            return self._linear
        if name == "addmm":
            return self._addmm
        if name in IDENTITY:
            return self._identity
        if name in ADD:
            return self._add
        if name in PRODUCT:
            return self._product
        if name in SCALE | DIVIDE:
            return self._scale if name in SCALE else self._divide
        return None

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Any:
        inputs, weight, bias = (*args, kwargs.get("bias"))[:3] if len(args) > 1 else (None, None, None)
        if weight is None or _carries(weight):
            return NotImplemented
        return LinearRule.apply(inputs, weight, bias, self.rules)

    def _addmm(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The linear layer of GPT-2, whose weight is ``[I, O]``."""
        if kwargs or len(args) != 3 or _carries(args[0]) or _carries(args[2]):
            return NotImplemented
        bias, inputs, weight = args
        return LinearRule.apply(inputs, weight.mT, bias, self.rules)

    def _identity(self, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = args[0] if args else kwargs["input"]
        kwargs = {**kwargs, "inplace": False} if "inplace" in kwargs else kwargs
        with torch.no_grad():
            result = func(*args, **kwargs)
        return IdentityRule.apply(inputs, result) if _carries(inputs) else result

    def _add(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 2:
            return NotImplemented
        if all(map(_carries, args)):
            return SumRule.apply(*args, self.rules)
        return self._beside(func, args)

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 2:
            return NotImplemented
        left, right = args
        if _carries(left) and _carries(right):
            return ProductRule.apply(left, right, self.rules) if min(left.ndim, right.ndim) > 1 else NotImplemented
        # A product with what carries none is linear in the other.
        alike = min(left.ndim, right.ndim) > 1 and left.shape[:-2] == right.shape[:-2]
        if _carries(left) and (alike or right.ndim == 2):
            return LinearRule.apply(left, right.mT, None, self.rules)
        return LinearRule.apply(right.mT, left, None, self.rules).mT if alike and _carries(right) else NotImplemented

    def _scale(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 2:
            return NotImplemented
        return ScaleRule.apply(*args) if all(map(_carries, args)) else self._beside(func, args)

    def _divide(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 2 or _carries(args[1]):
            return NotImplemented
        return self._beside(func, args)

    def _beside(self, func: Any, args: Any) -> Tensor:
        """Relevance passes to the one of two operands that carries any."""
        with torch.no_grad():
            result = func(*args)
        return IdentityRule.apply(args[0] if _carries(args[0]) else args[1], result)


class Relevance:
    """A model whose backward pass is relevance.

    Parameters
    ----------
    model : any model whose sites are found, in evaluation mode and with its parameters frozen.
    rules : which form of the rules.

    Attributes
    ----------
    sources : after a pass, the inputs ``[B, L, D]`` of the first layers, where relevance ends.
    """

    def __init__(self, model: nn.Module, rules: Rules = "original") -> None:
        self.rules = rules
        self.model = model
        self.sources: list[Tensor] = []

    def __call__(self, **inputs: Any) -> Any:
        """Run the model once."""
        self.sources.clear()
        with self._hooked(), RelevanceMode(self.rules):
            output = self.model(**inputs)
        if not self.sources:
            raise SiteError(
                f"{type(self.model).__name__} has no layers that attrim recognises, so it is not known where relevance "
                "ends; use the score 'gradient-attention'."
            )
        return output

    def totals(self, relevance: Sequence[Tensor | None]) -> Tensor:
        """How much relevance each example has at the sources, ``[B]``, from that of the sources."""
        return torch.stack([each.double().flatten(1).sum(1) for each in relevance if each is not None]).sum(0)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        here = threading.get_ident()  # another thread may be running the model for its own purposes
        layers = map_of(self.model).layers

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if threading.get_ident() != here:
                return None
            if args and isinstance(args[0], Tensor):
                return (self._source(args[0]), *args[1:]), kwargs
            if isinstance(kwargs.get("hidden_states"), Tensor):
                return args, {**kwargs, "hidden_states": self._source(kwargs["hidden_states"])}
            return None

        def whole(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            carries = threading.get_ident() == here and args and _carries(args[0]) and isinstance(output, Tensor)
            return IdentityRule.apply(args[0], output.detach()) if carries else None

        with ExitStack() as stack:
            for module in self.model.modules():
                handles = []
                if module in layers:
                    handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
                if _is_identity(module):
                    handles.append(module.register_forward_hook(whole))
                for handle in handles:
                    stack.callback(handle.remove)
            yield

    def _source(self, hidden: Tensor) -> Tensor:
        """The input of a layer; that of a first layer begins to carry relevance."""
        if hidden.requires_grad:
            return hidden
        source = hidden.detach().requires_grad_()
        self.sources.append(source)
        return source


def _is_identity(module: nn.Module) -> bool:
    """Activations and norms that are written as several operations, and are one to the rules."""
    kind = type(module)
    return kind.__module__ == "transformers.activations" or kind.__name__.endswith(("RMSNorm", "T5LayerNorm"))


def _no_rule(operation: str) -> str:
    return (
        f"Relevance arrives at the operation {operation}, which has no rule; use the score 'gradient-attention' (for "
        "maps, attention), or add a rule to attrim.scores.relevance."
    )


def _carries(item: Any) -> bool:
    return isinstance(item, Tensor) and item.requires_grad


def _flat(item: Any) -> Iterator[Any]:
    """What is in nested tuples, lists and dicts."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (tuple, list)):
        for part in item:
            yield from _flat(part)
    else:
        yield item


def _mapped(function: Callable[[Tensor], Tensor], result: Any) -> Any:
    """The function on every tensor of floating-point numbers in a result."""
    if isinstance(result, (tuple, list)):
        return type(result)(_mapped(function, part) for part in result)
    return function(result) if isinstance(result, Tensor) and result.is_floating_point() else result
