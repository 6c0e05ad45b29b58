"""Stats together with their origin: what a measurement gives back, saves, loads and merges."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import Tensor

from ..core.cells import Cell
from ..core.charts import Chart, Table
from ..core.registry import STATS
from ..core.wording import counted
from ..errors import ArtefactError, AttrimError, ParameterError, UnknownName, nearest
from ..runs.artefact import UNFIT, Artefact
from .base import Stat
from .origin import Origin

STORE = Artefact("stats", source="a folder that a measurement wrote", remedy="restore them or measure again")
INDEX = STORE.index
Kind = TypeVar("Kind")
OneStat = TypeVar("OneStat", bound=Stat)


class Stats(Mapping[str, Stat], Cell):
    """The stats of one measurement, by class (``stats[Histogram]``, which is typed) or name (``stats["Histogram"]``).

    The first stat of a class has the name of the class, the second one is ``"Histogram-2"``, and so on.
    """

    def __init__(self, stats: Iterable[Stat], origin: Origin | None = None) -> None:
        self.origin = origin or Origin()
        self.folder: Path | None = None  # where they are saved, if they are
        self._stats: dict[str, Stat] = {}
        for stat in stats:
            kind = type(stat).__name__
            same = sum(type(other) is type(stat) for other in self._stats.values())
            self._stats[f"{kind}-{same + 1}" if same else kind] = stat

    @overload
    def __getitem__(self, which: type[OneStat]) -> OneStat: ...
    @overload
    def __getitem__(self, which: str) -> Stat: ...
    def __getitem__(self, which: str | type[Stat]) -> Stat:
        if isinstance(which, str):
            names = [which] if which in self._stats else []
        else:
            names = [name for name, stat in self._stats.items() if type(stat) is which]
        if not names:
            raise UnknownStat(which if isinstance(which, str) else which.__name__, self._stats)
        if len(names) > 1:
            one = ", ".join(f"{name!r} ({self._stats[name].options()})" for name in names)
            raise ParameterError(f"There are {len(names)} stats of the class {names[0]}; choose one by name: {one}.")
        return self._stats[names[0]]

    def __contains__(self, which: object) -> bool:
        return which in self._stats or any(type(stat) is which for stat in self._stats.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)

    def __repr__(self) -> str:
        examples = counted(self.origin.data.examples, "example")
        return f"Stats({', '.join(self)}; {examples} of {self.origin.model or 'a model'})"

    def merge(self, other: Stats) -> Stats:
        """Add what was measured on another part of the data; refuses what does not fit."""
        origin = self.origin + other.origin
        if list(self) != list(other):
            raise ArtefactError(
                f"Stats {', '.join(self)} do not fit stats {', '.join(other)}; measure the same stats on both parts."
            )
        for name, stat in self._stats.items():
            stat.merge(other[name])
        self.origin = origin
        return self

    def save(self, folder: str | Path) -> Path:
        """Write everything to ``folder``, which holds the old stats or the new ones at any moment, never a mixture."""
        self.folder = save_stats(self.values(), folder, self.origin)
        return self.folder

    @classmethod
    def load(cls, folder: str | Path) -> Stats:
        """The stats that :meth:`save` wrote to ``folder``."""
        index, tensors = STORE.read(folder)
        try:
            stats = cls(_read_stats(index["stats"], tensors), Origin.from_json(index["origin"]))
        except UNFIT as error:
            raise STORE.damaged(folder, str(error)) from error
        stats.folder = Path(folder)
        return stats

    @classmethod
    def stored(cls, folder: str | Path, stats: Sequence[Stat]) -> Stats | None:
        """What an earlier pass left in ``folder``, if it had stats with the same options; None if there is none."""
        if not (Path(folder) / INDEX).exists():
            return None
        try:
            known = cls.load(folder)
        except ArtefactError:
            return None  # damaged: measuring again replaces it
        wanted = [(type(stat), stat.options()) for stat in stats]
        return known if [(type(stat), stat.options()) for stat in known.values()] == wanted else None

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The tables of all stats; those of a second stat of one class have its number in their names."""
        return [table for name, stat in self.items() for table in _numbered(name, stat, stat.tables(tokenizer))]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The charts of all stats, named like the tables."""
        return [chart for name, stat in self.items() for chart in _numbered(name, stat, stat.charts(tokenizer))]

    @staticmethod
    def origin_of(folder: str | Path) -> Origin:
        """What the stats in ``folder`` were measured on, without reading the stats."""
        try:
            return Origin.from_json(STORE.read_index(folder)["origin"])
        except UNFIT as error:
            raise STORE.damaged(folder, str(error)) from error


Shown = TypeVar("Shown", bound=Chart)


def _numbered(name: str, stat: Stat, shown: Iterable[Shown]) -> list[Shown]:
    """Charts with the number of their stat among those of its class (``-2``) in their names."""
    number = name.removeprefix(type(stat).__name__)
    return [dataclasses.replace(chart, name=f"{chart.name}{number}") for chart in shown]


class UnknownStat(UnknownName, KeyError):
    """A stat that was not measured."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = f" ({near})" if (near := nearest(name, known)) else ""
        measured = ", ".join(known) or "nothing"
        AttrimError.__init__(self, f"The stat {name!r} was not measured{hint}; what was measured is {measured}.")

    __str__ = AttrimError.__str__


def save_stats(stats: Iterable[Stat], folder: str | Path, origin: Origin | None = None, **more: Any) -> Path:
    """Write stats, their origin and further JSON values to ``folder`` and return it."""
    tensors: dict[str, Tensor] = {}
    entries = []
    for number, stat in enumerate(stats):
        own, fields = stat.state()
        tensors |= {f"{number}/{name}": tensor for name, tensor in own.items()}
        entries.append({"name": stat.registered_name, "fields": fields})
    return STORE.save(folder, {"origin": (origin or Origin()).to_json(), "stats": entries, **more}, tensors)


def load_stats(folder: str | Path) -> list[Stat]:
    """The stats that were saved in ``folder``, in the order they were given."""
    return list(Stats.load(folder).values())


def load_stat(folder: str | Path, kind: type[Kind], content: str, name: str) -> Kind:
    """The first stat of one kind in ``folder``.

    Parameters
    ----------
    content, name : what it holds and its registered name, for the sentence that says it is not there.
    """
    for stat in load_stats(folder):
        if isinstance(stat, kind):
            return stat
    raise ArtefactError(f"The folder {str(folder)!r} holds no {content}; measure it with the stat {name!r}.")


def _read_stats(entries: Iterable[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> list[Stat]:
    stats = []
    for number, entry in enumerate(entries):
        prefix = f"{number}/"
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        stats.append(STATS[entry["name"]].load(own, entry["fields"]))
    return stats
