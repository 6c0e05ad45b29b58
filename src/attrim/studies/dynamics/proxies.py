"""Bag-of-words models of what is learnt before attention: which word goes with which answer (beta^px of the paper).

None of them has a recurrent layer or attention. All select on held-out data, and all draw from one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ...errors import DataError
from ...training.loop import own_randomness, seed_everything
from .readings import Readings

Labelled = Sequence[tuple[Sequence[int], int]]
"""Token numbers and the class, 0 or 1, of texts."""
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Token numbers of sources and of targets; targets begin with the start token, which nothing predicts."""

STRENGTHS = tuple(factor * 10.0**power for power in range(-5, 5) for factor in (1, 5))[:19]
"""Inverse regularisations of the logistic proxy: 1e-5, 5e-5, 1e-4, and so on to 1e4."""


class Bag(nn.Module):
    """The mean embedding of a text, and a linear layer: for one label, or for the words of a translation."""

    def __init__(self, vocab_size: int, outputs: int, embed_dim: int = 256) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, mode="mean")
        self.output = nn.Linear(embed_dim, outputs)

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Logits ``[B, outputs]`` of texts; every token counts the same, the special ones too."""
        flat = torch.tensor([token for text in texts for token in text])
        starts = torch.tensor([0, *np.cumsum([len(text) for text in texts])[:-1]])
        logits: Tensor = self.output(self.embedding(flat, starts))
        return logits

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Bag:
        """The bag with a state that was kept."""
        outputs, size = state["output.weight"].shape
        bag = cls(len(state["embedding.weight"]), outputs, size)
        bag.load_state_dict(dict(state))
        return bag

    @torch.no_grad()
    def word_logits(self, words: Tensor | None = None) -> Tensor:
        """What each word argues for alone, without the bias, ``[V, outputs]``."""
        table = self.embedding.weight if words is None else self.embedding.weight[words]
        return table @ self.output.weight.T


@dataclass(frozen=True)
class Fitted:
    """A proxy that was trained: the best state, and the loss on held-out data after each epoch (0 is before any)."""

    bag: Bag
    epoch: int
    losses: tuple[float, ...]


def fit_classifier(
    training: Labelled,
    held_out: Labelled,
    vocab_size: int,
    *,
    embed_dim: int = 256,
    epochs: int = 30,
    learning_rate: float = 2e-4,
    batch_size: int = 64,
    seed: int = 0,
    after_epoch: Callable[[], object] = lambda: None,
) -> Fitted:
    """The embedding proxy of a classification; the loss is the sum over a batch, as in the released code."""
    labels = {label for _, label in (*training, *held_out)}
    if not labels <= {0, 1}:
        raise DataError(f"Labels are 0 and 1, not {sorted(labels)}; reduce the data to two classes.")

    def loss(bag: Bag, batch: Labelled) -> Tensor:
        gold = torch.tensor([float(label) for _, label in batch])
        logits = bag([text for text, _ in batch])[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, gold, reduction="sum")

    sizes = vocab_size, embed_dim, epochs, learning_rate, batch_size, seed
    return _fit(1, loss, training, held_out, *sizes, after_epoch)


def fit_translator(
    training: Pairs,
    held_out: Pairs,
    vocab_size: int,
    *,
    embed_dim: int = 256,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    seed: int = 0,
    after_epoch: Callable[[], object] = lambda: None,
) -> Fitted:
    """The embedding proxy of a translation: every target token, but the start, is predicted from the bag of the source.

    The released code trains on the start token and on padding as targets too; it validates without them, as here.
    """

    def loss(bag: Bag, batch: Pairs) -> Tensor:
        scores = bag([source for source, _ in batch]).log_softmax(-1)
        rows = torch.tensor([row for row, (_, target) in enumerate(batch) for _ in target[1:]])
        words = torch.tensor([word for _, target in batch for word in target[1:]])
        return -scores[rows, words].sum()

    sizes = vocab_size, embed_dim, epochs, learning_rate, batch_size, seed
    return _fit(vocab_size, loss, training, held_out, *sizes, after_epoch)


def _fit(
    outputs: int,
    loss: Callable[[Bag, Any], Tensor],
    training: Sequence[Any],
    held_out: Sequence[Any],
    vocab_size: int,
    embed_dim: int,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    seed: int,
    after_epoch: Callable[[], object],
) -> Fitted:
    if not training or not held_out:
        raise DataError("A proxy needs examples to train on and others to choose its epoch by.")
    with own_randomness():
        seed_everything(seed, "proxy")
        bag = Bag(vocab_size, outputs, embed_dim)
        # A table of embeddings is nearly all of it, and the fused step reads and writes each number once.
        optimizer = torch.optim.Adam(bag.parameters(), lr=learning_rate, fused=True)

        def held_out_loss() -> float:
            with torch.no_grad():
                parts = range(0, len(held_out), batch_size)
                return sum(float(loss(bag, held_out[part : part + batch_size])) for part in parts)

        best, losses = 0, [held_out_loss()]
        state = {name: value.clone() for name, value in bag.state_dict().items()}
        for epoch in range(1, epochs + 1):
            order = torch.randperm(len(training)).tolist()
            for part in range(0, len(order), batch_size):
                optimizer.zero_grad()
                loss(bag, [training[place] for place in order[part : part + batch_size]]).backward()
                optimizer.step()
            losses.append(held_out_loss())
            if losses[-1] < min(losses[:-1]):
                best, state = epoch, {name: value.clone() for name, value in bag.state_dict().items()}
            after_epoch()
        bag.load_state_dict(state)
    return Fitted(bag, best, tuple(losses))


def word_readings(values: NDArray[np.float64], examples: Labelled) -> Readings:
    """The readings of a number for each word ``[V]``: looked up, with the sign of the gold label."""
    return Readings.of([values[list(text)] * (2 * label - 1) for text, label in examples])


def pair_readings(bag: Bag, examples: Pairs) -> Readings:
    """The readings of a translation proxy: how likely each source word is translated by each target token."""
    found = []
    for source, target in examples:
        rows = bag.word_logits(torch.tensor(list(source))).softmax(-1)
        found.append(rows[:, list(target[1:])].T.double().numpy())
    return Readings.of(found)


@dataclass(frozen=True)
class Logistic:
    """A logistic regression on words: a weight for each, and the strength that was best on held-out data."""

    weights: NDArray[np.float64]
    strength: float
    accuracy: float


def fit_logistic(
    training: Labelled, held_out: Labelled, vocab_size: int, *, strengths: Sequence[float] = STRENGTHS
) -> Logistic:
    """The logistic proxy: counts of words divided by the length of the text, regularised as in scikit-learn.

    Of equally accurate strengths the first one counts.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    features, other = _counts(training, vocab_size), _counts(held_out, vocab_size)
    signs = np.array([2.0 * label - 1 for _, label in training])
    gold = np.array([label for _, label in held_out])
    best: Logistic | None = None
    start = np.zeros(vocab_size + 1)
    for strength in strengths:

        def objective(weights: NDArray[np.float64], strength: float = strength) -> tuple[float, NDArray[np.float64]]:
            margins = signs * (features @ weights[:-1] + weights[-1])
            slope = -strength * signs * expit(-margins)
            value = strength * np.logaddexp(0, -margins).sum() + 0.5 * (weights[:-1] @ weights[:-1])
            return value, np.append(features.T @ slope + weights[:-1], slope.sum())

        # From the solution of the strength before, which is near.
        start = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
        accuracy = float((((other @ start[:-1] + start[-1]) > 0) == gold).mean())
        if best is None or accuracy > best.accuracy:
            best = Logistic(start[:-1].copy(), float(strength), accuracy)
    assert best is not None
    return best


def _counts(examples: Labelled, vocab_size: int) -> Any:
    """Counts of words divided by the length of the text, sparse ``[N, V]``."""
    from scipy.sparse import csr_matrix

    rows = np.concatenate([np.full(len(text), row) for row, (text, _) in enumerate(examples)])
    words = np.concatenate([np.asarray(text) for text, _ in examples])
    shares = np.concatenate([np.full(len(text), 1 / len(text)) for text, _ in examples])
    return csr_matrix((shares, (rows, words)), shape=(len(examples), vocab_size))


def count_words(examples: Labelled, vocab_size: int) -> NDArray[np.float64]:
    """The count proxy of a classification ``[V]``: how much more of a word is in texts of class 1, as a share."""
    shares = _counts(examples, vocab_size)
    labels = np.array([label for _, label in examples])
    first, second = (np.asarray(shares[labels == label].sum(0)).ravel() for label in (1, 0))
    found: NDArray[np.float64] = (first - second) / np.maximum(first + second, 1e-12)
    return found


class PairCounts:
    """The count proxy of a translation: 1 / length of the source, added up for each pair of source and target token."""

    def __init__(self, examples: Pairs, vocab_size: int) -> None:
        from scipy.sparse import coo_matrix

        rows = [np.repeat(np.asarray(source), len(target) - 1) for source, target in examples]
        words = [np.tile(np.asarray(target[1:]), len(source)) for source, target in examples]
        shares = [np.full(len(source) * (len(target) - 1), 1 / len(source)) for source, target in examples]
        cells = np.concatenate(shares), (np.concatenate(rows), np.concatenate(words))
        self.counts = coo_matrix(cells, shape=(vocab_size, vocab_size)).tocsr()

    def readings(self, examples: Pairs) -> Readings:
        """The counts of the words of some pairs."""
        return Readings.of(
            [np.asarray(self.counts[list(source)][:, list(target[1:])].todense()).T for source, target in examples]
        )
