"""Plain texts without labels and metric, to measure attention on: from files, from SQuAD, or given in the call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..core.paths import home_path
from ..errors import DataError
from .base import Task, register
from .encoding import Example
from .reading import csv_column, json_lines, lines, paragraphs
from .squad_files import squad_articles

ENDINGS = (".txt", ".jsonl", ".csv")


@register("text")
@dataclass(kw_only=True)
class Text(Task):
    """Texts of a file or of all files in a folder: ``.txt``, ``.jsonl`` or ``.csv``, plain or ``.gz``.

    Parameters
    ----------
    unit : what a text is in a ``.txt`` file: a line, a paragraph (blank lines separate them), or the whole file.
    column : the key or column that holds the text in ``.jsonl`` and ``.csv``; a number for ``.csv`` without header.
    strip : leave out the blanks before and after a text.
    """

    unit: Literal["line", "paragraph", "file"] = "line"
    column: str = "text"
    strip: bool = True

    def read(self) -> Iterator[Example]:
        """Yield every text that is not blank."""
        for path in self._files():
            for text in self._texts(path):
                if text.strip():
                    yield Example((text.strip() if self.strip else text,))

    def _files(self) -> list[Path]:
        if self.data is None:
            raise DataError(f"The task {self.registered_name} reads local files; give a file or folder as data.")
        path = home_path(self.data)
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if _ending(each) in ENDINGS)
            if not found:
                raise DataError(f"{path} holds no {', '.join(ENDINGS)} files (plain or .gz); give another folder.")
            return found
        if not path.exists():
            raise DataError(f"There is no file or folder {path}; check the path.")
        return [path]

    def _texts(self, path: Path) -> Iterator[str]:
        ending = _ending(path)
        if ending == ".csv":
            yield from csv_column(path, self.column)
        elif ending == ".jsonl":
            for _, record in json_lines(path):
                if not isinstance(record.get(self.column), str):
                    raise DataError(f"{path} has a record without text in {self.column!r}; it has {', '.join(record)}.")
                yield record[self.column]
        elif ending == ".json":
            raise DataError(f"{path} is one JSON document; use .jsonl, or the task squad-paragraphs for SQuAD files.")
        elif self.unit == "file":
            yield "\n".join(lines(path))
        else:
            yield from lines(path) if self.unit == "line" else paragraphs(path)


@register("squad-paragraphs")
@dataclass(kw_only=True)
class SquadParagraphs(Task):
    """The paragraphs of a SQuAD JSON file (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

    def read(self) -> Iterator[Example]:
        """Yield every paragraph."""
        for article in squad_articles(self.data):
            for paragraph, _ in article:
                yield Example((paragraph,))


def _ending(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


@dataclass(kw_only=True)
class Given(Task):
    """The given texts, with nothing to score.

    Parameters
    ----------
    pairs : the second text of each, such as the paragraph of a question; none, or as many.
    """

    registered_name: ClassVar[str] = "given texts"
    texts: tuple[str, ...]
    pairs: tuple[str, ...] = ()

    def read(self) -> Iterator[Example]:
        """Yield every text, or pair of texts."""
        if self.pairs and len(self.pairs) != len(self.texts):
            raise DataError(
                f"There are {len(self.texts)} texts and {len(self.pairs)} second texts; give one for each, or none."
            )
        yield from map(Example, zip(self.texts, *filter(None, [self.pairs]), strict=True))
