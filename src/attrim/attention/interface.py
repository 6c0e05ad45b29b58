"""The interface route: one attention function and one mask function, registered with transformers under one name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.call import Call
from ..core.plan import Plan, Softmax
from ..core.tracing import is_symbolic
from ..errors import SiteError
from ..kernels import attend as kernel
from ..kernels.blocks import causal_edges
from . import dropping
from .install import NAME, before
from .masks import MaskFacts, allowed_by, note, only_forbids
from .masks import additive as as_additive
from .recorder import current_recorder
from .session import Firing, changed_heads, repeated
from .softmax import SoftmaxMode

BAKED = {"sdpa": "attrim_baked", "eager": "attrim_baked_eager"}  # baked models, by what runs underneath
SDPA = ("sdpa", BAKED["sdpa"])
"""What a model asks for that expects no weights of its attention."""
_EXTRAS = frozenset(("position_bias", "softcap", "s_aux", "sinks"))
MOST_MASKS, MOST_CAUSAL = 64, 256
"""Masks that are kept for later passes, and the tokens of the longest causal text among them: four megabytes in all."""
_STANDARD = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}

Attended = tuple[Tensor, Tensor | None]
"""What an attention function returns: outputs ``[B, Q, H, D]``, and weights ``[B, H, Q, K]`` where it has them."""


class Answer(Protocol):
    """What computes the attention of a module in another way, such as a cache that does not have all keys."""

    def answer(
        self,
        function: Callable[..., Attended],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **arguments: Any,
    ) -> Attended:
        """The attention of a module; ``function`` is the ordinary one."""


_answer: ContextVar[Callable[[nn.Module], Answer | None] | None] = ContextVar("attrim_answer", default=None)


@contextmanager
def answering(find: Callable[[nn.Module], Answer | None]) -> Iterator[None]:
    """Let what ``find`` gives for a module compute its attention, where it gives anything."""
    token = _answer.set(find)
    try:
        yield
    finally:
        _answer.reset(token)


@functools.cache
def register() -> None:
    """Make our attention and mask functions known to transformers; models that do not ask for them see no change."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


def switchable(model: nn.Module) -> list[Any]:
    """The configuration objects of the model's modules that choose an attention function from the interface."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal") and any(
            hasattr(sys.modules.get(cls.__module__), "ALL_ATTENTION_FUNCTIONS") for cls in type(module).__mro__
        ):
            found.setdefault(id(config), config)
    return list(found.values())


@torch.compiler.disable
def _apart(function: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
    """What a function gives that ``torch.compile`` cannot look into, for it asks for sessions and runs kernels."""
    return function(*given, **arguments)


def make_mask(*, q_offset: Any = 0, kv_offset: Any = 0, **arguments: Any) -> Tensor:
    """The mask of stock attention (boolean for SDPA, else additive), never skipped, with a cache's offsets noted.

    Without a mask function under our name transformers would pass no mask at all, and causality would be lost.
    """
    if torch.compiler.is_dynamo_compiling():
        return _apart(make_mask, q_offset=q_offset, kv_offset=kv_offset, **arguments)
    config, queries = arguments.get("config"), arguments["q_length"]
    fused = config is not None and before(config) in SDPA
    known = _plain_mask(q_offset, kv_offset, arguments) if fused else None
    if known is not None:
        return known
    from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

    make = sdpa_mask if fused else eager_mask
    arguments |= {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
    if arguments.get("mask_function") is bidirectional_mask_function:
        arguments["q_length"] = 1  # one row serves all queries
    with torch.inference_mode(False):  # what is known about the mask may serve a pass that is not one of inference
        made = make(q_offset=q_offset, kv_offset=kv_offset, **arguments)
        assert made is not None  # it is skipped only where that is allowed
        mask = made.expand(-1, -1, queries, -1)
    note(mask, q_offset, kv_offset, arguments.get("attention_mask"))
    return mask


def _plain_mask(q_offset: Any, kv_offset: Any, arguments: dict[str, Any]) -> Tensor | None:
    """The mask where queries see all keys, or all up to their own; None where it says anything else, such as padding.

    Most texts have such a mask, and what is known about it then serves all passes and not one.
    """
    bidirectional_mask_function, causal_mask_function = _mask_functions()
    queries, keys, padding = arguments["q_length"], arguments["kv_length"], arguments.get("attention_mask")
    function, device = arguments.get("mask_function"), arguments.get("device", "cpu")
    sizes = arguments["batch_size"], queries, keys, q_offset, kv_offset
    if (
        is_symbolic()
        or torch.compiler.is_compiling()
        or arguments.get("use_vmap")
        or any(type(size) is not int for size in sizes)
    ):
        return None
    single = queries == 1 and q_offset + 1 == kv_offset + keys
    if function is bidirectional_mask_function or (function is causal_mask_function and single):
        causal = False
    elif function is causal_mask_function and queries == keys and q_offset == kv_offset:
        causal = True
    else:
        return None
    if padding is not None and (padding.ndim != 2 or padding.shape[-1] < kv_offset + keys or not bool(padding.all())):
        return None
    length = None if padding is None else padding.shape[-1]
    if causal and keys > MOST_CAUSAL:
        return _known_mask.__wrapped__(*sizes, causal, length, device)
    found = _known_mask(*sizes, causal, length, device)
    # A model that writes into its mask must not change that of later passes.
    return found if found._version == 0 else _known_mask.__wrapped__(*sizes, causal, length, device)


@functools.cache
def _mask_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions of transformers for queries that see all keys, and for those that see the keys up to their own."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    return bidirectional_mask_function, causal_mask_function


@functools.lru_cache(maxsize=MOST_MASKS)
@torch.inference_mode(False)
def _known_mask(
    batch: int,
    queries: int,
    keys: int,
    q_offset: int,
    kv_offset: int,
    causal: bool,
    length: int | None,
    device: torch.device | str,
) -> Tensor:
    """See :func:`_plain_mask`; ``length`` is that of the padding mask, where there is one."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    # Of a long text, the mask is as large as the activations; a tensor of its own counts its versions from 0.
    cells = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril_().data if causal else one
    mask = cells.expand(batch, 1, queries, keys)
    padding = None if length is None else one[0, 0].expand(batch, length)
    edges = causal_edges(queries, mask.device) if causal else None
    note(mask, q_offset, kv_offset, padding, edges)
    return mask


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> Attended:
    """The attention function that models on the interface route call."""
    if torch.compiler.is_dynamo_compiling():
        return _apart(attend, module, query, key, value, attention_mask, **arguments)
    find = _answer.get()
    if find is None:
        again = repeated(module, query, key, value, attention_mask, arguments)
        if again is not None:
            return again, None
    elif (answer := find(module)) is not None:
        return answer.answer(_attend, module, query, key, value, attention_mask, **arguments)
    baked: Any = module._modules.get("attrim_baked")
    if baked is None:
        return _attend(module, query, key, value, attention_mask, **arguments)
    # Baked constant heads are not sites; the remaining heads are edited and watched as before.
    return baked.attend(_attend, module, query, key, value, attention_mask, **arguments)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> Attended:
    shape = query.shape[-2], key.shape[-2]
    recorder = current_recorder()
    if recorder is not None:
        stock = eager(module)
        recorder.note_interface(module, query.shape[1], allowed_by(attention_mask, shape, query.device))
        with recorder.pause():  # the stock function's own softmax is this event, not another one
            return stock(module, query, key, value, additive(attention_mask, query.dtype), **arguments)
    firing = Firing(module)
    mask: MaskFacts | None = None
    setup, plan = firing.setup, firing.plan
    if setup.standard is None:
        setup.standard = _standard_module(module)
    standard = setup.standard and _standard_arguments(arguments)
    fusing = before(module.config) in SDPA
    if setup.site is not None:
        if query.shape[1] != setup.site.heads:
            raise changed_heads(setup.site, query.shape[1])
        mask = firing.facts(attention_mask, shape, query.device)
        # Dropout is left to the stock function: a model in training mode may run without gradients, too.
        drops = plan.only_drops and standard and fusing and not arguments.get("dropout")
        if drops and only_forbids(attention_mask):
            output = dropping.attend(query, key, value, attention_mask, firing, mask, arguments)
            if output is not None:
                return output, None
    fused = fusing and not plan.needs_weights
    stock = sdpa() if fused and (firing.idle or standard) else eager(module)
    if firing.idle:
        # No session in this thread, or nothing to do at this site: exactly what the model did before.
        if mask is not None:
            firing.place(mask, query.shape[0])  # cross-attention asks where the tokens are
        made_here = fused and standard and mask is not None and mask.offsets is not None and not is_symbolic()
        if made_here and mask is not None and mask.structure is not None:
            # Our mask function gives a mask always. SDPA takes longer with one, and does not leave out what comes after
            # a causal query, so transformers leaves the mask out where it says nothing more than this.
            additive_mask, arguments = None, {**arguments, "is_causal": mask.structure == "causal"}
        else:
            additive_mask = additive(attention_mask, query.dtype, mask)
        return stock(module, query, key, value, additive_mask, **arguments)
    assert mask is not None  # there is a site
    scaling = dropping.scaling_of(query, arguments) if standard else None
    call = firing.call(mask, query.shape[0], query=query, key=key, value=value, scaling=scaling)
    for moment, tensor, real in (("query", query, call.queries), ("key", key, call.keys), ("value", value, call.keys)):
        if plan.touches(moment):
            plan.watch(moment, *_tokens(tensor, real, call))
    fuses = _may_fuse(module, plan, firing.fast, arguments)
    if fuses and standard and only_forbids(attention_mask):
        watching = [(stat, heads) for stat, heads in plan.stats if stat.moment == "weights"]
        output = kernel.attend(query, key, value, call, mask.edges, arguments.get("scaling"), watching, plan.edits)
        if output is not None:
            return _watched_output(plan, output, call), None
    additive_mask = additive(attention_mask, query.dtype, mask)
    if fusing and additive_mask is not None:
        additive_mask = _as_dtype(additive_mask, query.dtype)
    if plan.needs_weights:
        attention = _EditedSoftmax(plan, call, key.shape[-2])
        with SoftmaxMode(attention):
            output, weights = stock(module, query, key, value, additive_mask, **arguments)
        if not attention.seen:
            raise SiteError(
                f"{call.site.name} ran without a softmax over keys, so nothing was edited or watched there; "
                "leave it out with Select(names=...) or report the architecture."
            )
    else:
        output, weights = stock(module, query, key, value, additive_mask, **arguments)
    return _watched_output(plan, output, call), weights


def _watched_output(plan: Plan, output: Tensor, call: Call) -> Tensor:
    """The outputs ``[B, Q, H, D]`` of the heads, edited and watched."""
    return plan.output(output.transpose(1, 2), call).transpose(1, 2) if plan.touches("output") else output


def _may_fuse(module: nn.Module, plan: Plan, fast: bool, arguments: dict[str, Any]) -> bool:
    """Whether nobody needs the weights as a tensor, so that a kernel may edit, count and forget them.

    Without stats, which say so themselves, that depends on the model. Dropout and gradients are left to the stock
    function, and a tracer would not see what a kernel does.
    """
    if not plan.needs_weights or plan.touches("scores"):
        return False
    forgotten = fast if plan.stats else before(module.config) in SDPA and not arguments.get("output_attentions")
    wanted = forgotten and plan.compiles and not is_symbolic() and not torch.is_grad_enabled()
    wanted = wanted and not torch.compiler.is_compiling()
    return wanted and not arguments.get("dropout")


class _EditedSoftmax:
    """The first softmax of an attention function, edited and watched; any later one runs as it is."""

    def __init__(self, plan: Plan, call: Call, keys: int) -> None:
        self.plan, self.call, self.keys = plan, call, keys
        self.seen = False

    def __call__(self, scores: Tensor, function: Softmax) -> Tensor:
        if self.seen:
            return function(scores)
        self.seen = True
        if scores.shape[-1] == self.keys:
            return self.plan.weights(scores, self.call, function)
        # Attention sinks: extra columns after the keys take part in the softmax and are dropped by the model.
        weights = function(scores)
        normalised = any(edit.overrides("normalise") for edit, _ in self.plan.edits)
        if normalised or self.plan.touches("scores") or scores.shape[-1] < self.keys:
            raise SiteError(
                f"{self.call.site.name} has attention sinks, and an edit of scores does not support them; "
                "use an edit of weights, or leave the site out with Select(names=...)."
            )
        edited = self.plan.edited(weights[..., : self.keys], self.call)
        return nn.functional.pad(edited, (0, scores.shape[-1] - self.keys))


def _tokens(tensor: Tensor, real: Tensor, call: Call) -> tuple[Tensor, Call]:
    """Queries, keys or values ``[B, H, L, D]`` for stats, with the real tokens as allowed cells.

    Keys and values that groups of heads share are repeated, so that every head has its own.
    """
    tensor = tensor.repeat_interleave(len(call.heads) // tensor.shape[1], dim=1)
    return tensor, replace(call, allowed=real[:, None, :, None], queries=real, keys=real)


@functools.cache
def sdpa() -> Callable[..., Attended]:
    """The stock function of SDPA attention."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward


def eager(module: nn.Module) -> Callable[..., Attended]:
    """The stock eager attention function of the file that defines the module's class (or of a class it extends)."""
    known = _eager.get(type(module))
    if known is None:
        known = _eager[type(module)] = _find_eager(type(module))
    return known


_eager: WeakKeyDictionary[type, Callable[..., Attended]] = WeakKeyDictionary()


def _find_eager(kind: type) -> Callable[..., Attended]:
    for cls in kind.__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    from transformers.models.llama.modeling_llama import eager_attention_forward  # the commonest one, with groups

    return eager_attention_forward


def additive(attention_mask: Tensor | None, dtype: torch.dtype, facts: MaskFacts | None = None) -> Tensor | None:
    """The mask as stock eager attention wants it: boolean ones become additive, once where their facts are known."""
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return attention_mask
    return as_additive(attention_mask, dtype) if facts is None else facts.additive(dtype)


def _as_dtype(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask in the dtype of the queries: SDPA takes another one, too, and eager attention does not."""
    # The lowest number of float32 would be -inf in bfloat16, and a row of nothing else would give NaN.
    return mask if mask.dtype == dtype else mask.clamp(min=torch.finfo(dtype).min).to(dtype)


def is_standard(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether the attention is plain softmax(query x key x scaling + mask): no sinks, soft caps or position biases."""
    return _standard_module(module) and _standard_arguments(arguments)


def _standard_module(module: nn.Module) -> bool:
    return _standard_signature(eager(module)) and getattr(module, "sinks", None) is None


def _standard_arguments(arguments: dict[str, Any]) -> bool:
    extras = _EXTRAS.intersection(arguments)
    return not extras or all(arguments[extra] is None for extra in extras)


@functools.cache
def _standard_signature(function: Callable[..., Any]) -> bool:
    return set(inspect.signature(function).parameters) <= _STANDARD
