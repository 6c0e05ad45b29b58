"""Examples, and the rows of tokens that they become: one row each, or several (windows, masked copies)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, ParameterError

T = TypeVar("T")

# Texts that are tokenised in one call.
CHUNK = 256
IGNORED = -100
"""What the losses of torch skip: fills up targets where there is nothing to say."""


@dataclass(frozen=True)
class Example:
    """One text, a pair of texts or the words of a sentence, and what a model should say about it.

    Attributes
    ----------
    texts : one or two texts, or all words.
    label : class number or score; None when unknown.
    answers : what one number cannot hold: the accepted answers of a question, the tag of every word.
    """

    texts: tuple[str, ...]
    label: float | None = None
    answers: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Row:
    """What a model reads at once: an example, or a part of it.

    Attributes
    ----------
    index : where the example stands in its task.
    inputs : token numbers and so on, ``[L]`` each.
    label : as in the example; tasks with several rows an example put the index here to find them together again.
    targets : what ``Task.run`` and training need besides: numbers, or lists ``[L, ...]`` with one entry a token.
    """

    index: int
    inputs: dict[str, list[int]]
    label: float | None = None
    targets: dict[str, Any] = field(default_factory=dict)


Encode = Callable[[Iterable[Example], Any, int], Iterator[Row]]
"""Examples, tokenizer and the largest number of tokens to rows."""


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``, the last one shorter."""
    stream = iter(items)
    while chunk := list(islice(stream, min(size, sys.maxsize))):
        yield chunk


def check_room(tokenizer: Any, max_length: int, texts: int = 1) -> None:
    """Raise an error when ``max_length`` leaves no token for one of the texts of a row.

    Tokenizers cut nothing at all when even their special tokens do not fit.
    """
    special = tokenizer.num_special_tokens_to_add(pair=texts == 2)
    if max_length < special + texts:
        raise ParameterError(
            f"max_length {max_length} leaves no room for text beside {special} special tokens; "
            f"give at least {special + texts}."
        )


def encode_texts(examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
    """One row an example: its text, or its two texts as a pair, cut to ``max_length`` tokens."""
    place = 0
    for chunk in chunks(examples):
        check_room(tokenizer, max_length, len(chunk[0].texts))
        sides = [list(side) for side in zip(*(example.texts for example in chunk), strict=True)]
        encoded = tokenizer(*sides, truncation=True, max_length=max_length)
        for number, example in enumerate(chunk):
            if not encoded["input_ids"][number]:
                raise DataError(f"Example {place} has no tokens ({example.texts!r}); remove empty texts.")
            yield Row(place, {name: column[number] for name, column in encoded.items()}, example.label)
            place += 1


def pad_targets(values: Sequence[Any], length: int, left: bool) -> Tensor:
    """Stack targets to ``[B]``, or ``[B, length, ...]`` with :data:`IGNORED` where rows are shorter.

    Parameters
    ----------
    left : fill up on the left, where the tokenizer does so too.
    """
    arrays = [np.asarray(value, dtype=np.int64) for value in values]
    if arrays[0].ndim == 0:
        return torch.from_numpy(np.stack(arrays))
    padded = np.full((len(arrays), length, *arrays[0].shape[1:]), IGNORED, dtype=np.int64)
    for row, array in zip(padded, arrays, strict=True):
        row[slice(length - len(array), None) if left else slice(len(array))] = array
    return torch.from_numpy(padded)
