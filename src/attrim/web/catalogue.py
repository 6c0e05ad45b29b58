"""The runs under some folders: found, named by numbers that say nothing about paths, and only ever read."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ..core.documents import Unreadable, parse_json, read_bytes
from ..errors import ArtefactError, shorten
from ..runs.locks import is_locked

DEPTH = 3
"""Folders between one that was given and a run."""
MOST = 2_000
"""Runs that are listed."""
MOST_CONFIG = 4 * 2**20
"""Bytes of a configuration."""
SHOWN = 500
"""Settings of a run that is going on which are listed, the last ones."""
RunState = Literal["complete", "going on", "stopped", "damaged"]


@dataclass(frozen=True)
class RunEntry:
    """One run in the list.

    Attributes
    ----------
    id : names it in addresses.
    name : of its folder.
    begun, changed : seconds since 1970, when its folder was made and last written to.
    settings : how many results it has.
    parts : how many runs inside of it (trainings) are complete, and how many there are.
    findings : whether there is something to show.
    problem : what is wrong with it.
    """

    id: str
    name: str
    folder: Path
    study: str
    model: str
    task: str
    begun: float
    changed: float
    state: RunState
    settings: int
    parts: tuple[int, int]
    findings: bool
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, without the path."""
        hidden = {name: value for name, value in vars(self).items() if name != "folder"}
        return {**hidden, "parts": list(self.parts)}


class Catalogue:
    """All runs under some folders.

    Parameters
    ----------
    folders : runs, or folders of them.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ArtefactError(f"There is no folder {folder} with runs; check the path.")
        self.folders = [folder.resolve() for folder in folders]
        self._configs: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def entries(self) -> list[RunEntry]:
        """Every run, the one that was written to last at the front."""
        found: dict[Path, RunEntry] = {}
        for folder in self.folders:
            for path in _runs(folder, DEPTH):
                if path not in found:
                    found[path] = self._entry(path)
                if len(found) >= MOST:
                    break
        return sorted(found.values(), key=lambda entry: (-entry.changed, entry.name))

    def entry(self, number: str) -> RunEntry | None:
        """The run of an id; None where there is none."""
        for folder in self.folders:
            for path in _runs(folder, DEPTH):
                if _number(path) == number:
                    return self._entry(path)
        return None

    def progress(self, entry: RunEntry) -> dict[str, Any]:
        """What a run holds so far: its configuration, and the settings that it stored last with their metrics."""
        try:
            config, results = self._config(entry.folder), _results(entry.folder)
        except (Unreadable, OSError, sqlite3.Error) as error:
            raise ArtefactError(
                f"The run {entry.name} cannot be read ({shorten(error, str)}); repeat its command, or remove it."
            ) from error
        return {"run": entry.to_json(), "configuration": config, "results": results}

    def _entry(self, folder: Path) -> RunEntry:
        problem, config, stored = "", {}, (0, False)
        try:
            config = self._config(folder)
            stored = _stored(folder)
        except (ArtefactError, Unreadable, OSError, sqlite3.Error) as error:
            problem = shorten(error, str, most=200)
        state: RunState = "damaged" if problem else "complete" if stored[1] else "stopped"
        if is_locked(folder):
            state = "going on"
        inside = list(_runs(folder, 2, inside=True))
        return RunEntry(
            id=_number(folder),
            name=_text(folder.name),
            folder=folder,
            study=_text(config.get("study", "")),
            model=_text(config.get("model", "")),
            task=_task(config),
            begun=_time(folder / "config.json"),
            changed=max(_time(folder / name) for name in ("config.json", "results.sqlite", "findings.json")),
            state=state,
            settings=stored[0],
            parts=(sum(_finished(path) for path in inside), len(inside)),
            findings=(folder / "findings.json").is_file(),
            problem=problem,
        )

    def _config(self, folder: Path) -> dict[str, Any]:
        """The configuration of a run, read again when its file changes."""
        path = folder / "config.json"
        about = path.stat()
        stamp = (about.st_mtime_ns, about.st_size)
        with self._lock:
            known = self._configs.get(folder)
        if known is None or known[0] != stamp:
            values = parse_json(read_bytes(path, MOST_CONFIG))
            known = stamp, values if isinstance(values, dict) else {}
            with self._lock:
                self._configs[folder] = known
        return known[1]


def _runs(folder: Path, depth: int, inside: bool = False) -> Iterator[Path]:
    """The runs in a folder; a run's own folder is not searched, unless what is ``inside`` is asked for."""
    if not inside and (folder / "config.json").is_file() and (folder / "results.sqlite").is_file():
        yield folder
    elif depth >= 0:
        try:
            with os.scandir(folder) as entries:
                # A link may lead out of the folder that was given, or back into it.
                found = sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for path in found[:MOST]:
            yield from _runs(path, depth - 1)


def _stored(folder: Path) -> tuple[int, bool]:
    """How many settings a run has, and whether it is complete."""
    with closing(_database(folder)) as database:
        (settings,) = database.execute("SELECT count(*) FROM settings").fetchone()
        done = database.execute("SELECT 1 FROM state WHERE key = 'finished'").fetchone()
    return int(settings), done is not None


def _finished(folder: Path) -> bool:
    try:
        return _stored(folder)[1]
    except (OSError, sqlite3.Error):
        return False


def _results(folder: Path) -> list[dict[str, Any]]:
    """The settings that were stored last, the oldest of them first, with time and metrics."""
    with closing(_database(folder)) as database:
        question = "SELECT name, stored FROM settings ORDER BY place DESC LIMIT ?"
        rows = database.execute(question, (SHOWN,)).fetchall()
        found = []
        for name, stored in reversed(rows):
            question = "SELECT metric, value FROM metrics WHERE setting = ? ORDER BY place LIMIT 40"
            metrics = [(_text(metric), _float(value)) for metric, value in database.execute(question, (name,))]
            found.append({"name": _text(name), "stored": _float(stored), "metrics": dict(metrics)})
    return found


def _database(folder: Path) -> sqlite3.Connection:
    """The database of a run, which cannot be changed through it."""
    return sqlite3.connect(f"file:{quote(str(folder / 'results.sqlite'))}?mode=ro", uri=True, timeout=2)


def _number(folder: Path) -> str:
    return hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()


def _text(value: Any) -> str:
    """What a file holds as a text that can be sent, whatever it is."""
    text = value if isinstance(value, str) else str(value)
    return text[:300].encode("utf-8", "replace").decode()


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < float("inf") else None


def _task(config: dict[str, Any]) -> str:
    """The task that a configuration names."""
    for key in ("task", "validation", "training"):
        value = config.get(key)
        if isinstance(value, dict) and "name" in value:
            return _text(value["name"])
        if isinstance(value, str):
            return _text(value)
    return ""


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
