"""What training the recurrent networks in attrim costs: ``python benchmarks/dynamics.py``.

The same network, batches and optimiser, in interleaved rounds of a few steps:

- ``plain``: a loop in plain torch around an equal network that is written without attrim, as the released code has it;
- ``attrim``: the one training loop of attrim around the network of ``models/recurrent.py``.

Targets: at most 1.05 x plain for the classifier, the translator and the copier. A second table has what reading alpha,
beta and delta of 500 examples costs at one checkpoint, as a share of a run with the published schedule (23 checkpoints
in 4,000 steps of the classifier; delta is read in one of its 7 runs): at most 20 %. Times are CPU seconds of the
process, medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice

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
from attrim.studies.dynamics import probes
from attrim.studies.dynamics.generated import Copying
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe

TARGET, PROBES_TARGET = 1.05, 0.20
CHECKPOINTS, STEPS, RUNS, ITEMS = 23, 4000, 7, 500
Batch = dict[str, Tensor]


class PlainClassifier(nn.Module):
    """The classifier, written as one would without attrim."""

    def __init__(self, vocabulary: int, words: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, words)
        self.encoder = nn.LSTM(words, hidden, bidirectional=True, batch_first=True)
        self.inner, self.score, self.value = nn.Linear(2 * hidden, inner), nn.Linear(inner, 1), nn.Linear(2 * hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        mask = batch["attention_mask"].bool()
        packed = pack_padded_sequence(
            self.embedding(batch["input_ids"]), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        hidden = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=mask.shape[1])[0]
        scores = self.score(functional.relu(self.inner(hidden)))[..., 0].masked_fill(~mask, -1e9)
        logit = (scores.softmax(-1) * self.value(hidden)[..., 0] * mask).sum(-1)
        return functional.binary_cross_entropy_with_logits(logit, batch["labels"].float())


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


def plain_steps(model: nn.Module, loss: Callable[[Batch], Tensor], batches: list[Batch]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for batch in batches:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()


def attrim_steps(model: nn.Module, batches: list[Batch]) -> None:
    recipe = Recipe(steps=len(batches), learning_rate=1e-3, schedule="constant", weight_decay=0.0, clip=0.0)
    Loop(model, lambda _: iter(batches), recipe).run()


def seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    """Compare, and print two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="length of texts; IMDB is cut to 250")
    options = parser.parse_args()
    torch.set_num_threads(1)
    copied = Copying(24, 24)
    data = {
        "classifier": list(islice(texts(10_000, 32, options.tokens, False), options.steps)),
        "translator": list(islice(texts(8000, 16, options.tokens, True), options.steps)),
        "copier": list(islice(copied.batches(64, 0), options.steps)),
    }
    ours = {
        "classifier": RecurrentClassifier(RecurrentClassifierConfig(vocab_size=10_000)),
        "translator": RecurrentSeq2Seq(RecurrentSeq2SeqConfig()),
        "copier": RecurrentSeq2Seq(copier_config(24, 64)),
    }
    classifier = PlainClassifier(10_000, 300, 256, 256)
    translator = PlainSeq2Seq(8000, 256, 2, 2, 0.5, "relu")
    copier = PlainSeq2Seq(26, 64, 1, 1, 0.0, "tanh")
    plain: dict[str, tuple[nn.Module, Callable[[Batch], Tensor]]] = {
        "classifier": (classifier, classifier),
        "translator": (translator, lambda batch: translator(batch, 1)),
        "copier": (copier, lambda batch: copier(batch, 25)),
    }
    table = Table("network", "plain (ms a step)", "attrim (ms a step)", "ratio", f"at most {TARGET:g}")
    cost = {}
    for name, batches in data.items():
        times: dict[str, list[float]] = {"plain": [], "attrim": []}
        for number in range(options.rounds + 1):
            one = seconds(lambda name=name, batches=batches: plain_steps(*plain[name], batches))
            other = seconds(lambda name=name, batches=batches: attrim_steps(ours[name], batches))
            if number:  # the first round warms up
                times["plain"].append(one / len(batches))
                times["attrim"].append(other / len(batches))
        ratio = statistics.median(mine / theirs for mine, theirs in zip(times["attrim"], times["plain"], strict=True))
        cost[name] = statistics.median(times["attrim"])
        row = [f"{1000 * statistics.median(times[kind]):.1f}" for kind in ("plain", "attrim")]
        table.add_row(name, *row, f"{ratio:.3f}", "yes" if ratio <= TARGET else "NO")
    Console().print(table)
    items = list(islice(texts(10_000, 50, options.tokens, False), ITEMS // 50))
    model = ours["classifier"]
    every = seconds(lambda: (probes.alpha(model, items), probes.beta(model, items), probes.accuracy(model, items)))  # type: ignore[func-returns-value]
    delta = seconds(lambda: probes.delta(model, items))  # type: ignore[func-returns-value,arg-type,return-value]
    share = CHECKPOINTS * (every + delta / RUNS) / (STEPS * cost["classifier"])
    verdict = "yes" if share <= PROBES_TARGET else "NO"
    probed = Table("probes of 500 examples", "seconds", f"share of a run, at most {PROBES_TARGET:.0%}", "")
    probed.add_row("alpha, beta, accuracy; delta", f"{every:.2f}; {delta:.2f}", f"{share:.1%}", verdict)
    Console().print(probed)


if __name__ == "__main__":
    main()
