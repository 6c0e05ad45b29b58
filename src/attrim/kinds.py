"""What a user gives to the verbs is of the right kind, or one sentence says what it is instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import ParameterError


def require_all(items: Iterable[Any], kind: type, word: str) -> None:
    """Refuse what is no ``kind``, called ``word``: a class that was not called, a list in the list, anything else."""
    for item in items:
        if isinstance(item, kind):
            continue
        if isinstance(item, type) and issubclass(item, kind):
            raise ParameterError(f"{item.__name__} is a class, not {word}; write {item.__name__}(...).")
        if isinstance(item, (list, tuple)):
            raise ParameterError(f"A {type(item).__name__} was given in place of {word}; give them one by one.")
        raise ParameterError(f"{word.capitalize()} was expected, not {item!r}; 'attrim ls' lists what there is.")


def require_model(model: Any) -> None:
    """Refuse what is no module, most often the name of a model."""
    from torch import nn

    if isinstance(model, str):
        raise ParameterError(f"A model was expected, not its name; load it with attrim.load_model({model!r}).")
    if not isinstance(model, nn.Module):
        raise ParameterError(f"A model (an nn.Module) was expected, not {type(model).__name__}.")
