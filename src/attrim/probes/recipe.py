"""How the paper trains its probes, in one place. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ParameterError
from ..training.recipe import Recipe


@dataclass(kw_only=True)
class ProbeRecipe(Recipe):
    """How to train a probe; the defaults are those of PAPA (https://arxiv.org/abs/2211.03495)."""

    epochs: float = 15.0
    """Passes over the training data."""
    batch_size: int = 16
    """Examples a step."""
    learning_rate: float = 2e-5
    """Learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
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
