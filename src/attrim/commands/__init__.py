"""The commands of the command line, each a dataclass that Python code can use as well."""

from __future__ import annotations

from .base import Command, Outcome
from .evaluate import Evaluate
from .ls import Ls
from .sites import Sites

COMMANDS: dict[str, type[Command]] = {"ls": Ls, "sites": Sites, "evaluate": Evaluate}

__all__ = ["COMMANDS", "Command", "Evaluate", "Ls", "Outcome", "Sites"]
