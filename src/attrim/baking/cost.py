"""What a forward pass costs: parameters, constants and operations, counted; and seconds, measured side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..attention.example import make_example
from ..core.modes import in_mode
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
    """The number of tokens that all fixed matrices of a model cover; None when it has none, or when zeros follow.

    Where regions of an image stand behind the text, as in VisualBERT, the matrices cover those of :func:`made_up` too.
    """
    sizes = [
        min(module.matrix.shape[1:])
        for module in model.modules()
        if isinstance(module, Constants) and module.outside == "error"
    ]
    if not sizes:
        return None
    regions = make_example(model).get("visual_embeds")
    return min(sizes) - (0 if regions is None else regions.shape[1])


def cost(model: nn.Module, length: int = 128, example: Any = None) -> Cost:
    """Count the parameters of a model and the operations of one forward pass.

    Parameters
    ----------
    length : number of tokens of the input that is made up (for text).
    example : keyword arguments of a forward pass to count instead.
    """
    inputs = made_up(model, length) if example is None else example
    counter = FlopCounterMode(display=False)
    # The counter hooks into inputs of modules that require gradients, and fails on those that have no graph: DeBERTa
    # gives its table of positions, a parameter, to its modules.
    detached = {name: weights.detach() for name, weights in model.named_parameters()}
    # The plain form of attention, because the counter does not know the fused one of the CPU.
    with torch.inference_mode(), in_mode(model, training=False), sdpa_kernel(SDPBackend.MATH), counter:
        functional_call(model, detached, kwargs=dict(inputs))
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


Name = TypeVar("Name", bound=Hashable)
NOTICEABLE = 0.98
"""A ratio of times that is nearer to 1 than this is noise on most machines."""


@dataclass(frozen=True)
class Speed:
    """Median seconds of a forward pass before and after baking, and how many times as fast it became.

    Attributes
    ----------
    ratio : the median over rounds of the time before over the time after.
    slower : the baked model took noticeably longer in at least three of four rounds.
    """

    before: float
    after: float
    ratio: float
    slower: bool


def speed(
    model: nn.Module, baked: nn.Module, length: int = 128, batch: int = 8, rounds: int = 7, example: Any = None
) -> Speed:
    """Time the forward passes of two models in turns, so that other load on the machine does not favour one.

    Parameters
    ----------
    length, batch : size of the input that is made up (for text).
    example : keyword arguments of a forward pass to time instead.
    """
    inputs = made_up(model, length, batch) if example is None else example
    with torch.inference_mode(), in_mode(model, training=False), in_mode(baked, training=False):
        seconds = in_turns({"before": lambda: _run(model, inputs), "after": lambda: _run(baked, inputs)}, rounds)
    ratios = [before / after for before, after in zip(seconds["before"], seconds["after"], strict=True)]
    slow = sum(ratio < NOTICEABLE for ratio in ratios) >= 0.75 * rounds
    before, after = (statistics.median(seconds[name]) for name in ("before", "after"))
    return Speed(before, after, statistics.median(ratios), slow)


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    model(**inputs)
    if next(model.parameters()).device.type != "cpu":
        torch.accelerator.synchronize()  # other devices go on while Python does


def in_turns(ways: Mapping[Name, Callable[[], object]], rounds: int) -> dict[Name, list[float]]:
    """Seconds that each way takes in every round, after one run that does not count."""
    for run in ways.values():
        run()
    seconds: dict[Name, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        # There and back again, because a way inherits the caches of the one before it.
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            begin = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - begin)
    return seconds
