"""The one training loop: steps, checkpoints, resume, frozen parts and groups of parameters.

Random numbers depend on the seed and the step alone, so that a resumed run draws the same ones.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..core import record
from ..core.modes import in_mode, own_memory, remembers
from ..core.processor import prepare_half_precision
from ..core.progress import track
from ..errors import ArtefactError, DataError, ParameterError, SelectionError
from ..tasks.base import head_loss
from .callbacks import Callback
from .checkpoint import Checkpoints
from .data import BatchStream, Epochs, Inputs, Loss, Step, count, weight
from .recipe import Recipe

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SMALLEST_SCALE = 1e-4
"""Of the loss in float16, as in fairseq; below it the loss itself is not finite."""


@dataclass(frozen=True)
class State:
    """Where a training is: what a checkpoint keeps beside the weights and the state of the optimiser.

    Attributes
    ----------
    done, pinned : as in :class:`Loop`.
    epoch, batch : the place in the data.
    callbacks : what each callback remembers.
    skipped : as in :class:`Loop`.
    scaler : the state of the loss scaling; empty without it.
    """

    done: int
    pinned: int | None
    epoch: int
    batch: int
    callbacks: list[dict[str, Any]]
    skipped: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)


class Loop:
    """Train a model; what is drawn at random depends on the recipe's seed and the step alone.

    Parameters
    ----------
    model : any module; trained in place, on the device it is on.
    epochs : the batches of an epoch by its number, the same whenever it is asked; the loop may read ahead of a step.
    loss : by default the one of the model's own head.
    callbacks : called after every step, in order.
    folder : for checkpoints; when it has one, the loop resumes from it. None writes no checkpoints.

    Attributes
    ----------
    done : how many steps are done.
    steps : how many there are in all.
    skipped : how many of those that are done changed nothing, because float16 overflowed.
    pinned : the step whose checkpoint is kept until another one is pinned.

    Examples
    --------
    >>> loop = Loop(model, lambda epoch: task.train_batches(tokenizer, model, epoch=epoch), Recipe(steps=100))
    >>> loop.run()
    """

    def __init__(
        self,
        model: nn.Module,
        epochs: Epochs,
        recipe: Recipe,
        *,
        loss: Loss = head_loss,
        callbacks: Sequence[Callback] = (),
        folder: Path | None = None,
        progress: bool = False,
    ) -> None:
        recipe.check()
        if getattr(loss, "label_smoothing", 0.0) != recipe.label_smoothing:
            raise ParameterError(
                "The loss of this training has no label smoothing; leave it out, or give task.smoothed(…)."
            )
        if recipe.dtype != "float32":
            prepare_half_precision()
        self.model = model
        self.recipe = recipe
        self.loss = loss
        self.callbacks = callbacks
        self.progress = progress
        self.done = 0
        self.skipped = 0
        self.pinned: int | None = None
        self._checkpoints = None if folder is None else Checkpoints(folder)
        # Accelerate spreads the work over processes; the place and the number type are this loop's business.
        self._accelerator = Accelerator(device_placement=False)
        self._batches = recipe.accumulation * self._accelerator.num_processes
        self._stream = BatchStream(epochs)
        # At least one step, so that data without batches is an error and not nothing.
        self.steps = recipe.steps or max(1, math.ceil(recipe.epochs * count(epochs) / self._batches))
        self._last: Step | None = None
        device = next(model.parameters()).device.type
        self._scaler = torch.amp.GradScaler(device, enabled=recipe.dtype == "float16")

    def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one."""
        with (
            own_randomness(),
            frozen(self.model, self.recipe.freeze),
            in_mode(self.model, training=True),
            own_memory(self.model),
        ):
            if self._accelerator.num_processes > 1:
                if remembers(self.model):
                    raise ParameterError(
                        f"A {type(self.model).__name__} remembers the batch before, so several processes cannot share "
                        "the batches; train it in one."
                    )
                self.model.to(self._accelerator.device)  # each process has a device of its own
            model: nn.Module
            model, prepared = self._accelerator.prepare(self.model, self._adam())
            # The wrapper does nothing here but look for a package twice a step, a tenth of the time of a small one.
            self._optimizer: torch.optim.Optimizer = prepared.optimizer
            self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            self._resume()
            for callback in self.callbacks if self.done == 0 else ():
                callback.before_first_step(self)
            stream = iter(self._stream)
            for number in track(range(self.done + 1, self.steps + 1), self._describe, self.progress):
                self._last = self._step(model, number, list(islice(stream, self._batches)))
                self.done = number
                before = self.pinned
                for callback in self.callbacks:
                    callback.after_step(self._last, self)
                if number % self.recipe.checkpoint_every == 0 or self._last.last or self.pinned != before:
                    self._save()
            self._optimizer.zero_grad()

    @property
    def steps_left(self) -> int:
        """How many steps :meth:`run` would take now, from the newest checkpoint on."""
        newest = self.done if self._checkpoints is None else self._checkpoints.latest()
        return self.steps - (newest or self.done)

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that writes files."""
        return bool(self._accelerator.is_main_process)

    def wait(self) -> None:
        """Wait for the other processes, if there are any."""
        self._accelerator.wait_for_everyone()

    def pin(self) -> None:
        """Keep the weights as they are after this step, in place of those pinned before; for callbacks."""
        if self._checkpoints is None:
            raise ParameterError("There is no folder to keep weights in; give the loop one.")
        self.pinned = self.done

    def restore_pinned(self) -> None:
        """Put the pinned weights back into the model."""
        if self._checkpoints is not None and self.pinned is not None:
            self._checkpoints.load_weights(self.pinned, self.model)

    def _adam(self) -> torch.optim.Optimizer:
        factors = {name: rate / self.recipe.learning_rate for name, rate in self.recipe.own_rates().items()}
        found = groups(self.model, self.recipe.weight_decay, factors)
        # On the CPU the fused step reads and writes each number once; elsewhere torch chooses well by itself.
        fused = next(self.model.parameters()).device.type == "cpu" or None
        return torch.optim.AdamW(found, lr=0.0, betas=self.recipe.betas, fused=fused)

    def _step(self, model: nn.Module, number: int, batches: list[Inputs]) -> Step:
        started = time.perf_counter()
        rate = self.recipe.rate(number - 1, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        # Not after a step: memory that is given back before the forward pass has to be asked for again.
        self._optimizer.zero_grad()
        loss = self._accumulate(model, number, batches)
        if self._scaler.is_enabled():
            self._scaler.unscale_(self._optimizer)
        norm = float(self._limited_norm(self._trained))
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and not self._rescaled():
            raise DataError(
                f"The loss of step {number} ({loss:g}) or its gradient (norm {norm:g}) is not finite; lower the "
                "learning rate, lengthen the warm-up, or compute in float32."
            )
        if finite:
            self._optimizer.step()
            self._scaler.update()
        self.skipped += not finite
        return Step(number, number == self.steps, loss, rate, norm, time.perf_counter() - started, skipped=not finite)

    def _limited_norm(self, trained: Sequence[nn.Parameter]) -> Tensor:
        """The norm of the gradient before it is limited, if it is."""
        if self.recipe.clip:
            norm: Tensor = self._accelerator.clip_grad_norm_(trained, self.recipe.clip)
            return norm
        # get_total_norm sorts them by device and number type, which takes longer than the norms of a small model.
        norms = [torch.linalg.vector_norm(one.grad) for one in trained if one.grad is not None]
        return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))

    def _rescaled(self) -> bool:
        """Scale the loss less after an overflow; False where that would not help."""
        before = self._scaler.get_scale()
        if self._scaler.is_enabled():
            self._scaler.update()
        return SMALLEST_SCALE < self._scaler.get_scale() < before

    def _accumulate(self, model: nn.Module, number: int, batches: list[Inputs]) -> float:
        """Add up the gradients of the mean loss over all answers of the batches, each process its part of them."""
        device = next(self.model.parameters()).device
        number_type = HALF.get(self.recipe.dtype)
        autocast = torch.autocast(device.type, number_type, enabled=number_type is not None)
        weights = [weight(inputs) for inputs in batches] if len(batches) > 1 else [1]
        processes = self._accelerator.num_processes
        mine = range(self._accelerator.process_index, len(batches), processes)
        shares: list[Tensor] = []
        for place in mine:
            seed_everything(self.recipe.seed, number, place)
            inputs = {name: tensor.to(device) for name, tensor in batches[place].items()}
            share = weights[place] / sum(weights)
            # Processes average their gradients, so each counts that many times more.
            factor = share * processes
            with nullcontext() if place == mine[-1] else self._accelerator.no_sync(model):
                with autocast:
                    loss = self.loss(model, inputs)
                # A small step is long enough that a product with 1 would be noticed.
                self._accelerator.backward(self._scaler.scale(loss.float() if factor == 1 else loss.float() * factor))
            shares.append(loss.detach().float() * share)
        if processes == 1:
            return float(sum(shares))
        total = torch.zeros((), device=device)  # a process may have no batch
        return float(self._accelerator.reduce(sum(shares, start=total), "sum"))

    def _resume(self) -> None:
        step = None if self._checkpoints is None else self._checkpoints.latest()
        if self._checkpoints is None or step is None:
            return
        known = self._checkpoints.load(step, self.model, self._optimizer)
        state: State = record.load(State, known, f"checkpoint of step {step}")
        self.done, self.pinned, self.skipped = state.done, state.pinned, state.skipped
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state.scaler)
        self._stream.epoch, self._stream.batch = state.epoch, state.batch
        if len(state.callbacks) != len(self.callbacks):
            raise ArtefactError(
                f"The checkpoint of step {step} is of a training with {len(state.callbacks)} callbacks, not "
                f"{len(self.callbacks)}; remove the run's folder to begin again."
            )
        for callback, saved in zip(self.callbacks, state.callbacks, strict=True):
            callback.load(saved)

    def _save(self) -> None:
        if self._checkpoints is not None and self.is_main:
            callbacks = [callback.state() for callback in self.callbacks]
            place = self._stream.epoch, self._stream.batch
            state = State(self.done, self.pinned, *place, callbacks, self.skipped, self._scaler.state_dict())
            keep = () if self.pinned is None else (self.pinned,)
            self._checkpoints.save(self.done, self.model, self._optimizer, record.dump(state), keep)
        self.wait()

    def _describe(self, number: int) -> str:
        loss = "" if self._last is None else f", loss {self._last.loss:.3f}"
        return f"training step {number}{loss}"


def seed_everything(*key: object) -> None:
    """Seed torch, numpy and Python from a key such as (seed, step, batch): near keys give unrelated numbers."""
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
    # Where there is no other device, torch.manual_seed takes longer to find that out than a small step of training.
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leave the random numbers outside of the context as if nothing had been drawn inside."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def frozen(model: nn.Module, patterns: Sequence[str]) -> Iterator[None]:
    """Keep the parameters that fit a pattern from being trained; afterwards all are as before."""
    _require_fits(model, patterns, "to freeze")
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for name, parameter in model.named_parameters():
        if any(matches(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    try:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ParameterError("Every parameter is frozen, so there is nothing to train; freeze fewer of them.")
        yield
    finally:
        for parameter, trained in before.items():
            parameter.requires_grad_(trained)


def groups(model: nn.Module, weight_decay: float, factors: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: matrices decay, vectors (biases and norms) do not; without decay they are one.

    Parameters
    ----------
    factors : what to multiply the learning rate with, by name or pattern; the first that fits counts. Each group has
        its own under ``factor``.
    """
    factors = factors or {}
    _require_fits(model, factors, "for a learning rate of its own")
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor = next((factor for pattern, factor in factors.items() if matches(name, pattern)), 1.0)
            found.setdefault((factor, parameter.ndim > 1 and weight_decay != 0), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if matrices else 0.0, "factor": factor}
        for (factor, matrices), parameters in sorted(found.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted parameter name fits: ``layer.1`` is in ``encoder.layer.1.bias``, not in ``layer.11.bias``."""
    return fnmatchcase(name, pattern) or f".{pattern}." in f".{name}."


def _require_fits(model: nn.Module, patterns: Iterable[str], purpose: str) -> None:
    """Refuse a pattern that no parameter fits."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise SelectionError(
                f"No parameter fits the pattern {pattern!r} {purpose}; the model's are called {names[0]} and so on."
            )
