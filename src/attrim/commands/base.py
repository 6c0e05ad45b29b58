"""What a command is: a dataclass whose fields are its flags, its YAML keys and its Python parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import UseAppendAction, arg

from ..core.registry import COMMANDS

register = COMMANDS.register

Chain = Annotated[UseAppendAction[tuple[str, ...]], arg(help_behavior_hint="(one text)")]
"""Edits of a command with one outcome. Each ``--edit`` is kept, so that a second one is an error and not ignored."""


@dataclass(frozen=True)
class Outcome:
    """What a command found: values for ``--json``, and what a person reads (texts and ``rich`` tables)."""

    data: dict[str, Any]
    shown: Sequence[Any] = ()


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of all commands: :meth:`run` does the work and prints nothing but progress."""

    registered_name: ClassVar[str]
    config: Path | None = None
    """YAML file whose keys are the flags of this command; flags given here win over it."""
    json: bool = False
    """Print the result as JSON and nothing else."""
    quiet: bool = False
    """Show no progress, only the result."""

    @property
    def progress(self) -> bool:
        """Whether to show progress: bars on a terminal, lines from time to time elsewhere."""
        return not (self.quiet or self.json)

    def run(self) -> Outcome:
        """Do what the command says."""
        raise NotImplementedError
