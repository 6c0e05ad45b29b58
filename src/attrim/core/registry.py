"""Registries: a method is one file with one decorator, found by name without being listed anywhere else.

The registries themselves are at the end: a name and a package each, so that texts can be parsed and members listed
without importing the packages before something is looked up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import UnknownName

if TYPE_CHECKING:
    from torch import Tensor

    from ..codebooks.base import Method
    from ..commands.base import Command
    from ..edits.base import Edit
    from ..edits.families import Family
    from ..scores.base import Score
    from ..stats.base import Stat
    from ..studies.base import Study
    from ..tasks.base import Task

T = TypeVar("T")
Registered = TypeVar("Registered")


class Registry(Generic[T]):
    """Names to classes of one kind; the modules of ``package`` are imported on the first look-up.

    Parameters
    ----------
    kind : the word for a member in error messages (``"edit"``, ``"stat"``, ``"task"``).
    package : the package whose modules register themselves when they are imported.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._members: dict[str, T] = {}
        self._scanned = False

    def register(self, name: str) -> Callable[[Registered], Registered]:
        """Decorate a class (or function) to make it known as ``name`` (lower case, words joined by hyphens)."""

        def decorate(member: Registered) -> Registered:
            self._members[name] = member  # type: ignore[assignment]
            member.registered_name = name  # type: ignore[attr-defined]
            return member

        return decorate

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")

    def __getitem__(self, name: str) -> T:
        self._scan()
        tidy = name.strip().lower().replace("_", "-")
        if tidy not in self._members:
            raise UnknownName(self.kind, name, self._members)
        return self._members[tidy]

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._members))

    def by_class_name(self) -> dict[str, T]:
        """The members keyed by their class names, as they appear in Python (``"Threshold"``)."""
        self._scan()
        return {getattr(member, "__name__", name): member for name, member in self._members.items()}


EDITS: Registry[type[Edit]] = Registry("edit", "attrim.edits")
STATS: Registry[type[Stat]] = Registry("stat", "attrim.stats")
SCORES: Registry[type[Score]] = Registry("score", "attrim.scores")
TASKS: Registry[type[Task]] = Registry("task", "attrim.tasks")
STUDIES: Registry[type[Study]] = Registry("study", "attrim.studies")
METHODS: Registry[Method] = Registry("quantising method", "attrim.codebooks")
RELEASED: Registry[Callable[..., Tensor]] = Registry("released quantising function", "attrim.codebooks")
FAMILIES: Registry[Family] = Registry("constant family", "attrim.edits")
COMMANDS: Registry[type[Command]] = Registry("command", "attrim.commands")
