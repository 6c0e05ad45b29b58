"""What training the recurrent networks in attrim costs: ``python benchmarks/dynamics.py``.

The same network, batches and optimiser, one step of each in turn, so that what else the machine does hits both:

- ``plain``: a step in plain torch with an equal network that is written without attrim. The classifier is there twice:
  with packed texts, as the released code has it, and with whole batches for each direction, which is quicker and what
  attrim does, so that the second row compares the loops alone;
- ``attrim``: a step of the one training loop of attrim with the network of ``models/recurrent.py``.

Targets: at most 1.05 x plain for the classifier, the translator and the copier. A second table has what one checkpoint
of ``attrim dynamics classify`` and ``translate`` costs (alpha, beta and performance of 500 examples, performance on 500
held-out ones, files; in the gold run delta, too), as a share of a run with the published schedule (23 checkpoints in
4,000 steps, 24 in 36,000): at most 20 %. Times are CPU seconds of the process; of steps the median, and the median of
the ratios of two steps with the same batch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait disturb on a shared machine

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attrim.models.recurrent import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentSeq2Seq,
    RecurrentSeq2SeqConfig,
    copier_config,
)
from attrim.studies.dynamics.corpora import Corpus
from attrim.studies.dynamics.generated import Copying
from attrim.studies.dynamics.trainings import ProbedTraining, read_probes
from attrim.training.callbacks import Callback
from attrim.training.data import Step
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe

TARGET, PROBES_TARGET, ITEMS = 1.05, 0.20, 500
SCHEDULES = {"classifier": (23, 4000), "translator": (24, 36_000)}
"""Checkpoints and steps of the published runs."""
WARM_UP = 2
"""Steps that do not count."""
Batch = dict[str, Tensor]


class PlainClassifier(nn.Module):
    """The classifier, written as one would without attrim."""

    def __init__(self, vocabulary: int, words: int, hidden: int, inner: int, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.embedding = nn.Embedding(vocabulary, words)
        self.encoder = nn.LSTM(words, hidden, bidirectional=packed, batch_first=True)
        self.backwards = None if packed else nn.LSTM(words, hidden, batch_first=True)
        self.inner, self.score, self.value = nn.Linear(2 * hidden, inner), nn.Linear(inner, 1), nn.Linear(2 * hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        mask = batch["attention_mask"].bool()
        hidden = self.states(self.embedding(batch["input_ids"]), mask)
        scores = self.score(functional.relu(self.inner(hidden)))[..., 0].masked_fill(~mask, -1e9)
        logit = (scores.softmax(-1) * self.value(hidden)[..., 0] * mask).sum(-1)
        return functional.binary_cross_entropy_with_logits(logit, batch["labels"].float())

    def states(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """The states of both directions, of packed texts or of whole batches."""
        lengths = mask.sum(1)
        if self.backwards is None:
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=mask.shape[1])[0]
        places = torch.arange(mask.shape[1]).expand_as(mask)
        turned = torch.where(mask, lengths[:, None] - 1 - places, places)[..., None]
        other = self.backwards(inputs.gather(1, turned.expand_as(inputs)))[0]
        both = [self.encoder(inputs)[0], other.gather(1, turned.expand_as(other))]
        return torch.cat(both, -1) * mask[..., None]


class PlainSeq2Seq(nn.Module):
    """The encoder-decoder networks, written as one would without attrim."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, directions: int, dropout: float, mix: str) -> None:
        super().__init__()
        self.directions, self.layers, self.activation = directions, layers, getattr(torch, mix)
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.encoder = nn.LSTM(hidden, hidden, layers, bidirectional=directions == 2, dropout=dropout, batch_first=True)
        self.decoder = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.query, self.context = nn.Linear(hidden, directions * hidden), nn.Linear(directions * hidden, hidden)
        self.mix, self.output = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, vocabulary)

    def forward(self, batch: Batch, start: int) -> Tensor:
        """The loss of a batch; decoding begins with the token ``start``."""
        source, labels = batch["input_ids"], batch["labels"]
        mask = batch.get("attention_mask")
        inputs = self.embedding(source)
        if mask is not None and not bool(mask.all()):
            packed = pack_padded_sequence(inputs, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            keys, (state, cell) = self.encoder(packed)
            keys = pad_packed_sequence(keys, batch_first=True, total_length=source.shape[1])[0]
        else:
            keys, (state, cell) = self.encoder(inputs)
        first = tuple(part.unflatten(0, (self.layers, -1)).mean(1).contiguous() for part in (state, cell))
        shifted = labels.roll(1, 1).clamp(min=0)
        shifted[:, 0] = start
        states = self.decoder(self.embedding(shifted), first)[0]
        scores = self.query(states) @ keys.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask.bool()[:, None], -1e9)
        context = self.context(scores.softmax(-1) @ keys)
        logits = self.output(self.activation(self.mix(torch.cat([states, context], -1))))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def texts(vocabulary: int, count: int, longest: int, pairs: bool) -> Iterator[Batch]:
    """Random texts of random lengths: time does not depend on what they say."""
    generator = np.random.default_rng(0)
    while True:
        lengths = torch.from_numpy(generator.integers(longest // 2, longest + 1, size=count))
        tokens = torch.from_numpy(generator.integers(4, vocabulary, size=(count, int(lengths.max()))))
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        labels = tokens.masked_fill(~mask, -100) if pairs else torch.from_numpy(generator.integers(2, size=count))
        yield {"input_ids": tokens * mask, "attention_mask": mask.long(), "labels": labels}


class InTurn(Callback):
    """Takes a plain step after every step of attrim with the same batch, and the time of both."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], batches: list[Batch]) -> None:
        self.loss, self.batches = loss, batches
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self.plain: list[float] = []
        self.attrim: list[float] = []
        self.begun = 0.0

    def before_first_step(self, loop: Loop) -> None:
        """Begin to take time."""
        self.begun = time.process_time()

    def after_step(self, step: Step, loop: Loop) -> None:
        """Take the plain step."""
        self.attrim.append(time.process_time() - self.begun)
        self.plain.append(seconds(lambda: self.plain_step(self.batches[step.number - 1])))
        self.begun = time.process_time()

    def plain_step(self, batch: Batch) -> None:
        """One step without attrim."""
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()


def seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    """Compare, and print two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=24, help="length of texts; IMDB is cut to 250")
    options = parser.parse_args()
    torch.set_num_threads(1)
    copied = Copying(24, 24)
    labelled = list(islice(texts(10_000, 32, options.tokens, False), options.steps))
    data = {
        "classifier": labelled,
        "classifier, whole batches": labelled,
        "translator": list(islice(texts(8000, 16, options.tokens, True), options.steps)),
        "copier": list(islice(copied.batches(64, 0), options.steps)),
    }
    classifier = RecurrentClassifier(RecurrentClassifierConfig(vocab_size=10_000))
    ours = {
        "classifier": classifier,
        "classifier, whole batches": classifier,
        "translator": RecurrentSeq2Seq(RecurrentSeq2SeqConfig()),
        "copier": RecurrentSeq2Seq(copier_config(24, 64)),
    }
    packed, whole = (PlainClassifier(10_000, 300, 256, 256, packed) for packed in (True, False))
    translator = PlainSeq2Seq(8000, 256, 2, 2, 0.5, "relu")
    copier = PlainSeq2Seq(26, 64, 1, 1, 0.0, "tanh")
    plain: dict[str, tuple[nn.Module, Callable[[Batch], Tensor]]] = {
        "classifier": (packed, packed),
        "classifier, whole batches": (whole, whole),
        "translator": (translator, lambda batch: translator(batch, 1)),
        "copier": (copier, lambda batch: copier(batch, 25)),
    }
    table = Table("network", "plain (ms a step)", "attrim (ms a step)", "ratio", f"at most {TARGET:g}")
    cost = {}
    for name, batches in data.items():
        turns = InTurn(*plain[name], batches)
        recipe = Recipe(steps=len(batches), learning_rate=1e-3, schedule="constant", weight_decay=0.0, clip=0.0)
        Loop(ours[name], lambda _, batches=batches: iter(batches), recipe, callbacks=[turns]).run()
        times = {"plain": turns.plain[WARM_UP:], "attrim": turns.attrim[WARM_UP:]}
        ratio = statistics.median(mine / theirs for mine, theirs in zip(times["attrim"], times["plain"], strict=True))
        cost[name] = statistics.median(times["attrim"])
        row = [f"{1000 * statistics.median(times[kind]):.1f}" for kind in ("plain", "attrim")]
        table.add_row(name, *row, f"{ratio:.3f}", "yes" if ratio <= TARGET else "NO")
    Console().print(table)
    probed = Table("a checkpoint of", "seconds", "share", "with delta", "share", f"at most {PROBES_TARGET:.0%}")
    for name, (checkpoints, steps) in SCHEDULES.items():
        spent = [probes_seconds(ours[name], options.tokens, delta) for delta in (False, True)]
        shares = [checkpoints * one / (steps * cost[name]) for one in spent]
        columns = [text for one, share in zip(spent, shares, strict=True) for text in (f"{one:.2f}", f"{share:.1%}")]
        probed.add_row(name, *columns, "yes" if max(shares) <= PROBES_TARGET else "NO")
    Console().print(probed)


def probes_seconds(model: RecurrentClassifier | RecurrentSeq2Seq, tokens: int, delta: bool) -> float:
    """What one checkpoint of a training costs."""
    pairs = isinstance(model, RecurrentSeq2Seq)
    vocabulary = model.config.vocab_size
    parts = [examples(vocabulary, tokens, pairs, number) for number in range(2)]
    corpus = Corpus("random", [""] * vocabulary, parts[1], parts[1], parts[0], pairs)
    with tempfile.TemporaryDirectory() as folder:
        training = ProbedTraining(
            "benchmark", Path(folder), Path(folder), 0, 1, (), 16, 1e-3, delta=delta, delta_batch=16 if pairs else 64
        )
        return seconds(lambda: read_probes(training, corpus, model, 0))


def examples(vocabulary: int, tokens: int, pairs: bool, seed: int) -> list[list[Any]]:
    """Random texts as token numbers, with a class or with themselves as target."""
    generator = np.random.default_rng(seed)
    found: list[list[Any]] = []
    for length in generator.integers(tokens // 2, tokens + 1, size=ITEMS).tolist():
        text = generator.integers(4, vocabulary, size=length).tolist()
        found.append([text, text if pairs else length % 2])
    return found


if __name__ == "__main__":
    main()
