"""Files that are either wholly there or not at all, and storage errors in one sentence."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import ArtefactError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers, and a crash at any time, see the old content or the new one."""
    _replace(path, lambda part: part.write_bytes(content))


def replace_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named tensors as safetensors, as :func:`replace_file` does."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _replace(path, lambda part: save_file(plain, part))


def replace_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write a folder so that there is never half of one under its name; one that is there is removed.

    Parameters
    ----------
    write : fills the new folder that it is called with.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write(part)
    if folder.exists():
        remove_folder(folder)
    part.rename(folder)
    handle = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the new name lasts through a loss of power
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that half of one is never taken for a whole."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write(part)
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn what goes wrong when a run is read or written into one sentence; nothing is deleted."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, sqlite3.Error, SafetensorError) as error:
        raise ArtefactError(_sentence(folder, error)) from error
    except json.JSONDecodeError as error:
        raise ArtefactError(f"A file in {folder} is damaged ({error}); restore it or move the folder away.") from error


def _sentence(folder: Path, error: Exception) -> str:
    kept = "everything stored before is kept"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    text = str(error).lower()
    if full or any(words in text for words in ("disk is full", "no space left", "file too large", "quota")):
        return f"There is no room left to write to {folder}; free some space and run again, {kept}."
    if isinstance(error, sqlite3.OperationalError) and "locked" in text:
        return f"Another process is writing to {folder}; wait for it or give another folder."
    writing = isinstance(error, (sqlite3.OperationalError, PermissionError)) and not isinstance(
        error, FileNotFoundError
    )
    if writing or isinstance(error, (NotADirectoryError, FileExistsError)):
        cause = (error.strerror if isinstance(error, OSError) else None) or error
        return f"The run folder {folder} cannot be written ({cause}); give another folder with --output."
    if isinstance(error, sqlite3.DatabaseError):
        return (
            f"The database in {folder} is damaged ({error}); nothing was changed: restore results.sqlite from a copy, "
            "or move the folder away to begin again."
        )
    return f"The run in {folder} cannot be read or written: {error}."
