"""A user's own labelled files, CSV or JSON: which file a split is, which columns count, and which labels there are."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..core.paths import home_path
from ..errors import DataError, shorten
from .base import Task
from .reading import find_file, json_lines, open_text

ENDINGS = (".csv", ".json", ".jsonl")
_NAMES = {"validation": ("validation", "valid", "dev")}
Column = Literal["text_column", "pair_column", "label_column"]
Labelled = tuple[str, Any, list[str]]
"""Where a row is (``Line 3 of FILE``), its text or words, and its labels."""


@dataclass(kw_only=True)
class OwnFiles(Task):
    """Base of the tasks that read a user's own files.

    Parameters
    ----------
    train_file, validation_file : a .csv file with a header, a .jsonl file with an object a line, or a .json file with a
        list of objects (or lines of them), plain or .gz.
    data : in place of these, a folder with files that are named after their split, or one file that is always read.
    split : ``train``, ``validation``, or the name of another file of the folder.
    text_column, label_column : names of columns; empty ones are guessed.
    labels : all labels, in the order of the model's classes; by default those of the training data, sorted.
    """

    train_file: str | None = None
    validation_file: str | None = None
    split: str = "validation"
    text_column: str = ""
    label_column: str = ""
    labels: tuple[str, ...] = ()

    text_columns: ClassVar[tuple[str, ...]]
    label_columns: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.labels:
            self.labels = self._labels()

    def labelled(self, path: Path) -> Iterator[Labelled]:
        """Yield the rows of a file, with their labels as texts."""
        raise NotImplementedError

    def all_labels(self, found: Sequence[str]) -> tuple[str, ...]:
        """The labels of the task, from those that the data has, sorted."""
        return tuple(found)

    def file(self, split: str) -> Path:
        """The file of a split."""
        given = {"train": self.train_file, "validation": self.validation_file}.get(split)
        path = given if given is not None else self.data
        if path is None:
            flag = f"--{split}-file FILE or " if split in ("train", "validation") else ""
            raise DataError(f"The task {self.registered_name} has no {split} data; give {flag}--data FOLDER.")
        folder = home_path(path)
        if given is not None or not folder.is_dir():
            return folder
        names = [f"{name}{ending}" for name in _NAMES.get(split, (split,)) for ending in ENDINGS]
        found = find_file([folder], names)
        if found is None:
            raise DataError(f"{folder} holds none of {', '.join(names)} (plain or .gz); give --{split}-file FILE.")
        return found

    def numbers(self, where: str, labels: Sequence[str]) -> tuple[int, ...]:
        """The numbers of some labels; those of a file that only numbers them are numbers already."""
        for label in labels:
            if label not in self._places:
                raise DataError(
                    f"{where} has the label {shorten(label)}, which is none of {shorten(', '.join(self.labels), str)} "
                    "of the training data; correct it, or give labels."
                )
        return tuple(self._places[label] for label in labels)

    @cached_property
    def _places(self) -> dict[str, int]:
        named = {label: place for place, label in enumerate(self.labels)}
        return {str(place): place for place in range(len(self.labels))} | named

    def _labels(self) -> tuple[str, ...]:
        try:
            path = self.file("train")
        except DataError:
            path = self.file(self.split)
        try:
            facts = path.stat()
        except OSError:
            facts = None  # reading it says what is wrong
        found = _distinct(_Source(self, path, (facts.st_mtime_ns, facts.st_size) if facts else None))
        labels = self.all_labels(found)
        if len(labels) < 2:
            raise DataError(f"{path} has only the label {labels[0]!r}, so there is nothing to tell apart; give labels.")
        return labels

    def column(self, names: Sequence[str], option: Column, what: str, path: Path) -> str:
        """The column that an option names, or that is guessed where it names none."""
        given = getattr(self, option)
        guesses = self.text_columns if option == "text_column" else self.label_columns
        for name in (given,) if given else guesses:
            if name in names:
                return str(name)
        missing = f"named {given!r}" if given else f"for the {what}"
        there = shorten(", ".join(names), str)
        raise DataError(f"{path} has no column {missing} (it has {there}); name it with --option {option}=NAME.")


@dataclass(frozen=True)
class _Source:
    """A file that labels are read from; another time or size of it is another one."""

    task: OwnFiles
    path: Path
    facts: tuple[int, int] | None

    def _key(self) -> tuple[Any, ...]:
        return type(self.task), self.task.text_column, self.task.label_column, self.path, self.facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@lru_cache(maxsize=32)
def _distinct(source: _Source) -> tuple[str, ...]:
    """The labels of a file, sorted: as numbers where all of them are."""
    found = {label for _, _, labels in source.task.labelled(source.path) for label in labels}
    whole = all(label.isdecimal() for label in found)
    return tuple(sorted(found, key=lambda label: (int(label) if whole else 0, label)))


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a .csv, .json or .jsonl file, each with the place that errors name; never none."""
    ending = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    readers = {".csv": _csv_rows, ".json": _json_rows, ".jsonl": _json_line_rows}
    if ending not in readers:
        raise DataError(f"{path} is not a .csv, .json or .jsonl file (plain or .gz); convert it first.")
    empty = True
    for row in readers[ending](path):
        empty = False
        yield row
    if empty:
        raise DataError(f"{path} has no rows; give a file with examples.")


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with open_text(path) as stream:
        rows = csv.reader(stream, strict=True)
        try:
            names = next(rows, None)
            if names is None:
                raise DataError(f"{path} is empty; its first line names the columns.")
            twice = [name for place, name in enumerate(names) if name in names[:place]]
            if twice:
                raise DataError(f"{path} has two columns named {twice[0]!r}; rename one of them.")
            for row in rows:
                if not row:
                    continue
                where = f"Line {rows.line_num} of {path}"
                if len(row) != len(names):
                    raise DataError(
                        f"{where} has {len(row)} columns, not {len(names)}; put texts with commas in quotes."
                    )
                if any("\0" in cell for cell in row):
                    raise DataError(f"{where} holds a NUL character; repair it.")
                yield where, dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise DataError(f"Line {rows.line_num} of {path} is not CSV ({error}); repair it.") from error


def _json_line_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, record in json_lines(path):
        yield f"Line {number} of {path}", record


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A list of objects, an object that holds one as ``data``, or an object a line."""
    with open_text(path) as stream:
        start = stream.read(4096).lstrip()
    if not start:
        raise DataError(f"{path} is empty; write a list of objects, or one object a line.")
    if start[0] != "[" and _is_whole(start.partition("\n")[0]):
        yield from _json_line_rows(path)
        return
    with open_text(path) as stream:
        try:
            found = json.load(stream)
        except (ValueError, RecursionError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise
            raise DataError(f"{path} is not JSON ({shorten(error, str)}); repair it.") from error
    if isinstance(found, dict):
        found = found["data"] if isinstance(found.get("data"), list) else [found]
    for number, record in enumerate(found, 1):
        if not isinstance(record, dict):
            raise DataError(f"Record {number} of {path} is not a JSON object, but {shorten(record)}.")
        yield f"Record {number} of {path}", record


def _is_whole(line: str) -> bool:
    """Whether the first line of a file is an example by itself, so that each line is one."""
    try:
        return not isinstance(json.loads(line).get("data"), list)
    except (ValueError, RecursionError, AttributeError):
        return False


def cell(where: str, row: Mapping[str, Any], column: str) -> Any:
    """The cell of a row; JSON objects need not have all keys."""
    if column not in row:
        raise DataError(f"{where} lacks {column!r}; it has {shorten(', '.join(row), str)}.")
    return row[column]


def text_cell(where: str, row: Mapping[str, Any], column: str) -> str:
    """A text that is not blank."""
    value = cell(where, row, column)
    if not isinstance(value, str):
        raise DataError(f"{where} has {shorten(value)} as {column!r}, where a text belongs.")
    if not value.strip():
        raise DataError(f"{where} has an empty text as {column!r}; remove it.")
    return value


def label_text(where: str, value: Any, column: str) -> str:
    """A label as text."""
    if value is None or value == "":
        raise DataError(f"{where} has no label in {column!r}; remove it, or give its label.")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise DataError(f"{where} has {shorten(value)} in {column!r}, where a label (a text or whole number) belongs.")
    return str(value)
