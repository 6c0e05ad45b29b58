"""Work that takes long, one piece after the other, for requests that may be given up.

Everybody waits in one line of bounded length. A request whose client has gone leaves the line; one that is at work is
told so and ends at the next place where it looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive

from .guard import Refused

T = TypeVar("T")
WAITING = 64
"""Requests that may wait for the model at once."""
PATIENCE = 30.0
"""Seconds that one waits."""


class Superseded(Exception):
    """The client has gone, so that nobody needs the result."""


class Cancelled(threading.Event):
    """Says to work that goes on in another thread that nobody needs its result any more."""

    def check(self) -> None:
        """End the work here, if nobody needs it."""
        if self.is_set():
            raise Superseded


class WorkLine:
    """A thread that does one piece of work at a time.

    Parameters
    ----------
    waiting : pieces of work that may wait at once.
    patience : seconds that one waits before it is refused.

    Attributes
    ----------
    inside : how many wait or are at work.
    dropped : how many were given up, before they began or at work.
    """

    def __init__(self, waiting: int = WAITING, patience: float = PATIENCE) -> None:
        self.waiting, self.patience = waiting, patience
        self.dropped = 0
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="attrim-model")
        self._free = asyncio.Lock()
        self.inside = 0
        self._running: set[Cancelled] = set()

    async def run(self, receive: Receive, work: Callable[[Cancelled], T]) -> T:
        """Do the work when its turn has come, and give its result.

        Parameters
        ----------
        receive : of the request, whose body was read: it then says when the client has gone.
        work : called in the thread with what says that it may end early.

        Raises
        ------
        Refused
            When too many wait, or it waited too long.
        Superseded
            When the client has gone.
        """
        if self.inside > self.waiting:
            raise Refused(503, f"The model is busy, and {self.waiting} requests wait for it; try again in a moment.")
        self.inside += 1
        cancelled = Cancelled()
        job = asyncio.ensure_future(self._turn(work, cancelled))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                cancelled.set()
            return await job
        except Superseded:
            self.dropped += 1
            raise
        finally:
            self.inside -= 1
            cancelled.set()
            gone.cancel()

    async def _turn(self, work: Callable[[Cancelled], T], cancelled: Cancelled) -> T:
        waiting = asyncio.ensure_future(self._free.acquire())
        left = self.patience
        try:
            # In short naps, because the client may go while it waits.
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=min(left, 0.05))
                left -= 0.05
                cancelled.check()
                if left <= 0 and not waiting.done():
                    raise Refused(503, f"The model was busy for {self.patience:.0f} seconds; try again in a moment.")
        except BaseException:
            if not waiting.cancel() and not waiting.cancelled() and waiting.result():
                self._free.release()
            raise
        self._running.add(cancelled)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _begun, work, cancelled)
        finally:
            self._running.discard(cancelled)
            self._free.release()

    def close(self) -> None:
        """End what is at work as soon as possible, and take nothing more."""
        for cancelled in self._running:
            cancelled.set()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _begun(work: Callable[[Cancelled], T], cancelled: Cancelled) -> T:
    cancelled.check()
    return work(cancelled)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue
