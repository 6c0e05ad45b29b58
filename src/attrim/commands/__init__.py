"""The commands of the command line, each a dataclass that Python code can use as well."""

from __future__ import annotations

from .bake import Bake
from .base import Command, Outcome
from .constant import Constant
from .demo import Demo
from .evaluate import Evaluate
from .export import Export
from .ls import Ls
from .measure import Measure
from .sites import Sites
from .sparsity import Sparsity
from .train import Train

COMMANDS: dict[str, type[Command]] = {
    "demo": Demo,
    "ls": Ls,
    "sites": Sites,
    "measure": Measure,
    "evaluate": Evaluate,
    "export": Export,
    "train": Train,
    "bake": Bake,
    "sparsity": Sparsity,
    "constant": Constant,
}

__all__ = [
    "COMMANDS",
    "Bake",
    "Command",
    "Constant",
    "Demo",
    "Evaluate",
    "Export",
    "Ls",
    "Measure",
    "Outcome",
    "Sites",
    "Sparsity",
    "Train",
]
