"""Handle the signals that ask a program to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def on_stop(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` at Ctrl-C, SIGTERM and SIGHUP; afterwards all is as before.

    Signals that are ignored stay so, which is what ``nohup`` does. Python allows handlers in the main thread alone, so
    that elsewhere this does nothing.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        chosen = [number for number in STOPPING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
