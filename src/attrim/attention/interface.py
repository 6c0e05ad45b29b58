"""The interface route: one attention function and one mask function, registered with transformers under one name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .masks import allowed_by

NAME = "attrim"  # must not contain "flash", "sdpa" or "flex_attention", which transformers looks for in names
BAKED = {"sdpa": "attrim_baked", "eager": "attrim_baked_eager"}  # baked models, by what runs underneath
_STANDARD = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}


@functools.cache
def register() -> None:
    """Make our attention and mask functions known to transformers; models that do not ask for them see no change."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from .attend import attend

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def mask(*, q_offset: Any = 0, kv_offset: Any = 0, **arguments: Any) -> Tensor:
    """The additive mask that stock eager attention gets, never skipped, and carrying the offsets of a cache.

    Without a mask function under our name transformers would pass no mask at all, and causality would be lost.
    """
    from transformers.masking_utils import eager_mask

    arguments["allow_is_bidirectional_skip"] = False
    result = eager_mask(q_offset=q_offset, kv_offset=kv_offset, **arguments)
    result.attrim_offsets = (int(q_offset), int(kv_offset))  # type: ignore[attr-defined]
    return result


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


def eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The stock eager attention function of the file that defines the module's class (or of a class it extends)."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    from transformers.models.llama.modeling_llama import eager_attention_forward  # the commonest one, with groups

    return eager_attention_forward


@functools.cache
def _standard_signature(function: Callable[..., Any]) -> bool:
    return set(inspect.signature(function).parameters) <= _STANDARD


def is_standard(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether the attention is plain softmax(query x key x scaling + mask): no sinks, soft caps or position biases."""
    extras = ("position_bias", "softcap", "s_aux", "sinks")
    return (
        _standard_signature(eager(module))
        and getattr(module, "sinks", None) is None
        and all(arguments.get(extra) is None for extra in extras)
    )


def additive(attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as stock eager attention wants it: boolean masks that a user passed become additive."""
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return attention_mask
    return torch.zeros_like(attention_mask, dtype=dtype).masked_fill(~attention_mask, torch.finfo(dtype).min)


def allowed(attention_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """The allowed cells ``[B|1, H|1, Q, K]``, computed once per mask although every layer gets the same one."""
    shape = query.shape[-2], key.shape[-2]
    known = getattr(attention_mask, "attrim_allowed", None)
    if known is None or known.shape[-2:] != shape:
        known = allowed_by(attention_mask, shape, query.device)
        if attention_mask is not None:
            attention_mask.attrim_allowed = known  # type: ignore[attr-defined]
    return known
