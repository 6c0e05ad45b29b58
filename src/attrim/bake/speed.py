"""Whether a baked model is faster than it was: both run in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from ..modes import in_mode
from .costs import made_up

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
