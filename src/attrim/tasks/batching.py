"""From a stream of examples to padded batches: drawn, shuffled and grouped by length in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError
from .encoding import Encode, Example, Row, chunks, encode_texts, pad_arrays, pad_targets

T = TypeVar("T")

# How many batches of rows are sorted by length together. Larger saves padding and costs memory.
WINDOW = 64
# How many rows to train with are held back to shuffle them.
HELD = 4096


@dataclass(frozen=True)
class Batch:
    """Some examples as tensors.

    Attributes
    ----------
    index : int64 ``[B]``, where each example stands in its task; an example with several rows is there several times.
    inputs : what the model is called with, ``input_ids [B, L]``, ``visual_feats [B, R, F]`` and so on.
    labels : float64 ``[B]``; NaN where unknown.
    targets : int64 or float32, ``[B]``, ``[B, L, ...]`` or of another length, what the task needs besides, such as one
        label a token or one score an answer.
    """

    index: NDArray[np.int64]
    inputs: dict[str, Tensor]
    labels: NDArray[np.float64]
    targets: dict[str, Tensor] = field(default_factory=dict)


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


def make_batches(
    examples: Iterable[Example], tokenizer: Any, batch_size: int, max_length: int, encode: Encode = encode_texts
) -> Iterator[Batch]:
    """Tokenise and pad examples, texts of similar length together.

    Sorting happens within windows of ``WINDOW`` batches, so that memory does not grow with the data.

    Parameters
    ----------
    tokenizer : any tokenizer of ``transformers``; unused, and may be None, where rows have no tokens.
    max_length : longer texts are cut to this many tokens, special ones included.
    encode : makes the rows of tokens of the examples.
    """
    if batch_size < 1:
        raise DataError(f"The batch size must be at least 1, not {batch_size}.")
    if tokenizer is not None and getattr(tokenizer, "pad_token", "") is None:
        raise DataError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token; set tokenizer.pad_token, "
            "or load it with attrim.load_tokenizer, which does."
        )
    empty = True
    for window in chunks(encode(examples, tokenizer, max_length), batch_size * WINDOW):
        empty = False
        order = np.argsort([-_tokens(row) for row in window], kind="stable")
        for chosen in chunks(order, batch_size):
            yield _batch([window[place] for place in chosen], tokenizer)
    if empty:
        raise DataError("Every text is too short for this task; use longer texts or another option of the task.")


def _tokens(row: Row) -> int:
    """How many real tokens a row has; a layout gives all rows the same number of slots.

    Rows with images have few tokens beside many regions. Sorting would save nothing and put equal questions together.
    """
    if any(isinstance(values, np.ndarray) for values in row.inputs.values()):
        return 0
    return sum(row.inputs.get("attention_mask", ())) or len(row.inputs["input_ids"])


def _batch(rows: list[Row], tokenizer: Any) -> Batch:
    """Pad some rows to the longest of them."""
    columns = {name: [row.inputs[name] for row in rows] for name in rows[0].inputs}
    arrays = {name: values for name, values in columns.items() if isinstance(values[0], np.ndarray)}
    texts = {name: values for name, values in columns.items() if name not in arrays}
    inputs = dict(tokenizer.pad(texts, return_tensors="pt")) if texts else {}
    length, left = (inputs["input_ids"].shape[1], tokenizer.padding_side == "left") if texts else (0, False)
    return Batch(
        index=np.array([row.index for row in rows], dtype=np.int64),
        inputs={**inputs, **{name: pad_arrays(name, values, 0) for name, values in arrays.items()}},
        labels=np.array([np.nan if row.label is None else row.label for row in rows], dtype=np.float64),
        targets={
            name: pad_targets(name, [row.targets[name] for row in rows], length, left) for name in rows[0].targets
        },
    )


def shuffle_rows(rows: Iterable[T], generator: random.Random) -> Iterator[T]:
    """Move the rows of one example apart, holding ``HELD`` of them in memory."""
    held: list[T] = []
    for row in rows:
        if len(held) < HELD:
            held.append(row)
        else:
            place = generator.randrange(HELD)
            out, held[place] = held[place], row
            yield out
    generator.shuffle(held)
    yield from held


def shuffle_batches(batches: Iterable[T], generator: random.Random) -> Iterator[T]:
    """Shuffle batches within windows: :func:`make_batches` gives each window from long texts to short ones."""
    for window in chunks(batches, WINDOW):
        generator.shuffle(window)
        yield from window


def in_dtype(inputs: dict[str, Tensor], model: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """Give inputs that are not whole numbers the number type of the model; token numbers and targets have their own."""
    dtype = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)
    return {**inputs, **{name: inputs[name].to(dtype) for name in names if name in inputs}}


def with_decoder(inputs: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Give an encoder-decoder model the text itself as decoder input, shifted right, when it has none."""
    given = (
        "decoder_input_ids",
        "labels",
        "start_positions",
    )  # with labels, models make the decoder's input themselves
    if not getattr(config, "is_encoder_decoder", False) or any(name in inputs for name in given):
        return inputs
    tokens = inputs["input_ids"]
    start = next(
        (number for field in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
         if (number := getattr(config, field, None)) is not None), 0
    )  # fmt: skip
    shifted = torch.cat([torch.full_like(tokens[:, :1], start), tokens[:, :-1]], dim=1)
    return {**inputs, "decoder_input_ids": shifted, "decoder_attention_mask": inputs["attention_mask"]}
