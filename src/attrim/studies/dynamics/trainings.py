"""One training of a recurrent network on a corpus, with probes at scheduled steps; it resumes after a kill.

A training has a folder of its own, so that it can run in another process: ``checkpoints`` to resume from, ``probes``
with a file of tensors and one of numbers for each scheduled step, and on request ``models``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from ...attention.context import edit
from ...core import record
from ...core.documents import read_json
from ...core.modes import in_mode
from ...edits.uniform import Uniform
from ...errors import ArtefactError, DataError, ParameterError
from ...models.recurrent import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentSeq2Seq,
    RecurrentSeq2SeqConfig,
)
from ...runs.files import read_sealed, remove_folder, replace_file, replace_sealed, replace_tensors, storage
from ...tasks.base import head_loss
from ...training.callbacks import Callback
from ...training.data import Loss
from ...training.loop import Loop, own_randomness, seed_everything
from ...training.recipe import Recipe
from ...training.scheduled import AtSteps, keep_models, scheduled
from . import probes
from .corpora import Corpus
from .generated import BOS, EOS, PAD
from .interventions import TAUGHT_SEED, ProxyLoss, SteeredLoss, load_proxies, reference_of
from .readings import Course, Readings

SPLITS = {"val": "validation", "train": "training", "held-out": "held_out"}
"""Names of results to the parts of a corpus."""
EVALUATION_BATCH = 64
CHECKPOINTS = 200
"""Steps between checkpoints to resume from."""


@dataclass(frozen=True)
class ProbedTraining:
    """Everything about one training; it can be pickled.

    Attributes
    ----------
    folder : where it keeps what it needs to resume, and its probes.
    corpus : file of :func:`save_corpus`.
    saves : the steps at which probes are read.
    sizes : of the network, as its configuration takes them.
    delta : whether the gradient probe is read, too; it costs a backward pass for each target step.
    splits : what probes are read on, as in ``SPLITS``.
    train_size : how many training examples are probed.
    delta_batch : examples of a backward pass of the gradient probe.
    uniform : attention is even from the first step to the last, in evaluation too.
    uniform_steps : attention is even for so many first steps, in training only.
    taught_steps : steps before the training itself in which beta is brought to the embedding proxy; classifiers only.
    supervise : weight of a penalty that pulls attention to where the embedding proxy would look.
    proxy : file of :func:`~attrim.studies.dynamics.text_runs.fit_proxies`, for the last two.
    """

    name: str
    folder: Path
    corpus: Path
    seed: int
    steps: int
    saves: tuple[int, ...]
    batch_size: int
    learning_rate: float
    uniform: bool = False
    sizes: dict[str, Any] = field(default_factory=dict)
    delta: bool = False
    splits: tuple[str, ...] = ("val",)
    train_size: int = 500
    delta_batch: int = 16
    bleu: bool = False
    keep_models: bool = False
    progress: bool = False
    uniform_steps: int = 0
    taught_steps: int = 0
    supervise: float = 0.0
    proxy: Path | None = None


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Keep a corpus in a file, for other processes."""
    import json

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(record.dump(corpus)).encode())


@lru_cache(maxsize=2)
def load_corpus(path: Path) -> Corpus:
    """The inverse of :func:`save_corpus`."""
    corpus: Corpus = record.load(Corpus, read_json(path, "remove the run's folder to repeat it"), f"corpus {path}")
    return corpus


def build(training: ProbedTraining, corpus: Corpus) -> RecurrentClassifier | RecurrentSeq2Seq:
    """The network of a training, with first weights from its seed."""
    with own_randomness():
        seed_everything(training.seed, "network")
        if corpus.pairs:
            return RecurrentSeq2Seq(RecurrentSeq2SeqConfig(vocab_size=corpus.vocab_size, **training.sizes))
        return RecurrentClassifier(RecurrentClassifierConfig(vocab_size=corpus.vocab_size, **training.sizes))


def make_batch(examples: Sequence[Sequence[Any]], pairs: bool, index: Sequence[int] | None = None) -> dict[str, Tensor]:
    """Examples as tensors, padded on the right; the mask goes by lengths, so that no token counts as padding."""
    source, mask = _padded([one[0] for one in examples], PAD)
    if pairs:
        labels, known = _padded([one[1][1:] for one in examples], -100)
        labels = labels.masked_fill(~known, probes.IGNORED)
    else:
        labels = torch.tensor([one[1] for one in examples])
    batch = {"input_ids": source, "attention_mask": mask.long(), "labels": labels}
    return batch if index is None else {**batch, "index": torch.tensor(list(index))}


def _padded(texts: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    longest = max(len(text) for text in texts)
    tokens = torch.full((len(texts), longest), filler)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(list(text))
    lengths = torch.tensor([len(text) for text in texts])
    return tokens, torch.arange(longest) < lengths[:, None]


def training_batches(corpus: Corpus, batch_size: int, seed: int, epoch: int) -> Iterator[dict[str, Tensor]]:
    """The batches of an epoch in an order that seed and epoch fix.

    Of a classification the last, smaller batch is left out, of a translation it is not, as in the released code.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(corpus.training)).tolist()
    stop = len(order) if corpus.pairs else max(len(order) // batch_size, 1) * batch_size
    for part in range(0, min(stop, len(order)), batch_size):
        yield make_batch([corpus.training[place] for place in order[part : part + batch_size]], corpus.pairs)


def probed_examples(training: ProbedTraining, corpus: Corpus, split: str) -> list[list[Any]]:
    """The examples of a split that probes are read on; of the training data the same ones for every run."""
    examples: list[list[Any]] = getattr(corpus, SPLITS[split])
    if split != "train" or len(examples) <= training.train_size:
        return examples
    chosen = np.random.default_rng(1).choice(len(examples), training.train_size, replace=False)
    return [examples[place] for place in sorted(chosen.tolist())]


def probe_batches(
    examples: Sequence[Sequence[Any]], pairs: bool, size: int = EVALUATION_BATCH
) -> list[dict[str, Tensor]]:
    """Batches of examples of similar length, with the places that they have among all."""
    order = sorted(range(len(examples)), key=lambda place: (len(examples[place][0]), place))
    parts = [order[part : part + size] for part in range(0, len(order), size)]
    return [make_batch([examples[place] for place in part], pairs, part) for part in parts]


def train(training: ProbedTraining) -> None:
    """Train, or go on, and leave the probes of every scheduled step in the folder."""
    corpus = load_corpus(training.corpus)
    if is_done(training):
        return
    model = build(training, corpus)

    def look(step: int, loop: Loop) -> None:
        read_probes(training, corpus, model, step)

    callbacks: list[Callback] = [AtSteps(look, extra=training.saves)]
    if training.keep_models:
        callbacks.append(keep_models(training.folder / "models", None, extra=training.saves))
    loss: Loss = head_loss
    if training.uniform_steps or training.supervise:
        reference = reference_of(training.proxy, corpus.pairs) if training.proxy and training.supervise else None
        loss = steered = SteeredLoss(model, training.uniform_steps, training.supervise, reference)
        callbacks.append(steered)
    loop = Loop(
        model,
        lambda epoch: training_batches(corpus, training.batch_size, training.seed, epoch),
        _recipe(training, training.steps),
        loss=loss,
        callbacks=callbacks,
        folder=training.folder / "checkpoints",
        progress=training.progress,
    )
    if training.taught_steps and loop.steps_left == training.steps:
        teach(model, training, corpus)
    with edit(model, Uniform()) if training.uniform else nullcontext():
        loop.run()
    replace_sealed(training.folder / "done.json", {"steps": training.steps})
    remove_folder(training.folder / "checkpoints")  # several times the model's size, and of no more use


def _recipe(training: ProbedTraining, steps: int) -> Recipe:
    return Recipe(
        steps=steps, learning_rate=training.learning_rate, schedule="constant", weight_decay=0.0, clip=0.0,
        seed=training.seed, checkpoint_every=CHECKPOINTS,
    )  # fmt: skip


def teach(model: Any, training: ProbedTraining, corpus: Corpus) -> None:
    """Bring beta of a classifier to the embedding proxy; its attention stays as it began."""
    if training.proxy is None:
        raise ParameterError("A network is taught by a proxy; give the file of one.")
    seed = training.seed + TAUGHT_SEED
    Loop(
        model,
        lambda epoch: training_batches(corpus, training.batch_size, seed, epoch),
        _recipe(training, training.taught_steps),
        loss=ProxyLoss(load_proxies(training.proxy)["px"]),
    ).run()


def is_done(training: ProbedTraining) -> bool:
    """Whether a training was finished."""
    return (training.folder / "done.json").exists()


def latest(training: ProbedTraining) -> int:
    """The last step whose probes are there; for progress."""
    steps = [int(path.stem.removeprefix("step-")) for path in (training.folder / "probes").glob("step-*.json")]
    return max(steps, default=0)


def read_probes(training: ProbedTraining, corpus: Corpus, model: Any, step: int) -> None:
    """Read every probe of one step and write them to files; the numbers last, because they say that all is there."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, float]] = {}
    for split in training.splits:
        examples = probed_examples(training, corpus, split)
        batches = probe_batches(examples, corpus.pairs)
        alpha, beta, numbers[split] = probes.alpha_and_beta(model, batches)
        found = {"alpha": alpha, "beta": beta}
        if training.delta:
            smaller = probe_batches(examples, corpus.pairs, training.delta_batch)
            found["grad"] = probes.delta(model, smaller)
        for kind, readings in found.items():
            tensors[f"{split}/{kind}"] = torch.from_numpy(readings.scores.astype(np.float32))
        numbers[split]["evenness"] = probes.evenness(alpha)
        numbers[split]["attention_gradient"] = probes.attention_gradient(model, batches[0])
        if training.bleu and split == "val":
            numbers[split]["bleu"] = bleu(model, corpus)
    numbers["held-out"] = probes.performance(model, probe_batches(corpus.held_out, corpus.pairs))
    folder = training.folder / "probes"
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_tensors(folder / f"step-{step:06d}.safetensors", tensors)
        replace_sealed(folder / f"step-{step:06d}.json", numbers)


def bleu(model: Any, corpus: Corpus, beams: int = 5, longest: int = 100) -> float:
    """Corpus BLEU (sacrebleu) of beam search, without normalisation by length, against the raw references."""
    import sacrebleu

    if corpus.references is None:
        raise DataError(
            f"The data set {corpus.name} has no references as texts, so there is no BLEU; leave --eval-bleu out."
        )
    said: list[str] = [""] * len(corpus.validation)
    for batch in probe_batches(corpus.validation, True):
        with in_mode(model, training=False), torch.no_grad():
            found = model.generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beams, max_length=longest,
                length_penalty=0.0, do_sample=False,
            )  # fmt: skip
        for place, tokens in zip(batch["index"].tolist(), found.tolist(), strict=True):
            said[place] = detokenised([corpus.vocabulary[token] for token in tokens if token not in (PAD, BOS, EOS)])
    return float(sacrebleu.corpus_bleu(said, [corpus.references]).score)


def detokenised(tokens: Sequence[str]) -> str:
    """Subwords of bytes as text."""
    from tokenizers import decoders

    return str(decoders.ByteLevel().decode(list(tokens))).strip()


class Trained:
    """The probes that a finished training left.

    Attributes
    ----------
    steps : the scheduled ones.
    """

    def __init__(self, training: ProbedTraining) -> None:
        self.training = training
        self.name = training.name
        self.corpus = load_corpus(training.corpus)
        self.steps = scheduled(training.steps, None, training.saves)
        remedy = "remove the folder of this training and repeat the command"
        self.numbers: dict[int, dict[str, dict[str, float]]] = {
            step: record.load(dict[str, dict[str, float]], read_sealed(self._path(step, "json"), remedy), "numbers")
            for step in self.steps
        }

    def performance(self, split: str, what: str = "acc") -> Course:
        """Accuracy, perplexity, BLEU or another number over the steps."""
        return Course(self.steps, tuple(self.numbers[step][split][what] for step in self.steps))

    def best_step(self, split: str, what: str = "acc") -> int:
        """The first step with the best performance."""
        return self.performance(split, what).maximum_step

    def readings(self, kind: str, step: int, split: str) -> Readings:
        """A probe at a step: ``alpha``, ``beta`` or ``grad``."""
        scores = _tensors(self._path(step, "safetensors")).get(f"{split}/{kind}")
        if scores is None:
            raise ArtefactError(f"The training {self.name} has no probe {kind!r} of {split!r} at step {step}.")
        lengths, sentences = self._shape(split)
        return Readings(scores.astype(np.float64), lengths, sentences)

    def _shape(self, split: str) -> tuple[Any, Any]:
        examples = probed_examples(self.training, self.corpus, split)
        times = [len(one[1]) - 1 if self.corpus.pairs else 1 for one in examples]
        lengths = np.repeat([len(one[0]) for one in examples], times)
        return lengths.astype(np.int64), np.repeat(np.arange(len(examples)), times).astype(np.int64)

    def _path(self, step: int, ending: str) -> Path:
        return self.training.folder / "probes" / f"step-{step:06d}.{ending}"


@lru_cache(maxsize=64)
def _tensors(path: Path) -> dict[str, Any]:
    with storage(path.parent):
        return load_file(path)
