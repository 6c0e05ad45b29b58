"""Registries: a method is one file with one decorator, found by name without being listed anywhere else.

The registries themselves are at the end: a name and a package each, so that texts can be parsed and members listed
without importing the packages before something is looked up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ParameterError, PluginError, UnknownName

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


REGISTRIES: dict[str, Registry[Any]] = {}
"""Every registry by what its members are called in the plural; ``attrim ls`` lists them."""


class Registry(Generic[T]):
    """Names to classes of one kind; the modules of ``package``, and plugins, are imported on the first look-up.

    A plugin is a module of another package that is listed in the entry-point group ``attrim.PLURAL``.

    Parameters
    ----------
    kind : the word for a member in error messages (``"edit"``, ``"stat"``, ``"task"``).
    package : the package whose modules register themselves when they are imported.
    plural : the word for all members, by which ``attrim ls`` lists them.
    note : how members are written on the command line, for ``attrim ls``.
    flags : whether the parameters of a member are flags of a command.
    folders : whether each member is a folder of the package, whose modules are what members share: they are not
        imported to find the members.
    """

    def __init__(
        self, kind: str, package: str, plural: str, note: str = "", *, flags: bool = False, folders: bool = False
    ) -> None:
        self.kind = kind
        self.package = package
        self.plural = plural
        self.note = note
        self.flags = flags
        self.folders = folders
        self._members: dict[str, T] = {}
        self._scanned = False
        self._extended = False
        REGISTRIES[plural] = self

    def register(self, name: str) -> Callable[[Registered], Registered]:
        """Decorate a class (or function) to make it known as ``name`` (lower case, words joined by hyphens)."""

        def decorate(member: Registered) -> Registered:
            if not getattr(member, "__module__", "").startswith(f"{self.package}."):
                self._scan_package()  # so that a name of attrim is never taken by somebody else's member
            known = self._members.get(name, member)
            # A cell of a notebook that is run again, or a module that is reloaded, replaces what it registered.
            if _home(known) != _home(member):
                raise ParameterError(
                    f"There are two members of the kind {self.kind!r} named {name!r}, {_home(known)} and "
                    f"{_home(member)}; give one of them another name."
                )
            self._members[name] = member  # type: ignore[assignment]
            member.registered_name = name  # type: ignore[attr-defined]
            return member

        return decorate

    def _scan_package(self) -> None:
        if not self._scanned:
            self._scanned = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                if module.ispkg or not self.folders:
                    importlib.import_module(f"{self.package}.{module.name}")

    def _scan(self) -> None:
        self._scan_package()
        if not self._extended:
            self._extended = True  # before, because a plugin may look something up while it is imported
            self._load_plugins()

    def _load_plugins(self) -> None:
        import importlib.metadata  # here, because it takes a while

        for entry in importlib.metadata.entry_points(group=f"attrim.{self.plural}"):
            try:
                entry.load()
            except Exception as error:
                self._extended = False  # the next look-up must not go on as if there were no plugin
                package = f" of the package {entry.dist.name}" if entry.dist else ""
                raise PluginError(
                    f"The plugin {entry.name!r}{package} ({entry.value}) could not be imported "
                    f"({type(error).__name__}: {error}); repair or uninstall it."
                ) from error

    def __getitem__(self, name: str) -> T:
        self._scan()
        tidy = name.strip().lower().replace("_", "-") if isinstance(name, str) else None
        if tidy is None or tidy not in self._members:
            raise UnknownName(self.kind, name, self._members)
        return self._members[tidy]

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._members))

    def by_class_name(self) -> dict[str, T]:
        """The members keyed by their class names, as they appear in Python (``"Threshold"``)."""
        self._scan()
        return {getattr(member, "__name__", name): member for name, member in self._members.items()}

    def attribute(self, module: str, name: str) -> T:
        """The member of a class name, as an attribute of a module that serves the members (PEP 562)."""
        # Look-ups that Python itself makes (__path__ and others) must not import everything.
        if name[:1].isupper() and name in (members := self.by_class_name()):
            return members[name]
        raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _home(member: Any) -> str:
    """Where a member is defined."""
    return f"{member.__module__}.{getattr(member, '__qualname__', type(member).__qualname__)}"


EDITS: Registry[type[Edit]] = Registry(
    "edit",
    "attrim.edits",
    "edits",
    "On the command line: --edit NAME:VALUE,FIELD=VALUE, for example --edit threshold:0.001,layers=0-3; "
    "roles, layers, heads and names select.",
)
STATS: Registry[type[Stat]] = Registry(
    "stat",
    "attrim.stats",
    "stats",
    "On the command line: --stats NAME:OPTION=VALUE, for example --stats histogram:rows=true.",
)
SCORES: Registry[type[Score]] = Registry("score", "attrim.scores", "scores")
TASKS: Registry[type[Task]] = Registry(
    "task",
    "attrim.tasks",
    "tasks",
    "On the command line: --task NAME --option OPTION=VALUE; data, limit, seed, max-length and batch-size are flags.",
)
STUDIES: Registry[type[Study]] = Registry("study", "attrim.studies", "studies", flags=True, folders=True)
METHODS: Registry[Method] = Registry(
    "quantising method", "attrim.codebooks", "methods", "On the command line: --edit quantize:NAME,bits=3."
)
RELEASED: Registry[Callable[..., Tensor]] = Registry(
    "released quantising function",
    "attrim.codebooks",
    "released",
    "What the released code of a paper does in place of a method: --edit quantize:NAME,bits=3,as_coded=true.",
)
FAMILIES: Registry[Family] = Registry("constant family", "attrim.edits", "families")
COMMANDS: Registry[type[Command]] = Registry("command", "attrim.commands", "commands", flags=True)
