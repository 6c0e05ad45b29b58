"""The errors that attrim raises: one sentence each, naming the cause and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

LONGEST = 100
"""No name is longer; of one that is, only the beginning is compared with others, which takes time."""


SENTENCE = 300
"""Characters of a sentence that a command prints; a longer one loses its middle."""


class AttrimError(Exception):
    """Something a user can put right. The command line prints it as one sentence and exits with code 2."""

    def __init__(self, sentence: object = "") -> None:
        # The repr of a tensor or of another library's error goes over many lines.
        super().__init__(" ".join(str(sentence).splitlines()))


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean ...?`` with the known name that is most like this one; empty when none is."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def shorten(value: Any, write: Callable[[Any], str] = repr, most: int = 100) -> str:
    """What a message shows of a value: its ``repr`` (or ``str``) in one line, very long ones without their middle."""
    text = " ".join(write(value).splitlines())
    text = text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
    return text if text.isprintable() else "".join(map(_printable, text))


def listed(names: Iterable[str], most: int = 150) -> str:
    """Names with commas between them; of more than ``most`` characters only the first names, and how many more."""
    names = list(names)
    whole = ", ".join(names)
    if len(whole) <= most or not names:
        return whole
    shown = names[:1]
    while len(", ".join([*shown, names[len(shown)]])) <= most:
        shown.append(names[len(shown)])
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"


def one_line(text: str, most: int = SENTENCE) -> str:
    """A message in one line that can be printed; from a longer one than ``most`` characters the middle is cut out."""
    text = "".join(map(_printable, " ".join(text.splitlines())))
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 2 - 3) :]}"


def _printable(letter: str) -> str:
    """A character, or its escape sequence where it has no picture or no encoding (half of a surrogate pair)."""
    return letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()


class UnknownName(AttrimError):
    """A name that no registry knows."""

    def __init__(self, kind: str, name: Any, known: Iterable[str]) -> None:
        known = sorted(known)
        near = nearest(name[:LONGEST], known) if isinstance(name, str) else ""
        said = f"There is no {kind} named {shorten(name)}; "
        # A longer sentence would lose its middle, which is the name, so the list gets what room is left.
        room = max(SENTENCE // 6, min(SENTENCE // 2, SENTENCE - len(said) - len("known are  and 100 more.")))
        super().__init__(said + (near or f"known are {listed(known, room) or 'none'}."))


class PluginError(AttrimError):
    """A package that adds to attrim and cannot be imported."""


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


def require_all(items: Iterable[Any], kind: type, word: str) -> None:
    """Refuse what is not a ``kind``, called ``word``: a class that was not called, a nested list, anything else."""
    for item in items:
        if isinstance(item, kind):
            continue
        if isinstance(item, type) and issubclass(item, kind):
            raise ParameterError(f"{item.__name__} is a class, not {word}; write {item.__name__}(...).")
        if isinstance(item, (list, tuple)):
            raise ParameterError(f"A {type(item).__name__} was given in place of {word}; give them one by one.")
        raise ParameterError(f"{word.capitalize()} was expected, not {shorten(item)}; 'attrim ls' lists what there is.")


def require_model(model: Any) -> None:
    """Refuse what is not a module, most often the name of a model."""
    from torch import nn

    if isinstance(model, str):
        raise ParameterError(f"A model was expected, not its name; load it with attrim.load_model({model!r}).")
    if not isinstance(model, nn.Module):
        raise ParameterError(f"A model (an nn.Module) was expected, not {type(model).__name__}.")
