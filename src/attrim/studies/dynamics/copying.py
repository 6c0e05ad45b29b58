"""One training of a copying network, and what its attention and its knowledge of single symbols do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...attention.context import attach, edit
from ...core.modes import in_mode
from ...edits.uniform import Uniform
from ...errors import ParameterError
from ...models.recurrent import Head, RecurrentSeq2Seq, RecurrentSeq2SeqConfig, copier_config
from ...training.callbacks import Callback
from ...training.data import Step
from ...training.loop import Loop, own_randomness, seed_everything
from ...training.recipe import Recipe
from ...training.scheduled import AtSteps
from .generated import Copying
from .interventions import TAUGHT_SEED, SteeredLoss
from .probes import LastWeights, observe

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD, BAD, ALIGNED = 0.95, 0.6, 0.9
"""Accuracy above which a run has learnt to copy, below which it has not, and share of aligned steps that it needs."""
EPOCH = 50
"""Batches of generated data that count as an epoch."""


@dataclass(frozen=True)
class Training:
    """One training of a copying network.

    Attributes
    ----------
    data : what is copied.
    seed : draws the first weights and the data.
    data_seed : draws the data alone, where it is not that of ``seed``.
    heads : numbers of the heads of a GRU, each of which draws its own weights; none is the LSTM with one head. All else
        of the network is the same whichever heads it has.
    uniform_steps : attention is even for so many first steps; -1 for all.
    supervise : weight of a penalty that pulls attention to the right symbol.
    taught : steps of training with even attention on sequences with repetition, whose symbols tell what goes with what,
        before the training itself: knowledge of single symbols without attention.
    stop : end as soon as the accuracy is above this.
    """

    data: Copying
    seed: int
    steps: int = 200
    hidden_dim: int = 64
    batch_size: int = 64
    learning_rate: float = 1e-3
    evaluate_every: int = 10
    evaluate_on: int = 50
    bidirectional: bool = False
    context: bool = True
    heads: tuple[int, ...] = ()
    data_seed: int | None = None
    uniform_steps: int = 0
    supervise: float = 0.0
    taught: int = 0
    stop: float = 2.0

    @property
    def uniform(self) -> bool:
        """Whether attention is even from the first step to the last, in evaluation too."""
        return self.uniform_steps < 0


@dataclass(frozen=True)
class Evaluated:
    """What a copying network does after some updates.

    Attributes
    ----------
    accuracy : of tokens, the end included, the true ones before each given.
    aligned : of each head, the share of steps whose attention is highest at the right symbol; the end does not count.
    after, before : the same for the symbols after and before the right one: a state can hold a symbol that it read
        before.
    beta : the share of steps at which the right symbol argues most for the right token; None where it was not asked.
    evenness : entropy of attention as a share of that of even attention.
    loss : mean over tokens, in nats.
    """

    step: int
    accuracy: float
    aligned: tuple[float, ...]
    after: tuple[float, ...]
    before: tuple[float, ...]
    beta: float | None
    evenness: float
    loss: float


def build(training: Training) -> RecurrentSeq2Seq:
    """The network of a training, with first weights from its seed."""
    options: dict[str, Any] = {"context": training.context, "bidirectional": training.bidirectional}
    config = copier_config(training.data.num_vocab, training.hidden_dim, heads=min(len(training.heads), 1), **options)
    with own_randomness():
        seed_everything(training.seed, "copier")
        model = RecurrentSeq2Seq(config)
        if training.heads:
            model.swap_heads([draw_head(config, training.seed, number) for number in training.heads])
    return model


def draw_head(config: RecurrentSeq2SeqConfig, seed: int, number: int) -> Head:
    """The head with a number, whose weights depend on the seed and on that number alone."""
    seed_everything(seed, "head", number)
    return Head(config)


def train(training: Training) -> list[Evaluated]:
    """Train a copying network and evaluate it on the way."""
    model = build(training)
    data, seed = training.data, training.seed if training.data_seed is None else training.data_seed
    if training.taught:
        informative = Copying(data.num_vocab, data.seq_length, repetition=True)
        with edit(model, Uniform()):
            _loop(model, informative, training, training.taught, seed + TAUGHT_SEED, SteeredLoss(model)).run()
    found: list[Evaluated] = []
    loss = SteeredLoss(model, training.uniform_steps, training.supervise, _diagonal)

    def look(step: int, loop: Loop) -> None:
        with edit(model, Uniform()) if training.uniform else nullcontext():
            found.append(evaluate(model, data, training.evaluate_on, step, with_beta=not training.heads))

    watching = AtSteps(look, every=training.evaluate_every)
    loop = _loop(model, data, training, training.steps, seed, loss, watching, _Stop(training.stop, found))
    try:
        with edit(model, Uniform()) if training.uniform else nullcontext():
            loop.run()
    except _Enough:
        pass  # said by the callback: what there was to see has been seen
    return found


def _loop(
    model: RecurrentSeq2Seq,
    data: Copying,
    training: Training,
    steps: int,
    seed: int,
    loss: SteeredLoss,
    *callbacks: Callback,
) -> Loop:
    recipe = Recipe(
        steps=steps,
        learning_rate=training.learning_rate,
        schedule="constant",
        weight_decay=0.0,
        clip=0.0,
        seed=seed,
    )

    def epochs(epoch: int) -> Iterator[dict[str, Tensor]]:
        return islice(data.batches(training.batch_size, seed, epoch), EPOCH)

    return Loop(model, epochs, recipe, loss=loss, callbacks=[loss, *callbacks])


class _Enough(Exception):
    """A run has reached what it was trained for."""


class _Stop(Callback):
    def __init__(self, bar: float, found: list[Evaluated]) -> None:
        self.bar, self.found = bar, found

    def after_step(self, step: Step, loop: Loop) -> None:
        """See :meth:`Callback.after_step`."""
        if self.found and self.found[-1].step == step.number and self.found[-1].accuracy > self.bar:
            raise _Enough


def _diagonal(inputs: dict[str, Tensor]) -> Tensor:
    """All attention on the symbol that is to be copied, ``[T, S]``."""
    return torch.eye(inputs["input_ids"].shape[1], device=inputs["input_ids"].device)


def evaluate(model: RecurrentSeq2Seq, data: Copying, count: int, step: int, *, with_beta: bool = True) -> Evaluated:
    """What a copying network does with ``count`` fresh sequences, the same at every step."""
    inputs = data.batch(count, np.random.default_rng([data.num_vocab, data.seq_length, 7]))
    labels, length = inputs["labels"], data.seq_length
    right, beta = torch.arange(length), None
    with in_mode(model, training=False), torch.no_grad():
        if with_beta:
            seen = observe(model, inputs)
            logits, weights = seen.logits, seen.alpha[:, None]
            beta = float((seen.beta[:, :length].argmax(-1) == right).double().mean())
        else:
            watched = LastWeights()
            with attach(model, stats=[watched]):
                logits = model(**inputs).logits
            (weights,) = watched.weights.values()
    chosen = weights[:, :, :length].argmax(-1)

    def share(moved: int) -> tuple[float, ...]:
        return tuple((chosen == right + moved).double().mean((0, 2)).tolist())

    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()
    return Evaluated(
        step=step,
        accuracy=float((logits.argmax(-1) == labels).double().mean()),
        aligned=share(0),
        after=share(1),
        before=share(-1),
        beta=beta,
        evenness=float(entropy / np.log(weights.shape[-1])),
        loss=float(functional.cross_entropy(logits.flatten(0, 1), labels.flatten())),
    )


def succeeded(course: Sequence[Evaluated]) -> bool:
    """Whether a run has learnt to copy by attention: its accuracy, and a head that is aligned, at the end."""
    return course[-1].accuracy > GOOD and max(course[-1].aligned) > ALIGNED


def aligned(course: Sequence[Evaluated]) -> bool:
    """Whether some head of a run is aligned at the end."""
    return max(course[-1].aligned) > ALIGNED


def first_above(course: Sequence[Evaluated], what: str, bar: float = 0.5) -> int | None:
    """The first step at which alpha (the best head's alignment), beta or accuracy is above a bar."""
    if what not in ("alpha", "beta", "accuracy"):
        raise ParameterError(f"A course has alpha, beta and accuracy, not {what!r}.")
    for one in course:
        value = max(one.aligned) if what == "alpha" else one.beta if what == "beta" else one.accuracy
        if value is not None and value > bar:
            return one.step
    return None
