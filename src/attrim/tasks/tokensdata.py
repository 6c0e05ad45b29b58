"""Sentences in CoNLL files, and which token begins which word."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from ..errors import DataError
from .files import find_file, lines
from .rows import IGNORED

_NAMES = {
    "train": ("eng.train", "train.txt", "train.conll"),
    "validation": ("eng.testa", "valid.txt", "dev.txt", "dev.conll"),
    "test": ("eng.testb", "test.txt", "test.conll"),
}


def conll_file(path: Path, split: str) -> Path:
    """Return the file itself, or the file of a folder that holds the split, plain or gzip."""
    if not path.is_dir():
        return path
    names = _NAMES.get(split, (split, f"{split}.txt", f"{split}.conll"))
    found = find_file([path], names)
    if found is None:
        raise DataError(f"{path} holds none of {', '.join(names)} (plain or .gz); give the file itself as data.")
    return found


def sentences(path: Path, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words and the tags of every sentence of a CoNLL file.

    Parameters
    ----------
    column : place of the tag in a line; the word is the first one.
    """
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate((*lines(path), ""), 1):
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            if not -len(fields) <= column < len(fields):
                raise DataError(f"Line {number} of {path} has {len(fields)} columns, no column {column}; repair it.")
            words.append(fields[0])
            tags.append(fields[column])
        elif words:
            yield words, tags
            words, tags = [], []


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The number of the word at the first token of each word, ``IGNORED`` at all other tokens.

    Parameters
    ----------
    offsets : the characters of each token in the words joined by blanks; a token may have the blank before it, too.
    """
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    result, before = [], -1
    for start, end in offsets:
        word = bisect_right(starts, end - 1) - 1
        inside = end > start and end <= starts[word] + len(words[word])
        result.append(word if inside and word > before else IGNORED)
        before = max(before, word) if inside else before
    return result
