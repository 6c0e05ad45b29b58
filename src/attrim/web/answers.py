"""What a model answers to one input, as JSON values that a page can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..maps.readout import Explained, answered
from ..maps.shown import Reader
from ..scores.target import is_causal

CANDIDATES = 12
"""Answers that are listed, the most probable first."""
LONGEST_SPAN = 60
"""Tokens that an answer in a text may have."""


class Reply(NamedTuple):
    """The answer to one input.

    Attributes
    ----------
    shown : JSON values. ``kind`` says what there is: ``labels`` and ``words`` have ``candidates`` with their
        probabilities (words at the place ``at``), ``tags`` and ``words`` have ``places``, the best answer at every
        token, ``span`` has the probability of every token as start and end, ``number`` a value, and ``embedding``, of
        a model without a head, the mean of its last hidden states.
    numbers : float64 ``[N]``, to compare two answers by: the probability of each candidate, the value or the mean.
    """

    shown: dict[str, Any]
    numbers: Tensor


def read_answer(model: nn.Module, output: Any, batch: Mapping[str, Tensor], reader: Reader) -> Reply:
    """The answer to the one example of a batch."""
    if _embeds(output):
        vector = _embedding(output, batch)
        return Reply({"kind": "embedding", "vector": vector.tolist()}, vector)
    found = answered(model, output, batch, Explained())
    logits = found.places.logits[0].double().cpu()
    if found.kind == "number":
        return Reply({"kind": "number", "value": float(logits.flatten()[0])}, logits.flatten()[:1])
    if found.kind == "span":
        return _span(logits, batch, reader)
    if logits.shape[0] == 1:
        return Reply(
            {"kind": "labels", "candidates": _candidates(logits[0], reader, words=False)}, logits[0].softmax(-1)
        )
    words = found.kind == "word"
    counted = torch.nonzero(found.places.counted[0])[:, 0].tolist()
    at = _focus(model, batch, reader, counted)
    best = logits.softmax(-1).max(-1)
    name = reader.word if words else reader.named
    places = [
        {"at": place, "id": int(number), "text": name(int(number)), "probability": float(chance)}
        for place, (chance, number) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True))
    ]
    shown = {
        "kind": "words" if words else "tags",
        "at": at,
        "places": places,
        "candidates": _candidates(logits[at], reader, words),
    }
    return Reply(shown, logits[at].softmax(-1))


def compare_answers(edited: Reply, unedited: Reply) -> dict[str, Any]:
    """How far two answers to the same input are apart, as JSON values.

    Returns
    -------
    ``measure`` and ``value``: the cosine of two embeddings, the difference of two numbers, or the probability that is
    left of the answer that was the best one (``before``), and whether that still is the best one (``same``).
    """
    if edited.shown["kind"] == "embedding":
        cosine = float(nn.functional.cosine_similarity(edited.numbers, unedited.numbers, dim=0))
        return {"measure": "cosine", "value": cosine}
    if edited.shown["kind"] == "number":
        return {"measure": "difference", "value": float(edited.numbers[0] - unedited.numbers[0])}
    best = int(unedited.numbers.argmax())
    return {
        "measure": "probability",
        "same": int(edited.numbers.argmax()) == best,
        "before": float(unedited.numbers[best]),
        "value": float(edited.numbers[best]),
    }


def _embeds(output: Any) -> bool:
    heads = ("logits", "start_logits", "question_answering_score", "logits_per_image")
    return all(getattr(output, name, None) is None for name in heads)


def _embedding(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean ``[D]`` of the last hidden states of the real tokens."""
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:
        hidden = output[0]
    mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
    real = hidden.new_ones(hidden.shape[:2]) if mask is None or mask.shape != hidden.shape[:2] else mask
    weights = real[0].double() / real[0].sum().clamp(min=1)
    return (hidden[0].double() * weights[:, None]).sum(0).cpu()


def _focus(model: nn.Module, batch: Mapping[str, Tensor], reader: Reader, counted: list[int]) -> int:
    """The place whose answers are listed: the last one that writes on, or the first that is masked."""
    last = counted[-1] if counted else 0
    mask = getattr(reader.tokenizer, "mask_token_id", None)
    if is_causal(model) or mask is None or "input_ids" not in batch:
        return last
    masked = torch.nonzero(batch["input_ids"][0] == mask)[:, 0].tolist()
    return int(masked[0]) if masked else last


def _candidates(logits: Tensor, reader: Reader, words: bool) -> list[dict[str, Any]]:
    """The most probable answers of logits ``[C]``."""
    chances = logits.softmax(-1)
    top = chances.topk(min(CANDIDATES, len(chances)))
    name = reader.word if words else reader.named
    return [
        {"id": number, "text": name(number), "probability": chance, "logit": float(logits[number])}
        for chance, number in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]


def _span(logits: Tensor, batch: Mapping[str, Tensor], reader: Reader) -> Reply:
    """The most probable spans of start and end logits ``[2, L]``."""
    start, end = logits.softmax(-1)
    joint = (start[:, None] * end[None, :]).triu().tril(LONGEST_SPAN - 1)
    top = joint.flatten().topk(min(CANDIDATES, joint.numel()))
    found = []
    for chance, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        first, last = divmod(place, len(start))
        text = reader.decoded(batch["input_ids"][0, first : last + 1].tolist())
        found.append({"start": first, "end": last, "text": text, "probability": chance})
    shown = {"kind": "span", "candidates": found, "starts": start.tolist(), "ends": end.tolist()}
    return Reply(shown, joint.flatten())
