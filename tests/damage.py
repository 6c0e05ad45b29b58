"""Damage to files, as disks, copies that break off and editors do it; the same seed does the same damage."""

from __future__ import annotations

import json
import random
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrim.runs.files import DIGEST, sealed

OTHERS: tuple[Any, ...] = (None, True, 0, -1, 1, 2**70, 0.5, 1e300, "", "x", "../x", [], [1], {}, {"x": 1}, [[[[]]]])
"""What takes the place of a value in JSON."""


def damage(path: Path, seed: int) -> str:
    """Damage a file, and say how; JSON files and databases are now and then damaged in what they hold."""
    generator = random.Random(f"{path.name} {seed}")
    kinds: list[Callable[[Path, random.Random], str]] = [flip, cut, swap]
    if path.suffix == ".json":
        kinds += [alter_json] * 4
    if path.suffix == ".sqlite":
        kinds += [alter_row] * 3
    return generator.choice(kinds)(path, generator)


def flip(path: Path, generator: random.Random) -> str:
    """Flip one to eight bits."""
    content = bytearray(path.read_bytes())
    places = [generator.randrange(len(content)) for _ in range(generator.randint(1, 8))] if content else []
    for place in places:
        content[place] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    return f"bits flipped in the bytes {places}"


def cut(path: Path, generator: random.Random) -> str:
    """Cut the end off."""
    content = path.read_bytes()
    kept = generator.randrange(len(content) + 1)
    path.write_bytes(content[:kept])
    return f"cut after {kept} of {len(content)} bytes"


def swap(path: Path, generator: random.Random) -> str:
    """Put something else in its place."""
    content = path.read_bytes()
    others = [b"", b"\x00" * len(content), b"[" * 100_000, b"\xff\xfe\x00", b"{}", b"null", b"NaN", content + content]
    place = generator.randrange(len(others) + 1)
    path.unlink()
    if place == len(others):
        path.mkdir()
        return "a folder in its place"
    path.write_bytes(others[place])
    return f"{others[place][:20]!r}... in its place"


def alter_json(path: Path, generator: random.Random) -> str:
    """Change, remove, add or rename one value somewhere in a JSON file."""
    values = json.loads(path.read_bytes())
    said = alter(values, generator)
    path.write_text(json.dumps(values))
    return said


def alter(values: Any, generator: random.Random) -> str:
    """Change, remove, add or rename one value somewhere in JSON values."""
    places: list[tuple[Any, Any]] = []
    waiting = [values]
    while waiting:
        inner = waiting.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        places += [(inner, key) for key in keys]
        waiting += [inner[key] for key in keys if isinstance(inner[key], (dict, list))]
    if not places:
        return "nothing to alter"
    where, key = generator.choice(places)
    kind = generator.choice(["change", "change", "near", "remove", "rename"])
    if kind == "near" and isinstance(where[key], (int, float)):
        where[key] += generator.choice([1, -1, 0.5])
    elif kind == "remove":
        del where[key]
    elif kind == "rename" and isinstance(where, dict):
        where[f"{key}x"] = where.pop(key)
    else:
        where[key] = generator.choice(OTHERS)
    return f"{kind} at {key!r}"


def alter_row(path: Path, generator: random.Random) -> str:
    """Change one value in one row of a database."""
    with sqlite3.connect(path) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        (table,) = generator.choice(tables)
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if not rows:
            return f"nothing in {table}"
        column, row = generator.choice(columns), generator.choice(rows)
        which = " AND ".join(f"{name} IS ?" for name in columns)
        value = generator.choice([None, 0, -1, 99.0, "", "x", b"\xff", 2**62, '{"a": 1}', row[columns.index(column)]])
        try:
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {which}", (value, *row))
        except sqlite3.IntegrityError:
            return f"{table}.{column} cannot be {value!r}"
    database.close()
    return f"{table}.{column} = {value!r}"


def reseal(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the values of a JSON file and give it a digest that fits, as somebody who means to deceive would."""
    values = json.loads(path.read_bytes())
    values.pop(DIGEST)
    changed = change(values)
    path.write_bytes(sealed(values if changed is None else changed))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A full disk: the system refuses to let any file grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
