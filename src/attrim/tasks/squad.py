"""SQuAD: mark the answer to a question in a paragraph (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError, ParameterError
from ..intervals import Columns, Metric
from .base import Array, register
from .batching import Batch
from .hubdata import HubData
from .metrics import mean_of
from .rows import Example, Row
from .squaddata import Question, questions_of_file, questions_of_hub, squad_file
from .squadscore import best, exact_match, f1
from .squadspans import best_spans, windows

_TARGETS = ("offsets", "start_positions", "end_positions")


@register("squad")
@dataclass(kw_only=True)
class Squad(HubData):
    """Mark the answer to a question in a paragraph (SQuAD 1.1). Exact match and F1.

    The answer is the span with the highest score in any window of the paragraph. Columns, one value a question:
    ``exact_match``, ``f1``, ``score`` and the characters ``start``, ``end`` of the answer (-1 for "no answer").

    Parameters
    ----------
    data : a SQuAD JSON file, plain or ``.gz``, or a folder of them; None means the hub.
    split : ``train``, ``validation``, or any other file of the folder; a single file is read whatever the split.
    max_length : tokens in a window.
    stride : paragraph tokens that neighbouring windows share.
    max_question_length : longer questions are cut to this many tokens.
    max_answer_length : tokens in an answer.
    n_best : how many spans of each window to keep.
    normalize_windows : compare windows by probability (softmax within each) instead of by logits.
    whole_words : widen answers to whole words (as ``transformers`` 4 did) instead of the characters of the tokens.
    """

    max_length: int = 384
    stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    normalize_windows: bool = False
    whole_words: bool = False

    kind: ClassVar[str] = "question-answering"
    metrics: ClassVar[Mapping[str, Metric]] = {"exact-match": mean_of("exact_match"), "f1": mean_of("f1")}
    hub: ClassVar[tuple[str, str]] = ("rajpurkar/squad", "plain_text")
    version: ClassVar[str] = "1.1"
    may_be_empty: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("max_answer_length", "n_best", "max_question_length"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, not {getattr(self, name)}.")

    def read(self) -> Iterator[Question]:
        """Yield every question of the file or of the hub's split."""
        if self.data is None:
            questions = questions_of_hub(self.hub_rows(*self.hub, self.split))
        else:
            part = {"validation": "dev", "train": "train"}.get(self.split)
            questions = questions_of_file(
                squad_file(self.data, [f"{part}-v{self.version}.json" if part else f"{self.split}.json"])
            )
        for question in questions:
            if not question.answers and not self.may_be_empty:
                raise DataError(
                    f"The question {question.name!r} has no answer; use the task squad-v2 for data with such questions."
                )
            yield question

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a window."""
        return windows(examples, tokenizer, max_length, self.stride, self.max_question_length)

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The best spans ``[B, n_best + 1, 3]`` of each window (:func:`attrim.tasks.squadspans.best_spans`)."""
        output: Any = model(**{name: tensor for name, tensor in inputs.items() if name not in _TARGETS})
        if getattr(output, "start_logits", None) is None:
            raise DataError(f"{type(model).__name__} gives no start_logits; load the model as kind {self.kind!r}.")
        return best_spans(
            output.start_logits,
            output.end_logits,
            inputs["offsets"],
            self.n_best,
            self.max_answer_length,
            self.normalize_windows,
        )

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``start_positions [B]`` and ``end_positions [B]``."""
        return {name: batch.targets[name] for name in _TARGETS[1:]}

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Choose the best answer over the windows of each question, and compare it with the accepted ones."""
        rows = []
        for question, spans in self._grouped(outputs, labels):
            start, end, score = spans[0]
            text = self._text(question, spans[0])
            answers = [answer for answer, _ in question.answers]
            rows.append((best(exact_match, text, answers), best(f1, text, answers), score, start, end))
        table = np.array(rows, dtype=np.float64).T
        return dict(zip(("exact_match", "f1", "score", "start", "end"), table, strict=True))

    def hits(self, columns: Columns) -> NDArray[np.bool_]:
        """Questions with an exact match."""
        return np.asarray(columns["exact_match"]) == 1

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Per cent of questions with the same span."""
        pairs = zip(self._grouped(outputs, labels), self._grouped(unedited, labels), strict=True)
        same = [np.array_equal(after[0][:2], before[0][:2]) for (_, after), (_, before) in pairs]
        return {"agreement": 100.0 * float(np.mean(same))}

    def answers(self, outputs: Array, labels: Array) -> dict[str, str]:
        """Each question's id and answer, as the official evaluation script reads them."""
        return {question.name: self._text(question, spans[0]) for question, spans in self._grouped(outputs, labels)}

    def best_answers(self, outputs: Array, labels: Array) -> dict[str, list[dict[str, Any]]]:
        """Each question's id and its ``n_best`` answers over all windows, with score and probability among them."""
        table = {}
        for question, spans in self._grouped(outputs, labels):
            kept: dict[str, float] = {}
            for span in spans:
                kept.setdefault(self._text(question, span), float(span[2]))
            scores = np.array(list(kept.values())[: self.n_best])
            shares = np.exp(scores - scores.max())
            table[question.name] = [
                {"text": text, "score": float(score), "probability": float(share)}
                for text, score, share in zip(kept, scores, shares / shares.sum(), strict=False)
            ]
        return table

    def _grouped(self, outputs: Array, labels: Array) -> Iterator[tuple[Question, Array]]:
        """Each question with the spans ``[n, 3]`` of all its windows, best first."""
        questions = cast(Iterator[Question], self.examples())
        borders = np.flatnonzero(np.diff(labels)) + 1
        for question, group in zip(questions, np.split(outputs, borders), strict=True):
            spans = group[:, 1:].reshape(-1, 3)
            yield question, self._ordered(group, spans[np.argsort(-spans[:, 2], kind="stable")])

    def _ordered(self, group: Array, spans: Array) -> Array:
        """Candidates ``[n, 3]`` of a question; its outputs ``group [windows, n_best + 1, 3]`` have "no answer" too."""
        return spans

    def _text(self, question: Question, span: Array) -> str:
        start, end = int(span[0]), int(span[1])
        if start < 0:
            return ""
        context = question.texts[1]
        if self.whole_words:
            while start > 0 and not context[start - 1].isspace():
                start -= 1
            while end < len(context) and not context[end].isspace():
                end += 1
            return " ".join(context[start:end].split())
        return context[start:end].strip()


@register("squad-v2")
@dataclass(kw_only=True)
class SquadV2(Squad):
    """SQuAD 2.0, where some questions have no answer (https://arxiv.org/abs/1806.03822). Exact match and F1.

    Parameters
    ----------
    no_answer_threshold : say "no answer" when its score is higher than that of the best span by more than this.
    """

    no_answer_threshold: float = 0.0

    hub: ClassVar[tuple[str, str]] = ("rajpurkar/squad_v2", "squad_v2")
    version: ClassVar[str] = "2.0"
    may_be_empty: ClassVar[bool] = True

    def _ordered(self, group: Array, spans: Array) -> Array:
        """Put "no answer" before all spans or behind them."""
        # A window without the answer says so; the question has none only if every window does.
        nothing = group[group[:, 0, 2].argmin(), :1]
        first = nothing[0, 2] - spans[0, 2] > self.no_answer_threshold
        return np.concatenate([nothing, spans] if first else [spans, nothing])
