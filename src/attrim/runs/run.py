"""Run folders: what a study was asked and found, under a name that follows from its configuration.

``config.json`` has the configuration, ``versions.json`` the versions of the packages, ``results.sqlite`` the settings
with their metrics and their predictions example by example, ``arrays`` larger tensors. The database has a digest of the
configuration, of each setting and of each file of tensors, and what does not fit its digest is refused.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..core import record
from ..core.cells import Cell
from ..core.documents import MissingFile, Unreadable, parse_json, read_json
from ..core.paths import home_path
from ..errors import ArtefactError
from .files import file_digest, read_sealed, replace_file, replace_sealed, storage, write_tensors
from .locks import Lock

FORMAT = 2
"""Of the database; the first one had no digests."""
# One transaction: a process that is killed in the middle leaves an empty database, not half of the tables.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS settings (
    name TEXT PRIMARY KEY, place INTEGER NOT NULL, stored REAL NOT NULL, fields TEXT NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS metrics (
    setting TEXT NOT NULL REFERENCES settings(name) ON DELETE CASCADE, place INTEGER NOT NULL, metric TEXT NOT NULL,
    value REAL, PRIMARY KEY (setting, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS predictions (
    setting TEXT NOT NULL REFERENCES settings(name) ON DELETE CASCADE, name TEXT NOT NULL, example INTEGER NOT NULL,
    value, PRIMARY KEY (setting, name, example)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS arrays (name TEXT PRIMARY KEY, file TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_RESTORE = "restore it from a copy, or move the folder away to begin again"

_PACKAGES = ("attrim", "torch", "transformers", "datasets", "numpy", "safetensors")


class Run(Cell):
    """One run folder: ``config.json``, ``versions.json``, ``results.sqlite`` and ``arrays/*.safetensors``.

    Use :meth:`open` (or :meth:`read` for looking only), best in a ``with`` statement. A setting is stored in one
    transaction, all or nothing.
    """

    def __init__(self, folder: Path, config: dict[str, Any], lock: Lock | None = None) -> None:
        self.folder = folder
        self.config = config
        self.key = config_hash(config)
        self._lock = lock
        self._database: sqlite3.Connection | None = None
        try:
            with storage(folder):
                self._check_database()
        except ArtefactError:
            self.close()
            raise

    @classmethod
    def open(cls, where: str | Path, config: Mapping[str, Any], name: str = "run") -> Run:
        """Open the run of a configuration, or begin it; no other process can open it while this one has it open.

        Parameters
        ----------
        where : a folder of runs, in which the run gets the folder ``NAME-HASH``, or the folder of this very run.
        config : JSON values, everything that the results depend on: model, task, settings, seed.
        name : begins the folder's name; not part of the hash.
        """
        try:
            plain = json.loads(json.dumps(config, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ArtefactError(f"A run's configuration must be JSON values: {error}.") from error
        where = home_path(where)
        with storage(where):
            own = (where / "config.json").exists()
            folder = where if own else where / f"{_tidy(name)}-{config_hash(plain)[:12]}"
            (folder / "arrays").mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
        try:
            return cls._opened(folder, plain, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _opened(cls, folder: Path, config: dict[str, Any], lock: Lock) -> Run:
        path = folder / "config.json"
        if path.exists():
            known = _read_config(folder)
            if config_hash(known) != config_hash(config):
                raise ArtefactError(
                    f"{folder} holds a run with another configuration (it differs in {_difference(known, config)}); "
                    "give another folder, or a folder of runs."
                )
        run = cls(folder, config, lock)
        with storage(folder):
            if not path.exists():
                replace_file(path, json.dumps(config, indent=2, allow_nan=False).encode())
            run._note_versions()
        return run

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Open an existing run by its folder alone, to look at it; another process may be writing to it."""
        folder = home_path(folder, "folder of a run")
        config = _read_config(folder)
        if not (folder / "results.sqlite").exists():  # a model's folder has a config.json too
            raise ArtefactError(f"{folder} holds no run (there is no results.sqlite); check the path.")
        return cls(folder, config)

    def write(self, name: str, values: Mapping[str, Any]) -> Path:
        """Write a JSON object to a file of the run's folder, or of a folder in it, together with its digest."""
        path = self.folder / name
        with storage(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_sealed(path, values)
        return path

    def read_json(self, name: str) -> dict[str, Any]:
        """The inverse of :meth:`write`."""
        return read_sealed(self.folder / name, "remove it and repeat the command of this run")

    def store(
        self,
        setting: str,
        metrics: Mapping[str, float],
        predictions: Mapping[str, NDArray[Any]] | None = None,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the results of one setting, all or nothing; what it held before is replaced.

        Parameters
        ----------
        predictions : columns ``[N]`` of numbers, one value an example.
        fields : anything else as JSON values.
        arrays : named tensors, as :meth:`save_arrays` keeps them.
        """
        columns = {name: np.asarray(column).tolist() for name, column in (predictions or {}).items()}
        row = _Row(json.dumps(fields or {}, allow_nan=False), [], {})
        row.metrics += [(metric, float(value) + 0.0) for metric, value in metrics.items()]  # SQLite knows no -0.0
        row.columns |= {name: [_number(value) for value in column] for name, column in columns.items() if column}
        with storage(self.folder):
            file = None if arrays is None else self._write_arrays(setting, arrays)
            with self._connection() as database:
                place = database.execute("SELECT coalesce(max(place), -1) + 1 FROM settings").fetchone()[0]
                database.execute("DELETE FROM settings WHERE name = ?", (setting,))
                values = (setting, place, time.time(), row.fields, row.digest(setting, place))
                database.execute("INSERT INTO settings VALUES (?, ?, ?, ?, ?)", values)
                rows: Iterable[tuple[Any, ...]] = ((setting, at, *item) for at, item in enumerate(row.metrics))
                database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)
                for name, column in row.columns.items():
                    rows = ((setting, name, number, value) for number, value in enumerate(column))
                    database.executemany("INSERT INTO predictions VALUES (?, ?, ?, ?)", rows)
                if file is not None:
                    self._name_arrays(database, setting, file)
            self._remove_stale(setting, file)

    def settings(self) -> list[str]:
        """The names of the stored settings, in the order they were stored."""
        rows: list[tuple[str]] = self._query(tuple[str], "SELECT name FROM settings ORDER BY place")
        return [name for (name,) in rows]

    def fields(self, setting: str) -> dict[str, Any] | None:
        """The fields of a stored setting; None when it is not stored yet."""
        row = self._row(setting)
        if row is None:
            return None
        try:
            fields = parse_json(row.fields)
        except Unreadable as error:
            raise self._damaged(setting) from error
        known: dict[str, Any] = record.load(dict[str, Any], fields, f"fields of {setting!r} in {self.folder}")
        return known

    def metrics(self) -> dict[str, dict[str, float]]:
        """Every stored setting's metrics by name."""
        rows = {setting: self._row(setting) for setting in self.settings()}
        return {setting: dict(row.metrics) for setting, row in rows.items() if row is not None}

    def predictions(self, setting: str) -> dict[str, NDArray[Any]]:
        """The per-example columns of a stored setting."""
        row = self._row(setting)
        return {} if row is None else {name: np.array(column) for name, column in row.columns.items()}

    @property
    def finished(self) -> bool:
        """Whether :meth:`finish` was called."""
        return bool(self._query(tuple[str], "SELECT key FROM state WHERE key = 'finished'"))

    def finish(self) -> None:
        """Mark the run as complete."""
        with storage(self.folder), self._connection() as database:
            database.execute("INSERT OR REPLACE INTO state VALUES ('finished', ?)", (str(time.time()),))

    def save_arrays(self, name: str, tensors: Mapping[str, Any]) -> Path:
        """Write named tensors to a file of the folder ``arrays``."""
        with storage(self.folder):
            file = self._write_arrays(name, tensors)
            with self._connection() as database:
                self._name_arrays(database, name, file)
            self._remove_stale(name, file)
        return file[0]

    def load_arrays(self, name: str) -> dict[str, Any]:
        """The inverse of :meth:`save_arrays`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        rows = self._query(tuple[str, str], "SELECT file, digest FROM arrays WHERE name = ?", name)
        what = f"The file of arrays for {name!r} in {self.folder}"
        remedy = "remove the run's folder to repeat it"
        if not rows or Path(rows[0][0]).name != rows[0][0]:
            raise ArtefactError(f"{what} is missing or damaged (the database names none); {remedy}.")
        path = self.folder / "arrays" / rows[0][0]
        try:
            if file_digest(path) != rows[0][1]:
                raise ArtefactError(f"{what} is missing or damaged ({path} has changed since it was saved); {remedy}.")
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtefactError(f"{what} is missing or damaged ({error}); {remedy}.") from error

    def close(self) -> None:
        """Close the database; every result is already on disk."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = sqlite3.connect(self.folder / "results.sqlite", timeout=60)
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.execute("PRAGMA synchronous = FULL")
        return self._database

    def _check_database(self) -> None:
        """Make the tables where there are none; refuse a database of another format or another configuration."""
        database = self._connection()
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found != FORMAT and database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise ArtefactError(
                f"The results in {self.folder} have format {found}, not {FORMAT}, so another attrim wrote them; move "
                "the folder away, or give another one, to begin again."
            )
        if found != FORMAT:
            database.executescript(_SCHEMA)
        rows = self._query(tuple[str], "SELECT value FROM state WHERE key = 'config'")
        if not rows:
            with database:
                database.execute("INSERT INTO state VALUES ('config', ?)", (self.key,))
        elif rows[0][0] != self.key:
            raise ArtefactError(f"{self.folder / 'config.json'} has changed since the run began; {_RESTORE}.")

    def _query(self, hint: Any, question: str, *values: Any) -> list[Any]:
        """The rows that a question gives, each checked against a type hint."""
        with storage(self.folder):
            rows = self._connection().execute(question, values).fetchall()
        return [record.load(hint, list(row), f"database of {self.folder}") for row in rows]

    def _row(self, setting: str) -> _Row | None:
        """All that is stored for a setting; refuses what has changed since."""
        question = "SELECT place, fields, digest FROM settings WHERE name = ?"
        rows = self._query(tuple[int, str, str], question, setting)
        if not rows:
            return None
        place, fields, digest = rows[0]
        row = _Row(fields, [], {})
        question = "SELECT metric, value FROM metrics WHERE setting = ? ORDER BY place"
        found = self._query(tuple[str, float | None], question, setting)
        row.metrics += [(metric, math.nan if value is None else value) for metric, value in found]
        question = "SELECT name, value FROM predictions WHERE setting = ? ORDER BY name, example"
        with storage(self.folder):
            for name, value in self._connection().execute(question, (setting,)):
                if not isinstance(name, str) or not isinstance(value, (int, float, NoneType)):
                    raise self._damaged(setting)
                row.columns.setdefault(name, []).append(math.nan if value is None else value)
        if row.digest(setting, place) != digest:
            raise self._damaged(setting)
        return row

    def _damaged(self, setting: str) -> ArtefactError:
        return ArtefactError(
            f"The result {setting!r} in {self.folder / 'results.sqlite'} has changed since it was stored; {_RESTORE}."
        )

    def _write_arrays(self, name: str, tensors: Mapping[str, Any]) -> tuple[Path, str]:
        """Write tensors to a file that is named after its content, and return it with its digest."""
        folder = self.folder / "arrays"
        folder.mkdir(exist_ok=True)
        return write_tensors(folder, self._array_name(name), tensors)

    @staticmethod
    def _name_arrays(database: sqlite3.Connection, name: str, file: tuple[Path, str]) -> None:
        path, digest = file
        database.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?)", (name, path.name, digest))

    def _remove_stale(self, name: str, file: tuple[Path, str] | None) -> None:
        """Remove the files of tensors that the name had before."""
        for path in (self.folder / "arrays").glob(f"{self._array_name(name)}-*.safetensors"):
            if file is not None and path != file[0]:
                path.unlink()

    @staticmethod
    def _array_name(name: str) -> str:
        # A tidy name alone could be the same for two settings.
        return f"{_tidy(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def _note_versions(self) -> None:
        """Remember with which versions the run was worked on, once for each set of them."""
        path = self.folder / "versions.json"
        versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
        seen: list[dict[str, str]] = []
        if path.exists():
            remedy = "remove it, it only tells with which packages the run was made"
            seen = record.load(list[dict[str, str]], read_json(path, remedy), f"file {path} ({remedy})")
        if versions not in seen:
            replace_file(path, json.dumps([*seen, versions], indent=2).encode())


@dataclass
class _Row:
    """What the database holds of one setting: fields as JSON text, metrics, and columns of numbers by name."""

    fields: str
    metrics: list[tuple[str, float]]
    columns: dict[str, list[Any]]

    def digest(self, setting: str, place: int) -> str:
        """The digest of everything, and of the name and the place it is stored under."""
        # repr, because it tells 1 from 1.0, -0.0 from 0.0, and knows NaN; columns come back sorted by name.
        digest = hashlib.sha256(repr((setting, place, self.fields, self.metrics)).encode("utf-8", "surrogatepass"))
        for name in sorted(self.columns):
            digest.update(repr((name, self.columns[name])).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _number(value: Any) -> Any:
    """A value of a column as the database gives it back."""
    return int(value) if isinstance(value, bool) else value


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = read_json(path, _RESTORE)
    except MissingFile as error:
        raise ArtefactError(f"{folder} holds no run (there is no config.json); check the path.") from error
    known: dict[str, Any] = record.load(dict[str, Any], config, f"file {path}")
    return known


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash a configuration of JSON values; the order of keys does not matter."""
    return hashlib.sha256(_dump(config).encode()).hexdigest()


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _tidy(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "run"


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    keys = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    return ", ".join(keys)
