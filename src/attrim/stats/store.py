"""Stats together with their origin: what a measurement gives back, saves, loads and merges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..atomic import replace_file, replace_tensors
from ..errors import ArtefactError, AttrimError, UnknownName
from .base import STATS, Stat
from .origin import Origin

FORMAT = 1
INDEX = "stats.json"


class Stats(Mapping[str, Stat]):
    """The stats of one measurement by their class names (``stats["Histogram"]``).

    A second stat of one class is found as ``"Histogram-2"``, and so on.
    """

    def __init__(self, stats: Iterable[Stat], origin: Origin | None = None) -> None:
        self.origin = origin or Origin()
        self._stats: dict[str, Stat] = {}
        for stat in stats:
            kind = type(stat).__name__
            same = sum(type(other) is type(stat) for other in self._stats.values())
            self._stats[f"{kind}-{same + 1}" if same else kind] = stat

    def __getitem__(self, name: str) -> Stat:
        if name not in self._stats:
            raise UnknownStat(name, self._stats)
        return self._stats[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)

    def __repr__(self) -> str:
        return f"Stats({', '.join(self)}; {self.origin.data.examples} examples of {self.origin.model or 'a model'})"

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
        return save_stats(self.values(), folder, self.origin)

    @classmethod
    def load(cls, folder: str | Path) -> Stats:
        """The stats that :meth:`save` wrote to ``folder``."""
        index = _read_index(Path(folder))
        try:
            return cls(_read_stats(Path(folder), index), Origin.from_json(index["origin"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(Path(folder), str(error)) from error


class UnknownStat(UnknownName, KeyError):
    """A stat that was not measured."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        UnknownName.__init__(self, "measured stat", name, known)

    __str__ = AttrimError.__str__


def save_stats(stats: Iterable[Stat], folder: str | Path, origin: Origin | None = None) -> Path:
    """Write stats and their origin to ``folder`` and return it."""
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    entries = []
    for number, stat in enumerate(stats):
        own, fields = stat.state()
        tensors |= {f"{number}/{name}": tensor.clone() for name, tensor in own.items()}
        entries.append({"name": stat.registered_name, "fields": fields})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "stats-new.safetensors"
        replace_tensors(part, tensors)
        digest = _digest(part)
        file = part.replace(folder / f"stats-{digest[:16]}.safetensors")
        index = {
            "format": FORMAT,
            "origin": (origin or Origin()).to_json(),
            "stats": entries,
            "tensors": file.name,
            "digest": digest,
        }
        # The index is what a reader follows; it is renamed into place last.
        replace_file(folder / INDEX, json.dumps(index, indent=1).encode())
        for stale in folder.glob("stats-*.safetensors"):
            if stale != file:
                stale.unlink()
    except OSError as error:
        raise ArtefactError(
            f"The stats cannot be written to {str(folder)!r}: {error.strerror}; choose another folder."
        ) from error
    return folder


def load_stats(folder: str | Path) -> list[Stat]:
    """The stats that were saved in ``folder``, in the order they were given."""
    return list(Stats.load(folder).values())


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        raise ArtefactError(
            f"There are no saved stats in {str(folder)!r}: {INDEX} is missing; give a folder that a measurement wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    if not isinstance(index, dict):
        raise _damaged(folder, f"{INDEX} holds no stats")
    if index.get("format") != FORMAT:
        raise ArtefactError(
            f"The stats in {str(folder)!r} have format {index.get('format')!r}, not {FORMAT}; use another attrim."
        )
    return index


def _read_stats(folder: Path, index: dict[str, Any]) -> list[Stat]:
    file = folder / Path(index["tensors"]).name
    try:
        if _digest(file) != index["digest"]:
            raise _damaged(folder, f"{file.name} is not what was written")
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, str(error)) from error
    stats = []
    for number, entry in enumerate(index["stats"]):
        prefix = f"{number}/"
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        stats.append(STATS[entry["name"]].load(own, entry["fields"]))
    return stats


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _damaged(folder: Path, cause: str) -> ArtefactError:
    return ArtefactError(
        f"The stats in {str(folder)!r} cannot be read ({cause.rstrip('.')}); restore them or measure again."
    )
