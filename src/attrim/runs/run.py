"""Run folders: what a study was asked and found, under a name that follows from its configuration.

``config.json`` has the configuration, ``versions.json`` the versions of the packages, ``results.sqlite`` the settings
with their metrics and their predictions example by example, ``arrays`` larger tensors.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ArtefactError
from .files import replace_file, replace_tensors, storage

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (
    name TEXT PRIMARY KEY, place INTEGER NOT NULL, stored REAL NOT NULL, fields TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS metrics (
    setting TEXT NOT NULL REFERENCES settings(name) ON DELETE CASCADE, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (setting, metric)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS predictions (
    setting TEXT NOT NULL REFERENCES settings(name) ON DELETE CASCADE, name TEXT NOT NULL, example INTEGER NOT NULL,
    value, PRIMARY KEY (setting, name, example)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_PACKAGES = ("attrim", "torch", "transformers", "datasets", "numpy", "safetensors")


class Run:
    """One run folder: ``config.json``, ``versions.json``, ``results.sqlite`` and ``arrays/*.safetensors``.

    Use :meth:`open` (or :meth:`read` for looking only), best in a ``with`` statement. A setting is stored in one
    transaction, all or nothing.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.key = config_hash(config)
        self._database: sqlite3.Connection | None = None
        with storage(folder):
            self._connection().executescript(_SCHEMA)

    @classmethod
    def open(cls, where: str | Path, config: Mapping[str, Any], name: str = "run") -> Run:
        """Open the run of a configuration, or begin it.

        Parameters
        ----------
        where : a folder of runs, in which the run gets the folder ``NAME-HASH``, or the folder of this very run.
        config : JSON values, everything that the results depend on: model, task, settings, seed.
        name : begins the folder's name; not part of the hash.
        """
        try:
            plain = json.loads(_dump(config))
        except (TypeError, ValueError) as error:
            raise ArtefactError(f"A run's configuration must be JSON values: {error}.") from error
        where = Path(where).expanduser()
        if (where / "config.json").exists():
            run = cls(where, _read_config(where))
            if run.key != config_hash(plain):
                run.close()
                raise ArtefactError(
                    f"{where} holds a run with another configuration (it differs in {_difference(run.config, plain)}); "
                    "give another folder, or a folder of runs."
                )
        else:
            folder = where / f"{_tidy(name)}-{config_hash(plain)[:12]}"
            if (folder / "config.json").exists():
                run = cls(folder, _read_config(folder))
            else:
                with storage(folder):
                    (folder / "arrays").mkdir(parents=True, exist_ok=True)
                    run = cls(folder, plain)
                    replace_file(folder / "config.json", json.dumps(plain, indent=2).encode())
        run._note_versions()
        return run

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Open an existing run by its folder alone."""
        folder = Path(folder).expanduser()
        config = _read_config(folder)
        if not (folder / "results.sqlite").exists():  # a model's folder has a config.json too
            raise ArtefactError(f"{folder} holds no run (there is no results.sqlite); check the path.")
        return cls(folder, config)

    def write(self, name: str, values: Any) -> Path:
        """Write JSON values to a file of the run's folder, or of a folder in it."""
        path = self.folder / name
        with storage(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(values, indent=1, allow_nan=False).encode())
        return path

    def read_json(self, name: str) -> Any:
        """The inverse of :meth:`write`."""
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ArtefactError(
                f"{self.folder / name} is missing or damaged ({error}); repeat the command of this run."
            ) from error

    def store(
        self,
        setting: str,
        metrics: Mapping[str, float],
        predictions: Mapping[str, NDArray[Any]] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the results of one setting, all or nothing; what it held before is replaced.

        Parameters
        ----------
        predictions : columns ``[N]`` of numbers, one value an example.
        fields : anything else as JSON values.
        """
        with storage(self.folder), self._connection() as database:
            place = database.execute("SELECT coalesce(max(place), -1) + 1 FROM settings").fetchone()[0]
            database.execute("DELETE FROM settings WHERE name = ?", (setting,))
            row = (setting, place, time.time(), json.dumps(fields or {}))
            database.execute("INSERT INTO settings VALUES (?, ?, ?, ?)", row)
            rows: Iterable[tuple[Any, ...]] = ((setting, metric, float(value)) for metric, value in metrics.items())
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)
            for name, column in (predictions or {}).items():
                rows = ((setting, name, number, value) for number, value in enumerate(np.asarray(column).tolist()))
                database.executemany("INSERT INTO predictions VALUES (?, ?, ?, ?)", rows)

    def settings(self) -> list[str]:
        """The names of the stored settings, in the order they were stored."""
        return [row[0] for row in self._query("SELECT name FROM settings ORDER BY place")]

    def fields(self, setting: str) -> dict[str, Any] | None:
        """The fields of a stored setting; None when it is not stored yet."""
        rows = self._query("SELECT fields FROM settings WHERE name = ?", setting)
        return json.loads(rows[0][0]) if rows else None

    def metrics(self) -> dict[str, dict[str, float]]:
        """Every stored setting's metrics by name."""
        table: dict[str, dict[str, float]] = {setting: {} for setting in self.settings()}
        for setting, metric, value in self._query("SELECT setting, metric, value FROM metrics"):
            table[setting][metric] = float("nan") if value is None else value
        return table

    def predictions(self, setting: str) -> dict[str, NDArray[Any]]:
        """The per-example columns of a stored setting."""
        columns: dict[str, list[float]] = {}
        question = "SELECT name, value FROM predictions WHERE setting = ? ORDER BY name, example"
        for name, value in self._query(question, setting):
            columns.setdefault(name, []).append(float("nan") if value is None else value)
        return {name: np.array(values) for name, values in columns.items()}

    @property
    def finished(self) -> bool:
        """Whether :meth:`finish` was called."""
        return bool(self._query("SELECT 1 FROM state WHERE key = 'finished'"))

    def finish(self) -> None:
        """Mark the run as complete."""
        with storage(self.folder), self._connection() as database:
            database.execute("INSERT OR REPLACE INTO state VALUES ('finished', ?)", (str(time.time()),))

    def save_arrays(self, name: str, tensors: Mapping[str, Any]) -> Path:
        """Write named tensors to ``arrays/NAME.safetensors``."""
        path = self._array_path(name)
        with storage(self.folder):
            path.parent.mkdir(exist_ok=True)
            replace_tensors(path, tensors)
        return path

    def load_arrays(self, name: str) -> dict[str, Any]:
        """The inverse of :meth:`save_arrays`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._array_path(name)
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtefactError(
                f"{path} is missing or damaged ({error}); remove the run's folder to repeat it."
            ) from error

    def close(self) -> None:
        """Close the database; every result is already on disk."""
        if self._database is not None:
            self._database.close()
            self._database = None

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

    def _query(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        with storage(self.folder):
            return self._connection().execute(question, values).fetchall()

    def _array_path(self, name: str) -> Path:
        # A tidy name alone could be the same for two settings.
        return self.folder / "arrays" / f"{_tidy(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.safetensors"

    def _note_versions(self) -> None:
        """Remember with which versions the run was worked on, once for each set of them."""
        path = self.folder / "versions.json"
        versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
        with storage(self.folder):
            seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
            if versions not in seen:
                replace_file(path, json.dumps([*seen, versions], indent=2).encode())


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtefactError(f"{folder} holds no run (there is no config.json); check the path.") from error
    except ValueError as error:
        raise ArtefactError(
            f"{folder / 'config.json'} is damaged ({error}); restore it or move the folder away."
        ) from error
    if not isinstance(config, dict):
        raise ArtefactError(f"{folder / 'config.json'} is not the configuration of a run; check the path.")
    return config


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
