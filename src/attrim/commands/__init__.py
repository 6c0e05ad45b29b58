"""The commands of the command line, each a dataclass that Python code can use as well."""

from __future__ import annotations

from ..core.registry import COMMANDS, STUDIES
from .base import Command


def commands() -> dict[str, type[Command]]:
    """Every command by name: the verbs, and one for each study."""
    from .study import command_of

    return {name: COMMANDS[name] for name in COMMANDS} | {name: command_of(STUDIES[name]) for name in STUDIES}
