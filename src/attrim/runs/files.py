"""Files that are either wholly there or not at all, digests of them, and storage errors in one sentence.

A digest tells that a file was changed after it was written: a bit that flipped, a copy that broke off, an edit by hand.
It is no protection against somebody who means to deceive, who can compute a new one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..core.documents import read_json
from ..errors import ArtefactError
from .locks import lock_handle

_HIDDEN = ".attrim-"
DIGEST = "digest"
"""The key of a JSON object under which the digest of all the others is."""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers, and a crash at any time, see the old content or the new one."""
    _replace(path, lambda part: part.write_bytes(content))


def sealed(values: Mapping[str, Any]) -> bytes:
    """A JSON object with its digest, as it is written."""
    return json.dumps({**values, DIGEST: digest_of(values)}, indent=1, allow_nan=False).encode()


def digest_of(values: Any) -> str:
    """The digest of JSON values; the order of keys counts, because tables follow it."""
    return hashlib.sha256(json.dumps(values, allow_nan=False, separators=(",", ":")).encode()).hexdigest()


def replace_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object with its digest, as :func:`replace_file` does."""
    replace_file(path, sealed(values))


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object that :func:`replace_sealed` wrote, without its digest.

    Parameters
    ----------
    remedy : what to do about a file that is missing or damaged, the end of the error's sentence.
    """
    values = read_json(path, remedy)
    if not isinstance(values, dict):
        raise ArtefactError(f"{path} is damaged (it holds no JSON object); {remedy}.")
    if not is_sealed(values):
        raise ArtefactError(f"{path} has changed since it was written; {remedy}.")
    return {name: value for name, value in values.items() if name != DIGEST}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Whether JSON values have the digest that :func:`sealed` gave them."""
    return values.get(DIGEST) == digest_of({name: value for name, value in values.items() if name != DIGEST})


def file_digest(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named tensors as safetensors, as :func:`replace_file` does."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _replace(path, lambda part: save_file(plain, part))


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Any]) -> tuple[Path, str]:
    """Write named tensors to a file that is named after its content, ``STEM-DIGEST.safetensors``.

    Returns
    -------
    The file and its digest. Files of the same stem that were there before stay, for readers that have their names.
    """
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        replace_tensors(part, tensors)
        digest = file_digest(part)
        return part.replace(folder / f"{stem}-{digest[:16]}.safetensors"), digest
    finally:
        part.unlink(missing_ok=True)


def replace_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write a folder so that there is never half of one under its name; one that is there is removed.

    Parameters
    ----------
    write : fills the new folder that it is called with.
    """
    with _part_of(folder) as part:
        write(part)
        if folder.exists():
            remove_folder(folder)
        part.rename(folder)
    _sync(folder.parent)


def fill_folder(folder: Path, write: Callable[[Path], object], last: str, stale: Sequence[str] = ()) -> None:
    """Write files to a folder, all or none; other files that are in it already stay.

    What ``write`` makes is complete before anything is seen of it: a folder that is not there yet appears as a whole,
    and into one that is there the files are moved one by one.

    Parameters
    ----------
    write : fills the new folder that it is called with.
    last : the file that is moved last, from which readers tell that the others belong together.
    stale : patterns of files that are removed where ``write`` does not make them anew.
    """
    folder = _target(folder)
    with _part_of(folder) as part:
        write(part)
        if not folder.exists() or not any(folder.iterdir()):
            part.rename(folder)  # also in place of an empty folder
        else:
            for old in [path for pattern in stale for path in folder.glob(pattern)]:
                if not (part / old.name).exists():
                    old.unlink()
            for path in sorted(part.rglob("*"), key=lambda path: path.name == last):
                if path.is_file():
                    place = folder / path.relative_to(part)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(place)
    _sync(folder.parent)


def require_fillable(folder: Path, flag: str = "--output") -> None:
    """Refuse what :func:`fill_folder` could not write to, before the work whose result is to be written begins.

    Parameters
    ----------
    flag : the one that the folder was given with.
    """
    with storage(folder, flag):
        place = _target(folder)
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def remove_folder(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that half of one is never taken for a whole."""
    gone = folder.with_name(f"{_HIDDEN}{secrets.token_hex(4)}.gone")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)  # what is left of it is removed by whoever writes here next


def _target(folder: Path) -> Path:
    """Where a folder really is: links are followed, also one to a place where nothing is yet."""
    try:
        folder = folder.resolve()
    except RuntimeError as error:  # pathlib's own, before Python 3.13, for links that lead to each other
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not folder.name:  # what is written is first put beside it
        raise OSError(errno.EBUSY, "it is the root of a file system")
    return folder


@contextmanager
def _part_of(folder: Path) -> Iterator[Path]:
    """A new folder beside one, to be renamed to it; removed if it was not, and after a kill by whoever comes next."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for pattern in (f"{_HIDDEN}*.part", f"{_HIDDEN}*.gone"):
        for left in folder.parent.glob(pattern):
            _remove_abandoned(left)
    part, handle = _new_part(folder)
    try:
        # The lock is on the folder around it, so that whoever writes to it can lock it, too.
        inner = part / folder.name
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(handle)


def _new_part(folder: Path) -> tuple[Path, int]:
    """A new folder with a lock, which says for as long as this process lives that somebody is at work on it."""
    while True:
        part = folder.with_name(f"{_HIDDEN}{secrets.token_hex(4)}.part")
        part.mkdir()
        with suppress(FileNotFoundError):  # taken for abandoned before it had its lock
            handle = os.open(part, os.O_RDONLY)
            lock_handle(handle, wait=True)
            if part.exists():
                return part, handle
            os.close(handle)


def _remove_abandoned(part: Path) -> None:
    """Remove what a process that was killed left behind; one that is still at work holds a lock."""
    if not part.is_dir():
        return
    with suppress(OSError):
        handle = os.open(part, os.O_RDONLY)
        try:
            if lock_handle(handle, wait=False):
                shutil.rmtree(part, ignore_errors=True)
        finally:
            os.close(handle)


def _sync(folder: Path) -> None:
    """Make new names in a folder last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
def storage(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Turn what goes wrong when a run is read or written into one sentence; nothing is deleted.

    Parameters
    ----------
    flag : the one that another folder can be given with.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, sqlite3.Error, SafetensorError) as error:
        raise ArtefactError(_sentence(_shown(folder), error, flag)) from error


def _shown(folder: Path) -> Path:
    """The folder as users know it: a part is named as the folder that it will become."""
    return Path(*(name for name in folder.parts if not (name.startswith(_HIDDEN) and name.endswith(".part"))))


def _sentence(folder: Path, error: Exception, flag: str) -> str:
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
    looping = isinstance(error, OSError) and error.errno == errno.ELOOP
    if writing or looping or isinstance(error, (NotADirectoryError, FileExistsError)):
        cause = (error.strerror if isinstance(error, OSError) else None) or error
        return f"The folder {folder} cannot be written ({cause}); give another folder with {flag}."
    if isinstance(error, sqlite3.DatabaseError):
        return (
            f"The database in {folder} is damaged ({error}); nothing was changed: restore results.sqlite from a copy, "
            "or move the folder away to begin again."
        )
    cause = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
    return f"The folder {folder} cannot be read or written ({cause}); check it, or give another one with {flag}."
