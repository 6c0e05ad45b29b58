"""Several small trainings at a time: each in a process with one thread, because more threads make them slower."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import TypeVar

import torch

TICK = 5.0
"""Seconds between two looks at how far the work is."""
ORPHANED_FOR = 1.0
"""Seconds that a worker goes on at most after the process that started it was killed, whose work then resumes."""
Point = TypeVar("Point")
Found = TypeVar("Found")


def spread(
    work: Callable[[Point], Found], points: Sequence[Point], workers: int, tick: Callable[[], None] | None = None
) -> Iterator[tuple[Point, Found]]:
    """Do every point of work, and give each with what it found as soon as it is done.

    Parameters
    ----------
    work : a function of a module, so that another process finds it; it must store nothing.
    workers : processes; with 1 everything happens in this one.
    tick : called every few seconds while other processes work.
    """
    if workers <= 1 or len(points) <= 1:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for point in points:
                yield point, work(point)
        finally:
            torch.set_num_threads(before)
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(workers, len(points)), context, _prepare, (os.getpid(),)) as pool:
        waiting = {pool.submit(work, point): point for point in points}
        try:
            while waiting:
                done = wait(waiting, TICK if tick else None, FIRST_COMPLETED).done
                if tick is not None:
                    tick()
                for future in done:
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:  # whoever stops reading wants no more
                future.cancel()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare(parent: int) -> None:
    """Use one thread, and end with the process that wants the work: a killed one cannot tell its workers to."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHANED_FOR)
    os._exit(1)
