"""Between paragraphs and spans: windows of tokens with their characters, and the best spans in a model's logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .rows import IGNORED, Example, Row, chunks

# The mark of the token (usually [CLS]) whose logits speak for "no answer", in place of its characters.
NOTHING = -1


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
