"""Examples, and the rows of tokens that they become: one row each, or several (windows, masked copies)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, ParameterError

T = TypeVar("T")
Array = NDArray[Any]

# Texts that are tokenised in one call.
CHUNK = 256
IGNORED = -100
"""What the losses of torch skip: fills up targets where there is nothing to say."""


@dataclass(frozen=True)
class Example:
    """One text, a pair of texts or the words of a sentence, and what a model should say about it.

    Attributes
    ----------
    texts : one or two texts, or all words; none for an image alone.
    label : class number or score; None when unknown.
    answers : what one number cannot hold: the accepted answers of a question, the tag of every word.
    arrays : what is no text: features of image regions, their boxes, pixels.
    """

    texts: tuple[str, ...]
    label: float | None = None
    answers: tuple[Any, ...] = ()
    arrays: Mapping[str, Array] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Row:
    """What a model reads at once: an example, or a part of it.

    Attributes
    ----------
    index : where the example stands in its task.
    inputs : token numbers and so on, lists ``[L]``; and arrays of any other length, such as ``[regions, width]``.
    label : as in the example; tasks with several rows an example put the index here to find them together again.
    targets : what ``Task.run`` and training need besides: numbers, lists ``[L, ...]`` with one entry a token, and
        arrays of any other length, such as one entry an image region or an answer.
    """

    index: int
    inputs: dict[str, Any]
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


def pad_targets(name: str, values: Sequence[Any], length: int, left: bool) -> Tensor:
    """Stack targets to ``[B]``, or ``[B, length, ...]`` with :data:`IGNORED` where rows are shorter.

    Whole numbers become int64 and others float32. Arrays have a length of their own, see :func:`pad_arrays`.

    Parameters
    ----------
    left : fill up on the left, where the tokenizer does so too.
    """
    if isinstance(values[0], np.ndarray):
        return pad_arrays(name, values, IGNORED)
    stacked = [np.asarray(value) for value in values]
    if stacked[0].ndim == 0:
        return torch.from_numpy(_numbers(name, np.stack(stacked)))
    return _filled(name, stacked, length, IGNORED, left)


def pad_arrays(name: str, values: Sequence[Array], fill: int) -> Tensor:
    """Stack arrays to ``[B, ...]``; those with one or two axes may differ in the first one, and are filled up there."""
    shapes = {value.shape for value in values}
    if len(shapes) == 1:
        return torch.from_numpy(_numbers(name, np.stack(values)))
    if values[0].ndim > 2 or len({shape[1:] for shape in shapes}) > 1:
        first, second, *_ = sorted(shapes)
        raise DataError(
            f"The {name} of one batch have the shapes {list(first)} and {list(second)}; "
            "bring all to one size, or use batch_size=1."
        )
    return _filled(name, values, max(map(len, values)), fill)


def _filled(name: str, values: Sequence[Array], length: int, fill: int, left: bool = False) -> Tensor:
    # An empty list has no numbers that could tell, and numpy would take it for a list of floats.
    kind = _numbers(name, np.zeros(0, np.result_type(np.int8, *(value.dtype for value in values if value.size)))).dtype
    padded = np.full((len(values), length, *values[0].shape[1:]), fill, dtype=kind)
    for row, value in zip(padded, values, strict=True):
        row[slice(length - len(value), None) if left else slice(len(value))] = _numbers(name, value)
    return torch.from_numpy(padded)


def _numbers(name: str, values: Array) -> Array:
    """Whole numbers and booleans as int64, others as float32: never cut to whole ones."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"The {name} must be numbers, not {values.dtype}.")
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
