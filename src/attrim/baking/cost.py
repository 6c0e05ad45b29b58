"""What a forward pass costs: parameters, constants and operations, counted; and seconds, measured side by side."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..attention.example import make_example
from ..core.modes import in_mode
from ..kernels.ways import noting
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
    with (
        torch.inference_mode(),
        in_mode(model, training=False),
        sdpa_kernel(SDPBackend.MATH),
        counter,
        noting() as ours,
    ):
        functional_call(model, detached, kwargs=dict(inputs))
    matrices = sum(module.matrix.numel() for module in model.modules() if isinstance(module, Constants))
    flops = counter.get_total_flops() + sum(note.sparse_flops for note in ours)
    return Cost(sum(weights.numel() for weights in model.parameters()), matrices, flops)


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
CHANCE = 0.05
"""How likely it may be that as many rounds are slow by chance where the baked model is said to be slower."""
MORE_ROUNDS = 5
"""How many times as many rounds to time where the first do not tell."""


@dataclass(frozen=True)
class Speed:
    """Median seconds of a forward pass before and after baking, and how many times as fast it became.

    Attributes
    ----------
    ratio : the median over rounds of the time before over the time after.
    slower : the ratio is noticeably below 1, and it was in more rounds than chance explains (sign test).
    uncertain : the ratio is noticeably below 1, but chance explains the rounds, as on a machine with other work.
    rounds : how many were timed.
    """

    before: float
    after: float
    ratio: float
    slower: bool
    uncertain: bool = False
    rounds: int = 0


def speed(
    model: nn.Module, baked: nn.Module, length: int = 128, batch: int = 8, rounds: int = 7, example: Any = None
) -> Speed:
    """Time the forward passes of two models in turns, so that other load on the machine does not favour one.

    Where the baked model seems slower and it is not certain, up to five times as many rounds are timed.

    Parameters
    ----------
    length, batch : size of the input that is made up (for text).
    rounds : how often to time both models at first.
    example : keyword arguments of a forward pass to time instead.
    """
    inputs = made_up(model, length, batch) if example is None else example
    ways = {"before": lambda: _run(model, inputs), "after": lambda: _run(baked, inputs)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode(), in_mode(model, training=False), in_mode(baked, training=False):
        for _ in range(MORE_ROUNDS):
            for name, taken in in_turns(ways, rounds).items():
                seconds[name] += taken
            found = judge_speed(seconds["before"], seconds["after"])
            if not found.uncertain:
                break
    return found


def judge_speed(before: Sequence[float], after: Sequence[float]) -> Speed:
    """What the seconds of each round before and after baking say."""
    ratios = [one / other for one, other in zip(before, after, strict=True)]
    ratio, rounds, slow = statistics.median(ratios), len(ratios), sum(ratio < NOTICEABLE for ratio in ratios)
    seems = ratio < NOTICEABLE
    # Were both equally fast, each round would come out slow at most every second time.
    certain = sum(math.comb(rounds, count) for count in range(slow, rounds + 1)) <= CHANCE * 2**rounds
    times = statistics.median(before), statistics.median(after)
    return Speed(*times, ratio, slower=seems and certain, uncertain=seems and not certain, rounds=rounds)


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
