"""What evaluating a model takes: seconds and peak memory, each model in a process of its own."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...edits.base import Edit
from ..bench import TrainingBench

STATUS = Path("/proc/self/status")
PASSES = 3
"""Timed passes; other work on the machine only ever makes one slower."""


@dataclass(frozen=True)
class Footprint:
    """The cost of one pass over some examples.

    Attributes
    ----------
    seconds : of the fastest pass after the first one, which only warms up.
    peak : MiB that the process had at most, or that were allocated on its GPU; None where the system does not tell.
    grown : how much of that came with the passes, the model being there before.
    """

    examples: int
    seconds: float
    peak: float | None = None
    grown: float | None = None


def measure_footprint(bench: TrainingBench, edits: Sequence[Edit], examples: int) -> Footprint:
    """Seconds and peak memory of evaluating a model on the held-out data, in another process.

    Without edits it is the model as it is, with its own attention kernel.
    """
    # Another process begins without what this one has allocated, which peak memory would count.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_footprint, (dataclasses.replace(bench, quiet=True), tuple(edits), examples))


def _footprint(bench: TrainingBench, edits: Sequence[Edit], examples: int) -> Footprint:
    from ...evaluation import Prepared

    task = bench.validation_task(limit=examples)
    prepared = Prepared(bench.loaded_model, task, bench.loaded_tokenizer, count_zeros=False)
    before = _memory(bench.device, "VmRSS")
    seconds = []
    for _ in range(1 + PASSES):
        started = time.perf_counter()
        result = prepared.point("footprint", edits)
        seconds.append(time.perf_counter() - started)
    peak = _memory(bench.device, "VmHWM")
    grown = None if peak is None or before is None else peak - before
    return Footprint(len(next(iter(result.columns.values()))), min(seconds[1:]), peak, grown)


def _memory(device: str, name: str) -> float | None:
    """MiB: of the GPU, allocated at most; of this process, the entry of a name in what Linux says about it."""
    import torch

    if device.startswith("cuda"):
        used = torch.cuda.max_memory_allocated if name == "VmHWM" else torch.cuda.memory_allocated
        return float(used(device)) / 2**20
    if not STATUS.exists():
        return None
    lines = STATUS.read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), None)
