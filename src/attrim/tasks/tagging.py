"""Words and tags of a user's own files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import DataError, shorten
from .base import register
from .encoding import Example
from .own_files import Labelled, OwnFiles, cell, label_text, records
from .tokens import OUTSIDE, TaggedSpans, Tokens, iob2_labels, to_iob2


@register("tokens/tags")
@dataclass(kw_only=True)
class OwnTags(OwnFiles, Tokens):
    """Name the tag of every word of your own CSV or JSON files. Accuracy."""

    text_columns: ClassVar[tuple[str, ...]] = ("tokens", "words", "text", "sentence")
    label_columns: ClassVar[tuple[str, ...]] = ("ner_tags", "pos_tags", "chunk_tags", "tags", "labels", "label")

    def read(self) -> Iterator[Example]:
        """Yield every sentence: its words, and the numbers of their tags."""
        for where, words, tags in self.labelled(self.file(self.split)):
            yield Example(tuple(words), None, self.numbers(where, tags))

    def labelled(self, path: Path) -> Iterator[Labelled]:
        """See :meth:`OwnFiles.labelled`; a cell of a .csv file has words with blanks between them, or a JSON list."""
        text = target = ""
        for where, row in records(path):
            if not text:
                text = self.column(list(row), "text_column", "words", path)
                target = self.column(list(row), "label_column", "tags", path)
            words, tags = _lists(where, cell(where, row, text), cell(where, row, target), _is_csv(path))
            if not words:
                raise DataError(f"{where} has no words in {text!r}; remove it.")
            if len(words) != len(tags):
                raise DataError(f"{where} has {len(words)} words and {len(tags)} tags; every word needs one.")
            if not all(isinstance(word, str) for word in words):
                raise DataError(f"{where} has {shorten(words)} as {text!r}, where a list of texts belongs.")
            if not all(word.strip() for word in words):
                raise DataError(f"{where} has an empty word in {text!r}; remove it and its tag.")
            yield where, words, self.tidy(where, [label_text(where, tag, target) for tag in tags])

    def tidy(self, where: str, tags: list[str]) -> list[str]:
        """The tags as the task knows them."""
        return tags


@register("tokens/spans")
@dataclass(kw_only=True)
class OwnSpans(OwnTags, TaggedSpans):
    """Find the spans that IOB tags (B-X, I-X, O) mark in your own CSV or JSON files. F1 of whole spans."""

    def tidy(self, where: str, tags: list[str]) -> list[str]:
        """IOB2 tags; numbers become the labels that they stand for."""
        named = [self.labels[int(tag)] if tag.isdecimal() and int(tag) < len(self.labels) else tag for tag in tags]
        for tag in named:
            if tag != OUTSIDE and not (tag[:2] in ("B-", "I-") and tag[2:]):
                raise DataError(
                    f"{where} has the tag {shorten(tag)}, which is not O, B-X or I-X; give labels=[O,B-X,...] if tags "
                    "are numbers, or use the task tokens/tags."
                )
        return to_iob2(named)

    def all_labels(self, found: Sequence[str]) -> tuple[str, ...]:
        """Both tags of every kind of span, though the training data may have only one of them."""
        return iob2_labels(*sorted({tag[2:] for tag in found if tag != OUTSIDE}))


def _is_csv(path: Path) -> bool:
    return ".csv" in path.suffixes[-2:]


def _lists(where: str, words: Any, tags: Any, table: bool) -> tuple[list[Any], list[Any]]:
    """The words and tags of two cells."""
    if not table:
        for value in (words, tags):
            if not isinstance(value, list):
                raise DataError(f"{where} has {shorten(value)} where a list belongs, one entry for each word.")
        return words, tags
    if not tags.strip().startswith("["):
        return words.split(), tags.split()
    try:
        return json.loads(words), json.loads(tags)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f'{where} has tags in brackets that are no JSON list; write ["O", ...] for both, or put blanks between.'
        ) from error
