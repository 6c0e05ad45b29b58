"""Where a model's answer is read from: which rows of relevance explain it, and what the tokens of a sequence are.

What cannot be seen by running a model is in one table, :data:`TABLE`: which token the head of an architecture reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import DataError, ParameterError, SiteError
from ..scores.base import Target
from ..scores.target import IGNORED, Places, answers_of, is_causal, logits_of, places_of

Row = Literal["", "first", "last", "before-last", "end-of-text", "mean", "mean-after-first"] | int
"""The token that a head reads: the first one, the last one, the one before the last (of the text, where regions follow
it), the one that marks the end of a text, the mean of all, the mean of all but the first, or the one of this number.
Empty: as the table says."""
Where = Literal["", "last", "all"] | int
"""Of a model that answers at every token: explain the answer at the last one, the mean of all, or the one of this
number. Empty: the last one where the answer is the next token, otherwise all."""


Texts = Literal["", "pairs", "answers"]
"""Of a model that compares images with texts: each text belongs to one image, or all are answers to every image, whose
tower alone is explained then. Empty: pairs where there are as many of both."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Which answer of a model is explained.

    Parameters
    ----------
    target : the answer that the model predicts, that of the label, or the one of this number.
    row : the token that the model's head reads, where it answers once (:data:`Row`).
    where : the token whose answer is explained, where it answers at every token (:data:`Where`).
    texts : what the texts of a model that compares them with images are (:data:`Texts`).
    """

    target: Target = "predicted"
    row: Row = ""
    where: Where = ""
    texts: Texts = ""


@dataclass(frozen=True)
class Reading:
    """What the head of an architecture reads.

    Attributes
    ----------
    stream : the sequence whose token is read; empty where there is only one.
    row : the token, where the head answers once; a head that answers at every token is read there.
    pooling : name of the configuration's field that says it instead, ``cls`` or ``mean``.
    others : tokens that are read in other sequences.
    """

    row: Row = "first"
    stream: str = ""
    pooling: str = ""
    others: Mapping[str, Row] = field(default_factory=dict)


FIRST, LAST = Reading("first"), Reading("last")
DECODER = Reading("last", "decoder")
TABLE: dict[str, Reading] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "deberta", "deberta-v2",
         "mpnet", "ernie", "roformer", "xlm-roberta-xl", "data2vec-text", "vit", "deit", "vit_msn", "vit_hybrid"),
        FIRST,
    ),
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "mpt", "llama", "mistral", "qwen2", "qwen3", "gemma",
         "gemma2", "gemma3_text", "phi", "phi3", "smollm3", "olmo", "olmo2", "falcon", "stablelm", "starcoder2",
         "gpt_oss", "xlnet", "granite", "cohere"),
        LAST,
    ),
    **dict.fromkeys(
        ("bart", "mbart", "marian", "pegasus", "t5", "mt5", "umt5", "fsmt", "m2m_100", "blenderbot",
         "blenderbot-small", "plbart"),
        DECODER,
    ),
    "modernbert": Reading("first", pooling="classifier_pooling"),
    "visual_bert": Reading("before-last"),
    "lxmert": Reading("first", "language"),
    "clip": Reading("first", "vision", others={"text": "end-of-text"}),
    "CLIPForImageClassification": Reading("mean-after-first"),
}  # fmt: skip
"""The architectures (``config.model_type``) whose answers can be explained, and classes that read other tokens than the
rest of their architecture."""


AnswerKind = Literal["label", "word", "span", "number"]
"""What an answer is: a label, a word of the vocabulary, the place of a token (start and end), or a number."""


class Answered(NamedTuple):
    """What a model answers to what is explained.

    Attributes
    ----------
    places : where the model answers.
    answers : int64 ``[B, P]``, the answers that are explained.
    kind : what they are.
    """

    places: Places
    answers: Tensor
    kind: AnswerKind

    def number(self) -> Tensor:
        """The number ``[B]`` that is explained: the logit of the answer, their mean where there are several."""
        return logits_of(self.places, self.answers)

    def probability(self) -> Tensor:
        """The probability ``[B]`` of the answer, the mean of several; NaN where there is no other answer."""
        logits = self.places.logits
        if logits.shape[-1] == 1:
            return torch.full(logits.shape[:1], torch.nan, device=logits.device)
        chances = self.places._replace(logits=logits.softmax(-1))
        return logits_of(chances, self.answers)


def reading_of(model: nn.Module, row: Row = "") -> Reading:
    """What is read of a model; an architecture that the table does not have is refused by name."""
    config: Any = getattr(model, "config", None)
    name = type(model).__name__
    kind = name if name in TABLE else getattr(config, "model_type", None) or name
    if kind not in TABLE:
        if row == "":
            raise SiteError(
                f"It is not known which token the head of the architecture {kind!r} reads, so its answers cannot be "
                "explained; say it with row= (--row first, last, mean or a number), if its layers are plain "
                "Transformer layers."
            )
        return Reading(row)
    known = TABLE[kind]
    if row != "":
        return Reading(row, known.stream, others=known.others)
    if known.pooling:
        pooling = getattr(config, known.pooling, "cls")
        return Reading("mean" if pooling == "mean" else "first", known.stream)
    return known


def answered(
    model: nn.Module, output: Any, batch: Mapping[str, Tensor], explained: Explained, answers: Tensor | None = None
) -> Answered:
    """What of an output is explained.

    Parameters
    ----------
    batch : what the model was given, and labels, if there are any.
    answers : int64 ``[B, P]``, the answers to explain; by default those that the target means.
    """
    places = _places(model, output, batch, explained)
    chosen = _answers(places, explained.target) if answers is None else answers
    return Answered(places, chosen, _kind(model, output, places))


def rows_read(
    model: nn.Module,
    output: Any,
    batch: Mapping[str, Tensor],
    found: Answered,
    real: Mapping[str, Tensor],
    explained: Explained,
) -> dict[str, Tensor]:
    """The rows of relevance that an answer is read from, by sequence.

    Parameters
    ----------
    real : by sequence bool ``[B, L]``, tokens that are not padding.

    Returns
    -------
    ``[B, R, L]``: each row has the weights (1 in all) of the tokens that are read.
    """
    reading = reading_of(model, explained.row)
    stream = _stream(model, reading, real)
    if getattr(output, "start_logits", None) is not None:
        return {stream: nn.functional.one_hot(found.answers, real[stream].shape[1]).double()}
    if not _answers_at_tokens(output):
        pooled = {stream: reading.row, **({} if _compares(output, explained) == "answers" else reading.others)}
        return {name: _pooled(row, real[name], batch, model) for name, row in pooled.items()}
    weights = (found.places.counted / found.places.number()[:, None]).double()
    missing = real[stream].shape[1] - weights.shape[1]  # a causal model has no known answer at its last token
    return {stream: nn.functional.pad(weights, (0, missing))[:, None]}


def _stream(model: nn.Module, reading: Reading, real: Mapping[str, Tensor]) -> str:
    """The sequence that the head reads."""
    if reading.stream in real:
        return reading.stream
    if len(real) == 1:
        return next(iter(real))
    raise SiteError(
        f"{type(model).__name__} has the sequences {', '.join(real)}, and it is not known which of them its head "
        "reads; its answers cannot be explained."
    )


def _answers_at_tokens(output: Any) -> bool:
    logits = getattr(output, "logits", None)
    return isinstance(logits, Tensor) and logits.ndim == 3


def _kind(model: nn.Module, output: Any, places: Places) -> AnswerKind:
    if getattr(output, "start_logits", None) is not None:
        return "span"
    if places.logits.shape[-1] == 1:
        return "number"
    words: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return "word" if words is not None and _answers_at_tokens(output) else "label"


def _answers(places: Places, target: Target) -> Tensor:
    """The answers that a target means; a label that is not known is refused."""
    answers = answers_of(places, target)
    if target == "label" and places.labels is not None and bool((places.labels < 0)[places.counted].any()):
        raise DataError("target='label' needs a label at every place that is explained; explain the predicted answers.")
    return answers


def _compares(output: Any, explained: Explained) -> Texts:
    """What the texts of a model are that compares them with images; empty for any other model."""
    scores = getattr(output, "logits_per_image", None)
    if scores is None:
        return ""
    return explained.texts or ("pairs" if scores.shape[0] == scores.shape[1] else "answers")


def _classes(output: Any, batch: Mapping[str, Tensor]) -> Places:
    """How well every text fits each image: one answer for an image."""
    logits, labels = output.logits_per_image[:, None], batch.get("labels")
    counted = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    return Places(logits, None if labels is None else labels[:, None], counted)


def _pairs(output: Any) -> Places:
    """How well each image fits its own text: one answer for a pair."""
    scores = output.logits_per_image
    if scores.shape[0] != scores.shape[1]:
        raise DataError(
            f"There are {scores.shape[0]} images and {scores.shape[1]} texts; give one text for each image to explain "
            "how well they fit."
        )
    logits = scores.diagonal()[:, None, None]
    known = torch.zeros(len(scores), 1, dtype=torch.long, device=scores.device)
    return Places(logits, known, torch.ones_like(known, dtype=torch.bool))


def _places(model: nn.Module, output: Any, batch: Mapping[str, Tensor], explained: Explained) -> Places:
    """Where the model answers, and which of these places count."""
    if compared := _compares(output, explained):
        return _pairs(output) if compared == "pairs" else _classes(output, batch)
    given = dict(batch)
    encoder_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if encoder_decoder:  # answers stand at the tokens of the decoder
        mask = given.pop("decoder_attention_mask", None)
        given.pop("attention_mask", None)
        given |= {} if mask is None else {"attention_mask": mask}
    if not _answers_at_tokens(output):
        if explained.where != "":
            raise ParameterError(
                f"{type(model).__name__} does not answer at every token, so where={explained.where!r} means nothing; "
                "leave it out."
            )
        return places_of(model, output, given)
    if explained.row != "":
        raise ParameterError(
            f"{type(model).__name__} answers at every token, so row={explained.row!r} means nothing; use where=."
        )
    causal = is_causal(model) and not encoder_decoder
    usual: Literal["last", "all"] = "last" if causal or encoder_decoder else "all"
    where = usual if explained.where == "" else explained.where  # 0 is the first token
    if where == "all":
        return places_of(model, output, given)
    return _place(output.logits, given, where, causal)


def _place(logits: Tensor, batch: Mapping[str, Tensor], where: Literal["last"] | int, causal: bool) -> Places:
    """One token of each text as the place that counts, with the labels where they are known."""
    mask = batch.get("attention_mask")
    real = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if mask is not None and mask.shape == real.shape:
        real = mask.bool()
    positions = torch.arange(logits.shape[1], device=logits.device)
    first, last = real.int().argmax(1), (positions * real).argmax(1)
    if where == "last":
        chosen = last
    else:
        chosen = first + where if where >= 0 else last + 1 + where
        inside = (chosen >= first) & (chosen <= last)
        if not bool(inside.all()):
            raise ParameterError(
                f"where={where} is not a token of every text; the shortest has {int(real.sum(1).min())}."
            )
    labels = batch.get("labels")
    if causal:  # the label of a token is the next one
        following = (batch["input_ids"].masked_fill(~real, IGNORED) if labels is None else labels)[:, 1:]
        labels = nn.functional.pad(following, (0, 1), value=IGNORED)
    elif labels is not None and labels.shape != real.shape:
        labels = None
    return Places(logits, labels, positions == chosen[:, None])


def _pooled(row: Row, real: Tensor, batch: Mapping[str, Tensor], model: nn.Module) -> Tensor:
    """The one row ``[B, 1, L]`` of a token that is read."""
    positions = torch.arange(real.shape[1], device=real.device)
    if row in ("mean", "mean-after-first"):
        read = real if row == "mean" else real & (positions > 0)
        return (read.double() / read.sum(1, keepdim=True))[:, None]
    if row == "first":
        chosen = torch.zeros(len(real), dtype=torch.long, device=real.device)
    elif row == "last":
        chosen = (positions * real).argmax(1)
    elif row == "before-last":
        mask = batch.get("attention_mask")
        chosen = (real.sum(1) if mask is None else mask.sum(1)) - 2
    elif row == "end-of-text":
        chosen = _end_of_text(model, batch["input_ids"])
    else:
        chosen = torch.full((len(real),), int(row), device=real.device)
    if bool(((chosen < 0) | (chosen >= real.shape[1])).any()):
        raise ParameterError(f"row={row!r} is not a token of every example; the longest has {real.shape[1]}.")
    return (positions == chosen[:, None]).double()[:, None]


def _end_of_text(model: nn.Module, tokens: Tensor) -> Tensor:
    """Where CLIP reads a text."""
    config: Any = model.config
    end = getattr(config, "text_config", config).eos_token_id
    return tokens.argmax(1) if end == 2 else (tokens == end).int().argmax(1)
