"""SQuAD: mark the answer to a question in a paragraph (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError, ParameterError
from ..runs.result import Columns, Metric
from .base import Array, register
from .batching import Batch
from .encoding import IGNORED, Example, Row, chunks
from .hubdata import HubData
from .metrics import mean_of
from .squad_files import Question, questions_of_file, questions_of_hub, squad_file

_TARGETS = ("offsets", "start_positions", "end_positions")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# The mark of the token (usually [CLS]) whose logits speak for "no answer", in place of its characters.
NOTHING = -1


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
        """The best spans ``[B, n_best + 1, 3]`` of each window (:func:`attrim.tasks.squad.best_spans`)."""
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


def normalize(answer: str) -> str:
    """Lower case, without ASCII punctuation and articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 when both are the same after normalisation."""
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str) -> float:
    """F1 of the words that both have, counted with repetition; an empty answer only equals an empty one."""
    first, second = normalize(prediction).split(), normalize(answer).split()
    if not first or not second:
        return float(first == second)
    shared = (Counter(first) & Counter(second)).total()
    return 2 * shared / (len(first) + len(second))


def accepted(answers: Sequence[str]) -> list[str]:
    """The answers that normalisation leaves something of; the empty one when there is none (no answer is right)."""
    return [answer for answer in answers if normalize(answer)] or [""]


def best(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """The score against the accepted answer that fits best."""
    return max(score(prediction, answer) for answer in accepted(answers))


def windows(
    examples: Iterable[Example], tokenizer: Any, max_length: int, stride: int, max_question_length: int
) -> Iterator[Row]:
    """Question and paragraph as one row, or as several that share ``stride`` tokens of a long paragraph.

    Targets: ``offsets [L, 2]``, the characters of each paragraph token, and ``start_positions``, ``end_positions``: the
    tokens of the first answer, or the ones for "no answer" where the window does not hold all of it.

    Parameters
    ----------
    max_question_length : longer questions are cut to this many tokens.
    """
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} does not say which characters a token stands for; use a fast tokenizer."
        )
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if max_length - max_question_length - special <= stride:
        raise DataError(
            f"A window of {max_length} tokens has no room for {max_question_length} tokens of question, {special} "
            f"special tokens and a stride of {stride}; raise max_length or lower max_question_length and stride."
        )
    first = 0
    for chunk in chunks(examples):
        questions = [example.texts[0].strip() for example in chunk]
        encoded = tokenizer(
            _cut(questions, tokenizer, max_question_length),
            [example.texts[1] for example in chunk],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        origins, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        for number, origin in enumerate(origins):
            inputs = {name: column[number] for name, column in encoded.items()}
            characters = _characters(offsets[number], encoded.sequence_ids(number), inputs["input_ids"], tokenizer)
            if not any(end > start >= 0 for start, end in characters):
                raise DataError(f"The paragraph of question {first + origin} has no tokens; remove it from the data.")
            start, end = _positions(characters, chunk[origin].answers)
            place = first + origin
            targets = {"offsets": characters, "start_positions": start, "end_positions": end}
            yield Row(place, inputs, float(place), targets)
        first += len(chunk)


def best_spans(
    start: Tensor, end: Tensor, offsets: Tensor, n_best: int, max_answer_length: int, normalize: bool
) -> Tensor:
    """The best spans of each window: ``[B, n_best + 1, 3]``, first character, last + 1, and score.

    The score is the sum of both logits over all spans of at most ``max_answer_length`` tokens. The first entry is "no
    answer" (characters -1). Windows with fewer spans repeat their last one.

    Parameters
    ----------
    start, end : logits ``[B, L]``.
    offsets : int64 ``[B, L, 2]``, negative outside of the paragraph.
    normalize : softmax over the window's paragraph and "no answer" first, so that windows compare by probability.
    """
    # Some tokenizers have tokens that stand for no character of their own; an answer neither begins nor ends there.
    paragraph, nothing = offsets[..., 1] > offsets[..., 0].clamp(min=0), offsets[..., 0] == NOTHING
    lowest = torch.finfo(torch.float32).min / 4
    sides = []
    for logits in (start.float(), end.float()):
        if normalize:
            outside = offsets[..., 0] < NOTHING
            logits = logits.masked_fill(outside, float("-inf")).log_softmax(-1).masked_fill(outside, lowest)
        sides.append(logits)
    inside = [side.masked_fill(~paragraph, lowest) for side in sides]
    width = min(max_answer_length, offsets.shape[1])
    # ends[b, s, w] is the logit of a span's last token s + w; none lies beyond the window.
    ends = torch.nn.functional.pad(inside[1], (0, width - 1), value=lowest).unfold(1, width, 1)
    scores, found = (inside[0][..., None] + ends).flatten(1).topk(min(n_best, offsets.shape[1] * width))
    real = scores > lowest / 2
    last = (real.sum(1, keepdim=True) - 1).clamp(min=0)
    chosen = torch.arange(n_best, device=scores.device).expand(len(scores), -1).minimum(last)
    scores, found = scores.gather(1, chosen), found.gather(1, chosen)
    first_token, last_token = found // width, found // width + found % width
    spans = [offsets[..., 0].gather(1, first_token), offsets[..., 1].gather(1, last_token), scores]
    empty = torch.where(nothing, sides[0] + sides[1], lowest).amax(1)
    none = torch.stack([torch.full_like(empty, NOTHING), torch.full_like(empty, NOTHING), empty], dim=-1)
    return torch.cat([none[:, None], torch.stack([part.float() for part in spans], dim=-1)], dim=1)


def _cut(questions: Sequence[str], tokenizer: Any, longest: int) -> list[str]:
    """Questions of at most ``longest`` tokens, cut in the text so that they can be encoded in a pair."""
    encoded = tokenizer(
        list(questions), add_special_tokens=False, return_offsets_mapping=True, truncation=True, max_length=longest
    )
    return [
        question[: marks[-1][1]] if len(marks) == longest else question
        for question, marks in zip(questions, encoded["offset_mapping"], strict=True)
    ]


def _characters(
    offsets: Sequence[tuple[int, int]], sides: Sequence[int | None], tokens: Sequence[int], tokenizer: Any
) -> list[tuple[int, int]]:
    """The characters of each token of the paragraph; ``NOTHING`` at the one for "no answer", ``IGNORED`` elsewhere."""
    nothing = tokens.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in tokens else 0
    characters = [mark if side == 1 else (IGNORED, IGNORED) for mark, side in zip(offsets, sides, strict=True)]
    if sides[nothing] is None:
        characters[nothing] = (NOTHING, NOTHING)
    return characters


def _positions(characters: Sequence[tuple[int, int]], answers: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """The tokens of the first answer; the token for "no answer" (or the first one) where it is not all there."""
    nothing = next((place for place, mark in enumerate(characters) if mark[0] == NOTHING), 0)
    if not answers:
        return nothing, nothing
    text, begin = answers[0]
    finish = begin + len(text)
    held = [place for place, (start, end) in enumerate(characters) if start < finish and end > begin and start >= 0]
    if not held or characters[held[0]][0] > begin or characters[held[-1]][1] < finish:
        return nothing, nothing
    return held[0], held[-1]
