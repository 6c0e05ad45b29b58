"""What all tasks with questions about images share: regions for the model, soft answers, a loss and a metric.

Ten people answered each question. An answer's score is the mean over the ten ways to leave one person out of
``min(1, matches / 3)`` (Antol et al. 2015, https://arxiv.org/abs/1505.00468).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError
from ..runs.result import Columns, Metric
from .base import Array, Task
from .batching import Batch, in_dtype
from .encoding import Example, Row, chunks, encode_texts
from .metrics import Values, mean_of

ANNOTATORS = 10


@dataclass(frozen=True)
class Picture:
    """What there is to see and to read of an example.

    Attributes
    ----------
    image : uint8 ``[H, W, 3]``.
    boxes : float32 ``[R, 4]``, the corners x1, y1, x2, y2 of the regions in pixels.
    question : its text; empty for an image without a question.
    answers : what people answered, the most frequent first.
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    question: str
    answers: tuple[str, ...]


def soft_accuracy(matches: Array | int) -> NDArray[np.float64]:
    """The score of an answer that ``matches`` of the ten people gave: 0, 0.3, 0.6, 0.9, 1, 1 and so on."""
    number = np.asarray(matches, dtype=np.float64)
    left_out, others = np.minimum(1, (number - 1) / 3), np.minimum(1, number / 3)
    return (number * left_out + (ANNOTATORS - number) * others) / ANNOTATORS


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """The score of each different answer, the most frequent first; fewer than ten answers are repeated up to ten."""
    counts = Counter(islice(cycle(answers), ANNOTATORS))
    return {answer: float(soft_accuracy(number)) for answer, number in counts.most_common()}


def kind_mean(column: str, kind: int) -> Metric:
    """Return the mean of a column over the questions of one kind, in per cent; 0 where there are none."""

    def metric(columns: Columns) -> Values:
        own = columns["question_kind"] == kind
        number = np.sum(own, axis=-1)
        return 100.0 * np.sum(columns[column] * own, axis=-1) / np.maximum(number, 1)

    return metric


def visual_metrics(kinds: Sequence[str]) -> dict[str, Metric]:
    """Soft accuracy over all questions, and over those of each kind."""
    return {
        "soft-accuracy": mean_of("score"),
        **{kind: kind_mean("score", number) for number, kind in enumerate(kinds)},
    }


@dataclass(kw_only=True)
class VisualQuestions(Task):
    """Base of the tasks with questions about the regions of an image, for LXMERT and VisualBERT.

    An example's ``answers`` are the numbers of the right answers with their scores, ``((answer, score), ...)``, and the
    number of its kind of question; its ``arrays`` are ``visual_feats [R, F]``, ``visual_pos [R, 4]`` (corners from 0 to
    1) and ``relevant [R]`` (1 where the answer is to be seen). Batches have the targets ``scores [B, answers]`` and, if
    it is known, ``relevant [B, R]``.

    Columns: ``prediction``, ``score`` (the soft accuracy of the prediction), ``label`` (the best answer) and
    ``question_kind``.
    """

    batch_size: int = 64

    kind: ClassVar[str] = "visual-question-answering"
    kinds: ClassVar[tuple[str, ...]] = ()

    @property
    def answer_list(self) -> Sequence[str]:
        """The texts of the answers, in the order of the model's outputs."""
        raise NotImplementedError

    @property
    def num_labels(self) -> int:
        """One output an answer."""
        return len(self.answer_list)

    def picture(self, index: int) -> Picture:
        """What there is to see of the example with this number (``Batch.index``)."""
        raise NotImplementedError

    def example(self, index: int) -> Example:
        """The example with this number among the chosen ones (``Batch.index``)."""
        found = next(islice(self.examples(), index, None), None) if index >= 0 else None
        if found is None:
            raise DataError(f"The task {self.registered_name} has no example {index}; its first one is 0.")
        return found

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a question, with the regions of its image."""
        place = 0
        for chunk in chunks(examples):
            for row, example in zip(encode_texts(chunk, tokenizer, max_length), chunk, strict=True):
                regions = example.arrays["visual_feats"]
                inputs = {**row.inputs, "visual_feats": regions, "visual_pos": example.arrays["visual_pos"]}
                inputs["visual_attention_mask"] = np.ones(len(regions), dtype=np.int64)
                targets: dict[str, Array] = {"scores": self.scores(example)}
                if "relevant" in example.arrays:
                    targets["relevant"] = example.arrays["relevant"]
                yield Row(place + row.index, inputs, row.label, targets)
            place += len(chunk)

    def scores(self, example: Example) -> NDArray[np.float32]:
        """The score of every answer to a question, ``[answers]``."""
        scores = np.zeros(len(self.answer_list), dtype=np.float32)
        for number, score in example.answers[0]:
            scores[number] = score
        return scores

    def check(self, model: nn.Module) -> None:
        """Compare the model's outputs and the width of its regions with the task's."""
        config: Any = getattr(model, "config", None)
        lxmert = "visual_feats" in _taken(model)
        names = ("num_qa_labels", "visual_feat_dim") if lxmert else ("num_labels", "visual_embedding_dim")
        outputs, width = (getattr(config, name, None) for name in names)
        if outputs is not None and outputs != len(self.answer_list):
            raise DataError(
                f"{type(model).__name__} has {outputs} answers but {self.answer_source} has {len(self.answer_list)}; "
                "give the list that the model was trained with."
            )
        if width is not None and width != self.feature_width:
            raise DataError(
                f"{type(model).__name__} takes regions of {width} numbers but those of {self.feature_source} have "
                f"{self.feature_width}; use the features that the model was trained with."
            )

    @property
    def answer_source(self) -> str:
        """Where the answers come from, for errors."""
        return f"the task {self.registered_name}"

    @property
    def feature_source(self) -> str:
        """Where the regions come from, for errors."""
        return f"the task {self.registered_name}"

    @property
    def feature_width(self) -> int:
        """How many numbers describe a region."""
        raise NotImplementedError

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """The regions under the names of the model; VisualBERT takes no boxes, and regions are of segment 0.

        ``transformers`` has 1 for the segment of regions by default, but the published models were trained with 0.
        """
        inputs = in_dtype(inputs, model, ("visual_feats", "visual_pos", "visual_embeds"))
        if "visual_feats" not in inputs or "visual_feats" in _taken(model):
            return inputs
        renamed = {name: tensor for name, tensor in inputs.items() if name not in ("visual_feats", "visual_pos")}
        segments = torch.zeros_like(inputs["visual_attention_mask"])
        return {**renamed, "visual_embeds": inputs["visual_feats"], "visual_token_type_ids": segments}

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Logits ``[B, answers]``."""
        return self.logits(model, self.arguments(inputs, model)).float()

    def logits(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Logits ``[B, answers]`` from arguments of the model, without their targets.

        VisualBERT would give log-probabilities if it were given labels.
        """
        targets = ("labels", "scores", "relevant")
        output: Any = model(**{name: tensor for name, tensor in inputs.items() if name not in targets})
        logits: Tensor | None = getattr(output, "question_answering_score", getattr(output, "logits", None))
        if logits is None:
            raise DataError(f"{type(model).__name__} gives no answers; load the model as kind {self.kind!r}.")
        return logits

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B, answers]``: the score of every answer."""
        return {"labels": batch.targets["scores"]}

    def loss(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Binary cross-entropy with the scores, summed over the answers."""
        labels = inputs["labels"]
        logits = self.logits(model, inputs).float()
        return nn.functional.binary_cross_entropy_with_logits(logits, labels) * labels.shape[1]

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """The answers of the model and what they are worth."""
        prediction = self.predictions(outputs)
        scores = np.zeros(len(prediction), dtype=np.float64)
        kinds = np.zeros(len(prediction), dtype=np.int64)
        for place, example in zip(range(len(prediction)), self.examples(), strict=True):
            scores[place] = dict(example.answers[0]).get(int(prediction[place]), 0.0)
            kinds[place] = example.answers[1]
        best = np.where(np.isnan(labels), -1, labels).astype(np.int64)
        return {"prediction": prediction, "score": scores, "label": best, "question_kind": kinds}

    def predictions(self, outputs: Array) -> NDArray[np.int64]:
        """The number of the model's answer to every question, ``[N]``."""
        return outputs.argmax(1).astype(np.int64)

    def hits(self, columns: Columns) -> NDArray[np.bool_] | None:
        """Questions with the best answer."""
        return columns["prediction"] == columns["label"]

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Per cent of equal answers."""
        return {"agreement": 100.0 * float(np.mean(self.predictions(outputs) == self.predictions(unedited)))}


def _taken(model: nn.Module) -> Mapping[str, Any]:
    """The arguments that a model takes; one that takes no regions is refused."""
    taken = inspect.signature(model.forward).parameters
    if "visual_feats" not in taken and "visual_embeds" not in taken:
        raise DataError(
            f"{type(model).__name__} takes no image regions; choose a model such as LXMERT or VisualBERT with a head "
            "for question answering."
        )
    return taken
