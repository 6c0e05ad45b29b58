"""The results of a run in SQLite: settings with their metrics, and predictions example by example."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import storage

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


class Tables:
    """The tables in ``results.sqlite``; a setting is stored in one transaction, all or nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database: sqlite3.Connection | None = None
        with storage(folder):
            self._connection().executescript(_SCHEMA)

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

    def close(self) -> None:
        """Close the database; every result is already on disk."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = sqlite3.connect(self.folder / "results.sqlite", timeout=60)
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.execute("PRAGMA synchronous = FULL")
        return self._database

    def _query(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        with storage(self.folder):
            return self._connection().execute(question, values).fetchall()
