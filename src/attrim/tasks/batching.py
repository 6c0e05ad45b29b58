"""From a stream of examples to padded batches: bounded memory, little padding, and the way back to the old order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError

T = TypeVar("T")

# How many batches of examples are tokenised and sorted by length together. Larger saves padding and costs memory.
WINDOW = 64


@dataclass(frozen=True)
class Example:
    """One text, or a pair of texts, and what a model should say about it.

    Attributes
    ----------
    texts : one or two texts.
    label : class number or score; None when unknown.
    """

    texts: tuple[str, ...]
    label: float | None = None


@dataclass(frozen=True)
class Batch:
    """Some examples as tensors.

    Attributes
    ----------
    index : int64 ``[B]``, where each example stands in its task.
    inputs : what the model is called with, ``input_ids [B, L]`` and so on.
    labels : float64 ``[B]``; NaN where unknown.
    """

    index: NDArray[np.int64]
    inputs: dict[str, Tensor]
    labels: NDArray[np.float64]


def sample(items: Iterable[T], limit: int | None, seed: int | None) -> Iterator[T]:
    """Choose ``limit`` of the items at random, in their own order, holding no more than those in memory.

    Parameters
    ----------
    limit : None keeps everything.
    seed : None keeps the first ``limit`` items and reads no further.
    """
    if limit is not None and limit < 1:
        raise DataError(f"The limit must be at least 1, not {limit}; leave it out to use every example.")
    if limit is None or seed is None:
        yield from islice(items, limit)
        return
    # Reservoir sampling (Vitter 1985, algorithm R), https://doi.org/10.1145/3147.3165
    generator = random.Random(seed)
    kept: list[tuple[int, T]] = []
    for number, item in enumerate(items):
        if number < limit:
            kept.append((number, item))
        elif (place := generator.randrange(number + 1)) < limit:
            kept[place] = (number, item)
    yield from (item for _, item in sorted(kept, key=lambda pair: pair[0]))


def make_batches(examples: Iterable[Example], tokenizer: Any, batch_size: int, max_length: int) -> Iterator[Batch]:
    """Tokenise and pad examples, texts of similar length together.

    Sorting happens within windows of ``WINDOW`` batches, so that memory does not grow with the data.

    Parameters
    ----------
    tokenizer : any tokenizer of ``transformers``.
    max_length : longer texts are cut to this many tokens, special ones included.
    """
    if batch_size < 1:
        raise DataError(f"The batch size must be at least 1, not {batch_size}.")
    if tokenizer.pad_token is None:
        raise DataError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token; set tokenizer.pad_token, "
            "or load it with attrim.load_tokenizer, which does."
        )
    stream, first = iter(examples), 0
    while window := list(islice(stream, batch_size * WINDOW)):
        sides = [list(side) for side in zip(*(example.texts for example in window), strict=True)]
        encoded = tokenizer(*sides, truncation=True, max_length=max_length)
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        if lengths.min() == 0:
            place = first + int(lengths.argmin())
            raise DataError(f"Example {place} has no tokens ({window[place - first].texts!r}); remove empty texts.")
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            padded = tokenizer.pad(
                {name: [rows[i] for i in chosen] for name, rows in encoded.items()}, return_tensors="pt"
            )
            labels = [window[i].label for i in chosen]
            yield Batch(
                index=first + chosen.astype(np.int64),
                inputs=dict(padded),
                labels=np.array([np.nan if label is None else label for label in labels], dtype=np.float64),
            )
        first += len(window)


def shuffle_batches(batches: Iterable[T], generator: random.Random) -> Iterator[T]:
    """Shuffle batches within windows: :func:`make_batches` gives each window from long texts to short ones."""
    stream = iter(batches)
    while window := list(islice(stream, WINDOW)):
        generator.shuffle(window)
        yield from window


def with_decoder(inputs: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Give an encoder-decoder model the text itself as decoder input, shifted right, when it has none."""
    if not getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in inputs or "labels" in inputs:
        return inputs
    tokens = inputs["input_ids"]
    start = next(
        (number for field in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
         if (number := getattr(config, field, None)) is not None), 0
    )  # fmt: skip
    shifted = torch.cat([torch.full_like(tokens[:, :1], start), tokens[:, :-1]], dim=1)
    return {**inputs, "decoder_input_ids": shifted, "decoder_attention_mask": inputs["attention_mask"]}
