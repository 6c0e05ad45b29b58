"""Locks on folders, so that two processes do not write to one; the system releases them when a process dies."""

from __future__ import annotations

import errno
import importlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import ArtefactError

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # not a Unix: there are no locks, and one process in a folder is the user's business
    fcntl = None

NAME = ".lock"


@dataclass
class _Held:
    file: IO[bytes]
    times: int = 1


_held: dict[tuple[int, Path], _Held] = {}


class Lock:
    """The right to write to a folder, which one process has at a time; within a process it may be taken again.

    The processes of one training that ``torchrun`` started share the right that the first of them has. Where the file
    system knows no locks, everybody has it.
    """

    def __init__(self, folder: Path) -> None:
        self._key: tuple[int, Path] | None = None
        if fcntl is None or os.environ.get("RANK", "0") != "0":
            return
        # The process is part of the key, because a forked one has the table but not the lock.
        key = (os.getpid(), folder.resolve())
        if key in _held:
            _held[key].times += 1
        else:
            _held[key] = _Held(_locked(folder))
        self._key = key

    def release(self) -> None:
        """Give the right back; a second time does nothing."""
        if self._key is not None and self._key[0] == os.getpid():
            held = _held[self._key]
            held.times -= 1
            if not held.times:
                del _held[self._key]
                held.file.close()
        self._key = None


def _locked(folder: Path) -> IO[bytes]:
    file = (folder / NAME).open("ab")
    try:
        # Not flock: a process that is forked would share it, and may live on when this one is killed.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.close()
            raise ArtefactError(
                f"Another process is writing to {folder}; wait until it ends, or give another folder with --output."
            ) from error
    return file


def is_locked(folder: Path) -> bool:
    """Whether some process has the right to write to a folder; asks without taking it, so that nobody is disturbed.

    Where there are no locks, nothing is locked.
    """
    if (os.getpid(), folder.resolve()) in _held:
        return True  # and the file must not be opened: closing it would release this process's own lock
    if fcntl is None:
        return False
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    # struct flock: its fields are in another order on macOS and BSD.
    layout, place = ("hhqqi4x", 0) if sys.platform.startswith("linux") else ("qqihhi", 3)
    values = [fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0] if place == 0 else [0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET, 0]
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(layout, *values))
        return bool(struct.unpack(layout, answer)[place] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(handle)


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this context with the same folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_handle(handle, wait=True)
        yield
    finally:
        os.close(handle)


def lock_handle(handle: int, wait: bool) -> bool:
    """Lock an open file or folder until it is closed; False when another process has it, or there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
