"""What all tasks with a classification or regression head share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError
from ..runs.result import Columns, Metric
from .base import Array, Task
from .batching import Batch
from .metrics import accuracy, of_labels


def label_order(model_labels: Mapping[int, str], labels: tuple[str, ...], model: str) -> list[int]:
    """Return for each label of the task the class number of the model, matched by name where names tell.

    Parameters
    ----------
    model_labels : ``config.id2label``; names such as ``LABEL_0`` say nothing and mean the task's own order.
    """
    named = [str(model_labels[number]) for number in sorted(model_labels)]
    if len(named) != len(labels):
        raise DataError(
            f"{model} has {len(named)} labels ({', '.join(named[:5])}) but the task has {len(labels)} "
            f"({', '.join(labels)}); choose a model that was trained for this task."
        )
    if all(re.fullmatch(r"LABEL_\d+|\d+", name) for name in named):
        return list(range(len(labels)))
    if sorted(named) == sorted(labels):
        return [named.index(label) for label in labels]
    tidy = [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in named]
    if sorted(tidy) != sorted(labels):
        raise DataError(
            f"The labels of {model} ({', '.join(named)}) are not those of the task ({', '.join(labels)}); "
            "rename them in the model's config (id2label) or give label_order."
        )
    return [tidy.index(label) for label in labels]


@dataclass(kw_only=True)
class Classify(Task):
    """A task with one label an example. Columns: ``prediction [N]`` and ``label [N]``.

    Parameters
    ----------
    label_order : the model's class number for each label of the task, when names in the model's config do not tell.
    """

    label_order: tuple[int, ...] | None = None

    kind: ClassVar[str] = "sequence-classification"
    labels: ClassVar[tuple[str, ...]] = ()  # none means regression
    metrics: ClassVar[Mapping[str, Metric]] = {"accuracy": of_labels(accuracy)}

    @property
    def num_labels(self) -> int:
        """Outputs that the model's head has: one a label, or one for regression."""
        return len(self.labels) or 1

    def check(self, model: nn.Module) -> None:
        """Compare the model's labels with the task's."""
        self._order(model)

    def answer_names(self, model: nn.Module) -> Sequence[str] | None:
        """The labels in the order of the model's outputs; none for a regression."""
        if not self.labels:
            return None
        order = self._order(model)
        return [self.labels[order.index(number)] for number in range(len(order))]

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Logits ``[B, labels]`` in the task's order of labels."""
        logits: Tensor | None = getattr(model(**inputs), "logits", None)
        if logits is None or logits.ndim != 2:
            what = "no logits" if logits is None else "no logits of whole texts"
            raise DataError(f"{type(model).__name__} gives {what}; load the model as kind {self.kind!r}.")
        return logits.float()[:, self._order(model)]

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B]``: class numbers as the model counts them, or scores for regression."""
        if np.isnan(batch.labels).any():
            raise DataError(f"Some examples of {self.registered_name} have no label; choose another split to train on.")
        if not self.labels:
            return {"labels": torch.tensor(batch.labels, dtype=torch.float32)}
        return {"labels": torch.tensor(self._order(model))[torch.tensor(batch.labels, dtype=torch.long)]}

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Class numbers (or the score itself) next to the labels."""
        if np.isnan(labels).any():
            raise DataError(
                f"{int(np.isnan(labels).sum())} of the {len(labels)} examples of {self.registered_name} have no label; "
                "choose another split (validation) to evaluate."
            )
        if not self.labels:
            return {"prediction": outputs[:, 0].astype(np.float64), "label": labels}
        return {"prediction": outputs.argmax(1), "label": labels.astype(np.int64)}

    def hits(self, columns: Columns) -> NDArray[np.bool_] | None:
        """Examples with the right class."""
        return columns["prediction"] == columns["label"] if self.labels else None

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """How far the answers moved: per cent of equal answers, and the mean distance between probabilities."""
        if not self.labels:
            return {"shift": float(np.abs(outputs - unedited).mean())}
        same = 100.0 * float(np.mean(outputs.argmax(1) == unedited.argmax(1)))
        after, before = (torch.from_numpy(side).softmax(1) for side in (outputs, unedited))
        return {"agreement": same, "shift": float((after - before).abs().sum(1).mean() / 2)}

    def _order(self, model: nn.Module) -> list[int]:
        config: Any = model.config
        if not self.labels:
            if config.num_labels != 1:
                raise DataError(
                    f"{type(model).__name__} has {config.num_labels} labels but the task {self.registered_name} is a "
                    "regression with one output; choose a model that was trained for it."
                )
            return [0]
        if self.label_order is None:
            return label_order(config.id2label, self.labels, type(model).__name__)
        if sorted(self.label_order) != list(range(len(self.labels))) or config.num_labels != len(self.labels):
            raise DataError(f"label_order must name each of the model's {config.num_labels} classes once.")
        return list(self.label_order)
