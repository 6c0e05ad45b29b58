"""Baked must equal edited: compare the two on one input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.context import edit
from ..attention.example import make_example, run_example
from ..core.modes import in_mode
from ..edits.base import Edit
from ..errors import ShapeError, SiteError

TEXTS = {"input_ids", "attention_mask", "decoder_input_ids"}
"""What an example says of texts, ``[B, L]`` each."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
COARSE = 0.1  # of the largest value, in half precision, where the order of additions shows


def require_same(model: nn.Module, baked: nn.Module, edits: Sequence[Edit], example: Any) -> None:
    """Raise when the baked model does not compute what the edited one does."""
    if example is not None:
        _require_same_on(example, model, baked, edits, example)
        return
    inputs = make_example(model)
    _require_same_on(inputs, model, baked, edits, None)
    # Code that counts heads wrongly may get on with texts of a length that happens to divide.
    longer = {name: _one_longer(value) if name in TEXTS else value for name, value in inputs.items()}
    if TEXTS & inputs.keys():
        _require_same_on(longer, model, baked, edits, None)


def _one_longer(text: Tensor) -> Tensor:
    """A text ``[B, L]``, or what is said of its tokens, with the last one twice."""
    return torch.cat([text, text[:, -1:]], dim=1)


def _require_same_on(inputs: Any, model: nn.Module, baked: nn.Module, edits: Sequence[Edit], example: Any) -> None:
    """Raise when the two models do not compute the same of some inputs."""
    with torch.inference_mode(), in_mode(model, training=False), in_mode(baked, training=False):
        try:
            with edit(model, *edits, example=example):
                expected = _tensors(run_example(model, inputs))
        except ShapeError:
            return  # the matrices are smaller than the input, and either model says so when it is used
        try:
            found = _tensors(run_example(baked, inputs))
        except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
            cause = str(error).splitlines()[0][:200]
            raise SiteError(_sentence(model, f"it no longer runs ({type(error).__name__}: {cause})")) from error
    for one, other in zip(expected, found, strict=False):
        scale = max(1.0, float(one.abs().max())) if one.numel() else 1.0
        bar = TOLERANCE.get(one.dtype, COARSE) * scale
        if one.shape != other.shape or not torch.allclose(one, other, rtol=0.0, atol=bar, equal_nan=True):
            raise SiteError(_sentence(model, "its result differs from the edited model's"))


def _sentence(model: nn.Module, what: str) -> str:
    return (
        f"{type(model).__name__} was baked on a guess about its code and {what}; use attrim.edit instead, and please "
        "report the architecture."
    )


def _tensors(result: Any) -> list[Tensor]:
    """The first floating point tensors of a result: logits, hidden states, pooled states."""
    if isinstance(result, Tensor):
        return [result]
    values = result.values() if hasattr(result, "values") else result
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
