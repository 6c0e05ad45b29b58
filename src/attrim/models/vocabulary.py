"""A tokenizer for texts of one's own: whole words, or subwords by byte-pair encoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..errors import DataError, ParameterError
from .sources import one_sentence

Units = Literal["words", "subwords"]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of an architecture.

    Attributes
    ----------
    names : what each token is for (``pad``, ``unk``, ``eos`` and so on) to the token; they are numbered in this order.
    single, pair : how one text, and two, stand between them, as ``TemplateProcessing`` writes it; empty adds none.
    """

    names: dict[str, str]
    single: str = ""
    pair: str = ""


def train_tokenizer(
    texts: Iterable[str],
    special: SpecialTokens,
    size: int,
    units: Units = "subwords",
    *,
    lowercase: bool = False,
    minimum_count: int = 1,
    max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer whose vocabulary comes from texts; the same texts give the same one.

    Words are runs of letters and digits, or of other characters; they are numbered from the most frequent to the
    rarest, after the special tokens, and those that are not in the vocabulary become the unknown token. Subwords are
    those of byte-pair encoding over bytes (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909), which know every
    text.

    Parameters
    ----------
    size : of the vocabulary, special tokens included; fewer where the texts have no more.
    lowercase : turn texts to lower case, now and whenever the tokenizer is used.
    minimum_count : leave out words, or pairs of subwords, that are rarer.
    max_length : tokens that the model takes; None where it has no limit.
    """
    tokens = list(dict.fromkeys(special.names.values()))
    bytes_ = len(pre_tokenizers.ByteLevel.alphabet()) if units == "subwords" else 0
    if size <= len(tokens) + bytes_:
        reason = "256 bytes" if bytes_ else "any word"
        raise ParameterError(
            f"A vocabulary of {size} has no room for {reason} beside {len(tokens)} special tokens; give more than "
            f"{len(tokens) + bytes_}."
        )
    if units == "words":
        tokenizer, trainer = _words(tokens, size, minimum_count, special.names["unk"])
    else:
        tokenizer, trainer = _subwords(tokens, size, minimum_count)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    with one_sentence("The tokenizer could not be trained"):
        tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(tokens) + bytes_:
        raise DataError(
            f"The texts have no word or pair of letters {minimum_count} times, so there is no vocabulary; use more "
            "texts or a smaller minimum count."
        )
    if special.single:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=special.single,
            pair=special.pair,
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens],
        )
    options: dict[str, Any] = {f"{name}_token": token for name, token in special.names.items()}
    if max_length is not None:
        options["model_max_length"] = max_length
    if ":1" in special.pair:
        options["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options)


def _words(special: list[str], size: int, minimum_count: int, unknown: str) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=minimum_count, special_tokens=special, show_progress=False
    )
    return tokenizer, trainer


def _subwords(special: list[str], size: int, minimum_count: int) -> tuple[Tokenizer, Any]:
    tokenizer = Tokenizer(models.BPE())
    # With a blank before it, the first word of a text is the same token as elsewhere.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=minimum_count,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return tokenizer, trainer
