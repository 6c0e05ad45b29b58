"""The errors that attrim raises: one sentence each, naming the cause and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttrimError(Exception):
    """Something a user can put right. The command line prints it as one sentence and exits with code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean ...?`` with the known name that is most like this one; empty when none is."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


class UnknownName(AttrimError):
    """A name that no registry knows."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = nearest(name, known) or f"known are {', '.join(known) or 'none'}."
        super().__init__(f"There is no {kind} named {name!r}; {hint}")


class ParameterError(AttrimError):
    """A parameter of an edit, stat or command that is outside of what it may be."""


class SiteError(AttrimError):
    """Attention that cannot be reached, or a site that did not fire."""


class SelectionError(AttrimError):
    """A selection that matches nothing."""


class ShapeError(AttrimError):
    """A tensor whose shape does not fit where it is used."""


class DataError(AttrimError):
    """Data that is missing, empty, or not in the expected format."""


class ArtefactError(AttrimError):
    """A saved file that is missing, damaged, or made for something else."""
