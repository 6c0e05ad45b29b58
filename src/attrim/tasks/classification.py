"""Classification of a user's own texts, or pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .base import register
from .classify import Classify
from .encoding import Example
from .own_files import Labelled, OwnFiles, cell, label_text, records, text_cell

PAIRS = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
)
"""Columns that are a pair of texts where a file has both."""


@register("classification")
@dataclass(kw_only=True)
class Classification(OwnFiles, Classify):
    """Which class is a text, or a pair of texts, of your own CSV or JSON files? Accuracy.

    Parameters
    ----------
    pair_column : the column of the second text of a pair; guessed where ``text_column`` is.
    """

    max_length: int = 128
    pair_column: str = ""

    text_columns: ClassVar[tuple[str, ...]] = ("text", "sentence", *(first for first, _ in PAIRS))
    label_columns: ClassVar[tuple[str, ...]] = ("label", "labels")

    def read(self) -> Iterator[Example]:
        """Yield every text, or pair of texts, with the number of its label."""
        for where, texts, labels in self.labelled(self.file(self.split)):
            yield Example(texts, float(self.numbers(where, labels)[0]))

    def labelled(self, path: Path) -> Iterator[Labelled]:
        """See :meth:`OwnFiles.labelled`."""
        columns: list[str] = []
        target = ""
        for where, row in records(path):
            if not columns:
                columns = self._text_columns(list(row), path)
                target = self.column(list(row), "label_column", "label", path)
            texts = tuple(text_cell(where, row, column) for column in columns)
            yield where, texts, [label_text(where, cell(where, row, target), target)]

    def _text_columns(self, names: list[str], path: Path) -> list[str]:
        pair = next((pair for pair in PAIRS if {*pair} <= {*names}), None)
        if pair is not None and not self.text_column and not self.pair_column:
            return list(pair)
        first = self.column(names, "text_column", "text", path)
        second = [self.column(names, "pair_column", "second text", path)] if self.pair_column else []
        return [first, *second]
