"""The options of training, for models and for probes: one dataclass for Python, YAML and flags. It imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tyro.conf import UseAppendAction

from ..errors import ParameterError

LATER = ("betas", "label_smoothing")
"""Fields that older runs do not have: their configurations stay the same while these have their defaults."""
Schedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]
"""How the learning rate goes on after the warm-up."""
_BETAS = ("first beta", "second beta")
TIMESCALE = 10_000
"""Steps of the inverse square root without a warm-up, as in ``transformers``."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train, apart from the model, the data and the loss."""

    epochs: float = 3.0
    """Passes over the training data; the last step may begin another one."""
    steps: int | None = None
    """Steps of the optimiser, instead of epochs."""
    accumulation: int = 1
    """Batches a step; their gradients are added up as if they were one batch."""
    learning_rate: float = 5e-5
    """Highest learning rate of AdamW."""
    own_rate: UseAppendAction[tuple[str, ...]] = ()
    """Another highest learning rate for some parameters, as name=rate with a name or pattern as in freeze
    (the first that fits counts)."""
    schedule: Schedule = "linear"
    """How the learning rate falls after the warm-up; inverse-sqrt: with the square root of the steps, at any length."""
    warmup: float = 0.0
    """Steps over which the learning rate rises from 0; a number below 1 is a share of all steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """How much AdamW remembers of the mean gradient and of its square; translation uses 0.9 0.98."""
    weight_decay: float = 0.01
    """Decay of the weights that are matrices; biases and norms do not decay."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not limit it."""
    freeze: UseAppendAction[tuple[str, ...]] = ()
    """Leave parameters as they are: part of their dotted name (embeddings), or a pattern with *."""
    label_smoothing: float = 0.0
    """Share of the right answer that goes to all answers alike (Szegedy et al. 2016); translation uses 0.1."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the computation; the weights are trained in float32. float16 scales the loss, and leaves out steps
    that overflow."""
    seed: int = 123
    """Fixes the order of the data and dropout."""
    checkpoint_every: int = 100
    """Steps between checkpoints; a run that was killed resumes from the last one."""

    def check(self) -> None:
        """Raise an error for a value that cannot be meant."""
        positive = {
            "epochs": self.epochs,
            "steps": 1 if self.steps is None else self.steps,
            "accumulation": self.accumulation,
            "learning rate": self.learning_rate,
            "checkpoint interval": self.checkpoint_every,
        }
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise ParameterError(f"The {name} must be a number above 0, not {value}.")
        for name, value in self.own_rates().items():
            if not 0 < value < math.inf:
                raise ParameterError(f"The learning rate of {name!r} must be a number above 0, not {value}.")
        for name, value in {"warm-up": self.warmup, "weight decay": self.weight_decay, "clip": self.clip}.items():
            if not 0 <= value < math.inf:
                raise ParameterError(f"The {name} must be 0 or more, not {value}.")
        if len(self.betas) != len(_BETAS):
            raise ParameterError(f"betas are {len(_BETAS)} numbers, not {len(self.betas)}.")
        for name, value in {
            "label smoothing": self.label_smoothing,
            **dict(zip(_BETAS, self.betas, strict=True)),
        }.items():
            if not 0 <= value < 1:
                raise ParameterError(f"The {name} must lie between 0 and 1 (not included), not {value}.")
        for name, chosen, known in (
            ("schedule", self.schedule, get_args(Schedule)),
            ("number type of training", self.dtype, ("float32", "bfloat16", "float16")),
        ):
            if chosen not in known:
                raise ParameterError(f"The {name} must be one of {', '.join(known)}, not {chosen!r}.")

    def described(self) -> dict[str, Any]:
        """The fields that results depend on, for the configuration of a run."""
        defaults = {item.name: item.default for item in fields(type(self))}
        return {
            name: value
            for name, value in ((name, getattr(self, name)) for name in defaults)
            if name != "checkpoint_every" and (name not in LATER or value != defaults[name])
        }

    def own_rates(self) -> dict[str, float]:
        """The highest learning rates of :attr:`own_rate`, by name or pattern."""
        rates: dict[str, float] = {}
        for entry in self.own_rate:
            name, _, value = entry.rpartition("=")
            try:
                rates.setdefault(name, float(value))
            except ValueError:
                name = ""
            if not name:
                raise ParameterError(f"A learning rate of its own is given as name=rate, not {entry!r}.")
        return rates

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step (from 0), as ``transformers.get_scheduler`` has it.

        Parameters
        ----------
        steps : how many there are in all.
        """
        warmup = math.ceil(self.warmup * steps) if self.warmup < 1 else round(self.warmup)
        if step < warmup:
            return self.learning_rate * step / warmup
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "inverse-sqrt":
            scale = warmup or TIMESCALE
            return self.learning_rate * math.sqrt(scale / (step + scale - warmup))
        done = (step - warmup) / max(1, steps - warmup)
        return self.learning_rate * (1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True, kw_only=True)
class ProbeRecipe(Recipe):
    """How to train a probe; the defaults are those of PAPA (https://arxiv.org/abs/2211.03495)."""

    epochs: float = 15.0
    """Passes over the training data."""
    batch_size: int = 16
    """Examples a step."""
    learning_rate: float = 2e-5
    """Learning rate of AdamW."""
    schedule: Schedule = "constant"
    """How the learning rate falls after the warm-up."""
    weight_decay: float = 0.0
    """Decay of the weights that are matrices."""
    seed: int = 42
    """Fixes the probe's first weights, the order of the data and dropout."""

    def check(self) -> None:
        """Raise an error for a value that cannot be meant."""
        super().check()
        if self.batch_size < 1:
            raise ParameterError(f"The batch size must be at least 1, not {self.batch_size}.")
        if self.label_smoothing:
            raise ParameterError("Probes have losses of their own, without label smoothing; leave it out.")
