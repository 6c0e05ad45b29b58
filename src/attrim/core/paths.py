"""Texts and paths as a user gives them, refused in one sentence where the system could not take them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import ParameterError, shorten


def require_text(text: Any, what: str) -> None:
    """Refuse what is no text, and a text that no file system and no tokenizer takes: bytes that are not UTF-8, or NUL.

    Parameters
    ----------
    what : names the text in errors, such as ``flag --output``.
    """
    if not isinstance(text, str):
        raise ParameterError(f"The {what} must be a text, not {shorten(text)}.")
    if "\0" in text:
        raise ParameterError(f"The {what}, {shorten(text)}, holds the character NUL; leave it out.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"The {what}, {shorten(text)}, is not UTF-8 text; write it in UTF-8.") from None


def home_path(text: str | Path, what: str = "path") -> Path:
    """A path, with ``~`` as the user's home: in quotes, in ``--output=~/runs`` and in YAML no shell has replaced it."""
    if not isinstance(text, (str, Path)):
        raise ParameterError(f"The {what} must be a path, not {shorten(text)}.")
    require_text(str(text), what)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ParameterError(
            f"The {what} cannot be {shorten(text)}; there is no such user, so write ./~... ."
        ) from None


def cache_folder() -> Path:
    """Where attrim keeps what it can make again: ``ATTRIM_CACHE``, or ``attrim`` in the user's cache folder."""
    own = os.environ.get("ATTRIM_CACHE")
    if own:
        return home_path(own, "environment variable ATTRIM_CACHE")
    return home_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "attrim"
