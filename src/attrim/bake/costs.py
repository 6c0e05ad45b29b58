"""What a forward pass costs: parameters, constants and floating point operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..modes import in_mode
from ..sites.example import make_example
from .constants import Constants


@dataclass(frozen=True)
class Cost:
    """The cost of one input.

    Attributes
    ----------
    parameters : trained numbers.
    constants : numbers in fixed matrices.
    flops : multiplications and additions of all matrix products in one forward pass.
    """

    parameters: int
    constants: int
    flops: int


def longest(model: nn.Module) -> int | None:
    """The number of tokens that all fixed matrices of a model cover; None when it has none, or when zeros follow."""
    sizes = [
        min(module.matrix.shape[1:])
        for module in model.modules()
        if isinstance(module, Constants) and module.outside == "error"
    ]
    return min(sizes, default=None)


def cost(model: nn.Module, length: int = 128, example: Any = None) -> Cost:
    """Count the parameters of a model and the operations of one forward pass.

    Parameters
    ----------
    length : number of tokens of the input that is made up (for text).
    example : keyword arguments of a forward pass to count instead.
    """
    inputs = made_up(model, length) if example is None else example
    counter = FlopCounterMode(display=False)
    # The plain form of attention, because the counter does not know the fused one of the CPU.
    with torch.inference_mode(), in_mode(model, training=False), sdpa_kernel(SDPBackend.MATH), counter:
        model(**inputs)
    matrices = sum(module.matrix.numel() for module in model.modules() if isinstance(module, Constants))
    return Cost(sum(weights.numel() for weights in model.parameters()), matrices, counter.get_total_flops())


def made_up(model: nn.Module, length: int, batch: int = 1) -> dict[str, Any]:
    """An input for a model: ``batch`` equal examples, texts of ``length`` tokens."""
    inputs = make_example(model)
    for name in ("input_ids", "decoder_input_ids", "attention_mask"):
        if name in inputs:
            inputs[name] = inputs[name].repeat(1, -(-length // inputs[name].shape[1]))[:, :length]
    return {
        name: value.repeat(batch, *[1] * (value.ndim - 1)) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
