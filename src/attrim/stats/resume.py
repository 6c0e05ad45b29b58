"""A measurement that is under way, kept on disk so that it resumes after a kill."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArtefactError, ParameterError
from .base import Stat
from .bundle import STORE, Stats, save_stats
from .origin import Fingerprint, Origin

EVERY = 60.0
MOST_COST = 0.05  # of the time may go into writing


@dataclass
class Checkpoint:
    """The stats of a pass so far, and how many batches they cover, written every so often.

    Parameters
    ----------
    folder : where they are kept; not the folder of the finished stats, for which half of them could be taken.
    every : seconds between two of them; more where writing takes long.
    identity : JSON values that the numbers depend on beside what the stats themselves say (the task, the dtype): what
        was kept under others is not gone on with.
    """

    folder: Path
    every: float = EVERY
    identity: Mapping[str, Any] = field(default_factory=dict)
    _next: float = field(default=0.0, init=False, repr=False)

    def resume(self, stats: Sequence[Stat], origin: Origin) -> tuple[int, Fingerprint]:
        """Fill the stats with what is kept, and say how many batches and which data that is; none if it does not fit.

        Parameters
        ----------
        stats : the stats of the pass, none of which has counted anything.
        origin : of the pass that begins; all but the data must be the same.
        """
        self._next = time.monotonic() + self.every
        if any(stat.state()[0] for stat in stats):
            raise ParameterError("Stats that counted before cannot be resumed from a checkpoint; give new ones.")
        if not (self.folder / STORE.index).exists():
            return 0, Fingerprint()
        try:
            index, known = STORE.read_index(self.folder), Stats.load(self.folder)
        except ArtefactError:
            return 0, Fingerprint()  # damaged: the next checkpoint replaces it
        kept = [(entry["name"], entry["fields"].get("options")) for entry in index["stats"]]
        same = kept == [(stat.registered_name, _plain(stat.state()[1].get("options"))) for stat in stats]
        same &= {**known.origin.to_json(), "data": None} == {**_plain(origin.to_json()), "data": None}
        if not same or index.get("identity") != _plain(dict(self.identity)):
            return 0, Fingerprint()
        for stat, other in zip(stats, known.values(), strict=True):
            stat.merge(other)
        return int(index["batches"]), known.origin.data

    def passed(self, stats: Sequence[Stat], origin: Origin, batches: int, now: bool = False) -> None:
        """Write what was counted after a batch, if it is time (or ``now``)."""
        started = time.monotonic()
        if not now and started < self._next:
            return
        save_stats(stats, self.folder, origin, batches=batches, identity=dict(self.identity))
        finished = time.monotonic()
        self._next = finished + max(self.every, (finished - started) / MOST_COST)

    def remove(self) -> None:
        """Forget it: the finished stats are kept elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)


def check_same_data(seen: Fingerprint, expected: Fingerprint, folder: Path) -> None:
    """Refuse to resume from a checkpoint whose batches differ from those that are given now."""
    if seen != expected:
        raise ArtefactError(
            f"The measurement in {folder} was begun on other data ({expected.examples} examples that are not the "
            "first ones now); remove that folder to begin again."
        )


@contextmanager
def patient_interrupt(active: bool) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C wait for the end of a batch, where a checkpoint is whole; a second one does not wait.

    Yields
    ------
    a function that says whether there was one.
    """
    pressed = threading.Event()

    def press(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    # Signals belong to the main thread, and a handler of somebody else stays.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    mine = active and usual and threading.current_thread() is threading.main_thread()
    if mine:
        signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _plain(value: Any) -> Any:
    """The value as JSON gives it back (lists for tuples)."""
    return json.loads(json.dumps(value))
