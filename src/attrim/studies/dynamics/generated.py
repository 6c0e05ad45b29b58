"""Generated data whose right attention is known: copying, keyword classification, translation by a toy lexicon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import ParameterError

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3


@dataclass(frozen=True)
class Copying:
    """Sequences to copy, symbol by symbol.

    Attributes
    ----------
    num_vocab : how many symbols there are; the end is number ``num_vocab``, the start the one after it.
    seq_length : symbols of a sequence.
    repetition : symbols are drawn independently; otherwise a sequence is the beginning of a permutation of all of them.
    """

    num_vocab: int
    seq_length: int
    repetition: bool = False

    def __post_init__(self) -> None:
        if self.num_vocab < 2 or self.seq_length < 2:
            raise ParameterError("Copying needs at least 2 symbols and sequences of at least 2.")
        if not self.repetition and self.seq_length > self.num_vocab:
            raise ParameterError(
                f"{self.seq_length} of {self.num_vocab} symbols cannot be drawn without repetition; use more symbols, "
                "shorter sequences, or repetition."
            )

    @property
    def name(self) -> str:
        """What to call it: ``24 of 36``, or ``24 of 24, repeated``."""
        return f"{self.seq_length} of {self.num_vocab}" + (", repeated" if self.repetition else "")

    @property
    def ratio(self) -> float:
        """The co-occurrence ratio: how much likelier a target slot is the same symbol as a source symbol than another.

        1 where nothing can be learnt from which symbols occur together.
        """
        others = self.seq_length - 1
        return 1 + self.num_vocab / others if self.repetition else (self.num_vocab - 1) / others

    def sample(self, count: int, generator: np.random.Generator) -> Tensor:
        """Sequences, int64 ``[count, seq_length]``."""
        if self.repetition:
            return torch.from_numpy(generator.integers(self.num_vocab, size=(count, self.seq_length)))
        order = generator.random((count, self.num_vocab)).argsort(1)
        return torch.from_numpy(order[:, : self.seq_length].copy())

    def batch(self, count: int, generator: np.random.Generator) -> dict[str, Tensor]:
        """Sequences with their end as source and as labels, ``[count, seq_length + 1]``."""
        symbols = self.sample(count, generator)
        ended = torch.cat([symbols, torch.full((count, 1), self.num_vocab)], dim=1)
        return {"input_ids": ended, "labels": ended.clone()}

    def batches(self, batch_size: int, *key: int) -> Iterator[dict[str, Tensor]]:
        """Fresh batches without end, the same for the same key."""
        generator = np.random.default_rng(list(key))
        while True:
            yield self.batch(batch_size, generator)


def measured_ratio(symbols: Tensor, num_vocab: int) -> float:
    """The co-occurrence ratio of sequences ``[N, L]``, counted."""
    counts = torch.nn.functional.one_hot(symbols, num_vocab).sum(1).double()
    # Pairs of a source symbol and a target slot: a symbol meets itself as often as it occurs, squared.
    same = float((counts * counts).sum())
    other = float(counts.sum(1).square().sum()) - same
    return same / other * (num_vocab - 1)


def two_stages(values: tuple[float, float], attention: float, steps: int, size: float) -> list[tuple[float, ...]]:
    """The toy model of the paper: two values and one attention weight, trained by gradient descent.

    The sequences {0, 0} and {0, 1} have the scores ``b0`` and ``(1 - p) b0 + p b1``, and the second is to be the larger
    one. From equal values the values move first; attention follows, because its gradient is their difference.

    Parameters
    ----------
    values : ``b0`` and ``b1`` at the start.
    attention : ``p`` at the start.
    size : of a step.

    Returns
    -------
    ``(b0, b1, p)`` after each step.
    """
    found: list[tuple[float, ...]] = []
    first, second = values
    for _ in range(steps):
        # The objective is p (b0 - b1); all three move at once.
        slopes = attention, -attention, first - second
        first, second, attention = first - size * slopes[0], second - size * slopes[1], attention - size * slopes[2]
        found.append((first, second, attention))
    return found


@dataclass(frozen=True)
class Keywords:
    """Sentences with planted words that tell two classes apart; the other words say nothing.

    Attributes
    ----------
    keywords : how many words there are for each class.
    most : a sentence has 1 to so many of them; with the most, half the time one is of the other class.
    """

    words: int = 200
    keywords: int = 10
    most: int = 3
    shortest: int = 20
    longest: int = 40

    def __post_init__(self) -> None:
        if not (0 < 2 * self.keywords < self.words and 1 <= self.most <= self.shortest <= self.longest):
            raise ParameterError(f"These sizes of keyword sentences do not fit together: {self}.")

    @property
    def vocab_size(self) -> int:
        """Words and special tokens."""
        return self.words + 4

    def examples(self, count: int, seed: int) -> list[tuple[list[int], int]]:
        """Token numbers with start and end, and the label."""
        generator = np.random.default_rng([seed, count])
        found = []
        for _ in range(count):
            label = int(generator.integers(2))
            length = int(generator.integers(self.shortest, self.longest + 1))
            tokens = generator.integers(2 * self.keywords, self.words, size=length)
            planted = int(generator.integers(1, self.most + 1))
            classes = [label] * planted
            if planted == self.most and planted > 2 and generator.random() < 0.5:
                classes[0] = 1 - label
            places = generator.choice(length, size=planted, replace=False)
            tokens[places] = [one * self.keywords + int(generator.integers(self.keywords)) for one in classes]
            found.append(([BOS, *(tokens + 4).tolist(), EOS], label))
        return found


@dataclass(frozen=True)
class Lexicon:
    """Sentences of a language whose words have one translation each, with neighbours swapped now and then.

    Attributes
    ----------
    words : of each language.
    swaps : how likely two neighbours change places in the translation.
    """

    words: int = 60
    shortest: int = 5
    longest: int = 12
    swaps: float = 0.2

    @property
    def vocab_size(self) -> int:
        """Words of both languages and special tokens."""
        return 2 * self.words + 4

    def examples(self, count: int, seed: int) -> list[tuple[list[int], list[int], list[int]]]:
        """Source and target tokens with start and end, and for each target token after the start its source place."""
        translation = np.random.default_rng(self.words).permutation(self.words)
        generator = np.random.default_rng([seed, count])
        found = []
        for _ in range(count):
            length = int(generator.integers(self.shortest, self.longest + 1))
            source = generator.choice(self.words, size=length, replace=self.words < length)
            order = list(range(length))
            place = 0
            while place + 1 < length:
                if generator.random() < self.swaps:
                    order[place], order[place + 1] = order[place + 1], order[place]
                    place += 1
                place += 1
            target = [int(translation[source[one]]) + self.words + 4 for one in order]
            aligned = [one + 1 for one in order] + [length + 1]
            found.append(([BOS, *(source + 4).tolist(), EOS], [BOS, *target, EOS], aligned))
        return found
