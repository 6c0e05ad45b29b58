"""What is done to attention while a network trains, to see what it comes from: even at first, or pulled somewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ...attention.context import edit
from ...core import record
from ...edits.uniform import Uniform
from ...models.recurrent import RecurrentClassifier, hidden_states
from ...runs.files import storage
from ...scores.taps import WeightTap
from ...tasks.base import head_loss
from ...training.callbacks import Callback
from ...training.data import Inputs, Step
from .probes import IGNORED, key_mask
from .proxies import Bag

if TYPE_CHECKING:
    from ...training.loop import Loop

Reference = Callable[[Inputs], Tensor]
"""Where attention should be in a batch: weights ``[B, Q, K]``, or what broadcasts to them."""
TAUGHT_SEED = 1_000_003
"""What is taught before a training is drawn with a seed that is larger by this."""


class SteeredLoss(Callback):
    """The loss of a step, with attention that is even at first, or that is pulled to a reference.

    Parameters
    ----------
    uniform_steps : attention is even for so many first steps.
    supervise : weight of a penalty: the summed distance of attention from the reference, mean over predictions.
    """

    def __init__(
        self, model: nn.Module, uniform_steps: int = 0, supervise: float = 0.0, reference: Reference | None = None
    ) -> None:
        self.model, self.uniform_steps = model, uniform_steps
        self.supervise, self.reference = supervise, reference
        self.done = 0

    def after_step(self, step: Step, loop: Loop) -> None:
        """See :meth:`Callback.after_step`."""
        self.done = step.number

    def state(self) -> dict[str, Any]:
        """How many steps are done."""
        return {"done": self.done}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.done = record.load(int, state.get("done"), "steps of a checkpoint")

    def __call__(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The loss of a batch."""
        if self.done < self.uniform_steps:
            with edit(self.model, Uniform()):
                return head_loss(model, inputs)
        if not self.supervise or self.reference is None:
            return head_loss(model, inputs)
        tap = WeightTap()
        with edit(self.model, tap):
            loss = head_loss(model, inputs)
        (weights,) = tap.tensors.values()
        distance = (weights[:, 0] - self.reference(inputs)).abs().sum(-1)
        labels = inputs["labels"]
        return loss + self.supervise * distance[(labels if labels.ndim == 2 else labels[:, None]) != IGNORED].mean()


class WordReference:
    """All attention on the word that argues most for the gold label, by a number for each word ``[V]``."""

    def __init__(self, words: Tensor) -> None:
        self.words = words

    def __call__(self, inputs: Inputs) -> Tensor:
        """The weights ``[B, 1, K]`` of a batch."""
        scores = self.words.to(inputs["labels"].device)[inputs["input_ids"]]
        return _on_the_highest((scores * (2 * inputs["labels"] - 1)[:, None])[:, None], inputs)


class PairReference:
    """All attention of a target token on the source word that it translates most likely, by a bag of words."""

    def __init__(self, bag: Bag) -> None:
        with torch.no_grad():
            self.embedding, self.output = bag.embedding.weight.clone(), bag.output.weight.clone()
            parts = self.embedding.split(256)  # a row of logits has the size of the vocabulary
            self.totals = torch.cat([(part @ self.output.T).logsumexp(-1) for part in parts])

    def __call__(self, inputs: Inputs) -> Tensor:
        """The weights ``[B, T, S]`` of a batch."""
        source, labels = inputs["input_ids"], inputs["labels"].clamp(min=0)
        device = source.device
        scores = self.output.to(device)[labels] @ self.embedding.to(device)[source].transpose(1, 2)
        return _on_the_highest(scores - self.totals.to(device)[source][:, None], inputs)


def _on_the_highest(scores: Tensor, inputs: Inputs) -> Tensor:
    """Weights ``[B, Q, K]`` that are 1 at the highest score of a real key, else 0."""
    chosen = scores.masked_fill(~key_mask(inputs)[:, None], -torch.inf).argmax(-1)
    return nn.functional.one_hot(chosen, scores.shape[-1]).to(torch.float32)


def load_proxies(path: Path) -> dict[str, Tensor]:
    """The proxies that :func:`attrim.studies.dynamics.text_runs.fit_proxies` left in a file."""
    with storage(path.parent):
        return load_file(path)


def reference_of(path: Path, pairs: bool) -> Reference:
    """Where the embedding proxy in a file would look."""
    tensors = load_proxies(path)
    return PairReference(Bag.of(tensors)) if pairs else WordReference(tensors["px"])


class ProxyLoss:
    """How far beta of a classifier is from the numbers of single words ``[V]``: the mean square over positions.

    Trained with it, a network begins with the knowledge of a bag of words. Attention has no part in it.
    """

    def __init__(self, words: Tensor) -> None:
        self.words = words.float()

    def __call__(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The loss of a batch."""
        assert isinstance(model, RecurrentClassifier)
        mask = key_mask(inputs)
        hidden = hidden_states(model.encoder, model.embedding(inputs["input_ids"]), mask)
        wrong = model.position_logits(hidden, mask)[..., 0] - self.words.to(hidden.device)[inputs["input_ids"]]
        return wrong[mask].square().mean()
