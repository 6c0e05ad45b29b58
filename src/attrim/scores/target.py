"""What of a model's answer is explained: one number for each example, a logit or a loss.

A model that answers once for an example (classification) is explained by one logit. One that answers at many places
(tokens, the next word, start and end of an answer) is explained by the mean over the places that count, so that the
number neither grows with the length of a text nor depends on the other texts of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import DataError, ParameterError
from ..measurement import LABELS
from ..tasks.base import Task
from .base import Target

IGNORED = -100
"""The label of tokens that do not count, as ``transformers`` writes it."""


class Places(NamedTuple):
    """Where a model answers.

    Attributes
    ----------
    logits : ``[B, P, C]``, at P places one number for each of C answers.
    labels : int64 ``[B, P]``, or None where they are not known.
    counted : bool ``[B, P]``, the places that count.
    """

    logits: Tensor
    labels: Tensor | None
    counted: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """The mean ``[B]`` of values ``[B, P]`` over the places that count; 0 where none does."""
        return values.where(self.counted, 0).sum(1) / self.number()

    def number(self) -> Tensor:
        """How many places count in each example, ``[B]``, at least 1."""
        return self.counted.sum(1).clamp(min=1)


def unlabelled(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch without labels, which some models answer differently with (VisualBERT: log-probabilities)."""
    return {name: value for name, value in batch.items() if name not in LABELS}


def places_of(model: nn.Module, output: Any, batch: Mapping[str, Tensor]) -> Places:
    """Where a model answers, from its output and the batch, with or without labels, that it was given."""
    if getattr(output, "start_logits", None) is not None:
        return _span(output, batch)
    logits = getattr(output, "logits", None)
    if logits is None:
        logits = getattr(output, "question_answering_score", None)
    if not isinstance(logits, Tensor) or logits.ndim not in (2, 3):
        raise DataError(
            f"{type(model).__name__} gives no logits that could be explained; load the model with the head of its task "
            "(its kind, such as causal-lm)."
        )
    labels = batch.get("labels")
    if logits.ndim == 2:
        if labels is not None and labels.ndim == 2:  # soft labels
            labels = labels.argmax(1)
        known = None if labels is None or (labels.is_floating_point() and logits.shape[1] > 1) else labels
        if logits.shape[1] == 1:  # a regression has one output, whatever its label is
            known = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        counted = torch.ones(len(logits), 1, dtype=torch.bool, device=logits.device)
        return Places(logits[:, None], None if known is None else known.long()[:, None], counted)
    return _tokens(logits, labels, batch, next_token=is_causal(model))


def explained(places: Places, target: Target | None) -> Tensor:
    """The numbers ``[B]`` that are explained: the mean logit of the chosen answers."""
    return logits_of(places, answers_of(places, target))


def answers_of(places: Places, target: Target | None) -> Tensor:
    """The number ``[B, P]`` of the answer that is explained at every place."""
    logits = places.logits
    if target == "predicted" or target is None:
        return logits.argmax(-1)
    if target == "label":
        if places.labels is None:
            raise DataError("target='label' needs labels that number the answers; give batches with them.")
        return places.labels.clamp(min=0)
    if not 0 <= int(target) < logits.shape[-1]:
        raise ParameterError(f"target={target} is not an answer: the model has {logits.shape[-1]}, numbered from 0.")
    return torch.full(logits.shape[:2], int(target), device=logits.device)


def logits_of(places: Places, answers: Tensor) -> Tensor:
    """The mean logit ``[B]`` of the answers ``[B, P]`` over the places that count."""
    return places.mean(places.logits.gather(-1, answers[..., None])[..., 0])


def example_losses(
    model: nn.Module, batch: Mapping[str, Tensor], score: str, task: Task | None = None
) -> tuple[Tensor, Tensor]:
    """Run a model on a batch with labels, and give :func:`losses`; by the task's own loss, where it has one."""
    if task is not None and type(task).loss is not Task.loss:
        examples = len(next(iter(batch.values())))
        loss = task.loss(model, dict(batch))  # the mean over the examples
        return loss * examples, torch.ones(examples, dtype=torch.long, device=loss.device)
    return losses(model, model(**batch), batch, score)


def losses(model: nn.Module, output: Any, batch: Mapping[str, Tensor], score: str) -> tuple[Tensor, Tensor]:
    """The examples' own losses, as one sum, and the number of places ``[B]`` that each is a mean over.

    Parameters
    ----------
    output : of the model, run with the labels of the batch.
    score : its name, for the error where there is no loss.
    """
    loss = getattr(output, "loss", None)
    if loss is None:
        raise DataError(
            f"{type(model).__name__} gave no loss; the score {score!r} needs a model with a trained head and batches "
            "with labels, as task.train_batches gives them."
        )
    logits, labels = getattr(output, "logits", None), batch.get("labels")
    if isinstance(logits, Tensor) and logits.ndim == 3 and labels is not None and labels.ndim == 2:
        # The model's own loss is a mean over all tokens of the batch, where long texts weigh more.
        places = places_of(model, output, batch)
        assert places.labels is not None
        answers = places.labels.where(places.counted, IGNORED)
        each = nn.functional.cross_entropy(
            places.logits.transpose(1, 2), answers, ignore_index=IGNORED, reduction="none"
        )
        return places.mean(each).sum(), places.number()
    # A mean over the examples of the batch; times their number it is the sum of their own losses.
    examples = len(next(iter(batch.values())))
    return loss * examples, torch.ones(examples, dtype=torch.long, device=loss.device)


def is_causal(model: nn.Module) -> bool:
    """Whether a model answers with the next token."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return not {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}.isdisjoint(cls.__name__ for cls in type(model).__mro__)


def _span(output: Any, batch: Mapping[str, Tensor]) -> Places:
    """Start and end as two places, with the tokens as answers; padding cannot be one."""
    logits = torch.stack([output.start_logits, output.end_logits], dim=1)
    mask = batch.get("attention_mask")
    if mask is not None and mask.shape == output.start_logits.shape:
        logits = logits.masked_fill(mask[:, None] == 0, torch.finfo(logits.dtype).min)
    known = [batch[name] for name in ("start_positions", "end_positions") if name in batch]
    labels = torch.stack(known, dim=1) if len(known) == 2 else None
    return Places(logits, labels, torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device))


def _tokens(logits: Tensor, labels: Tensor | None, batch: Mapping[str, Tensor], next_token: bool) -> Places:
    """Every token as a place; of a causal model those that have a next token, which is the label."""
    mask = batch.get("attention_mask")
    real = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if mask is not None and mask.shape == real.shape:
        real = mask.bool()
    if next_token and labels is None:
        labels = batch["input_ids"].masked_fill(~real, IGNORED)
    if labels is not None and labels.shape != real.shape:
        raise DataError(
            f"The labels have the shape {list(labels.shape)} but the tokens {list(real.shape)}; give one each."
        )
    counted = real if labels is None else labels != IGNORED
    if next_token:
        assert labels is not None
        return Places(logits[:, :-1], labels[:, 1:], counted[:, 1:] & real[:, :-1])
    return Places(logits, labels, counted)
