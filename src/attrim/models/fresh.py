"""Models that have not been trained: a stock architecture, its size, and weights that one seed fixes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from ..errors import ParameterError, UnknownName
from .loading import automatic_class, quiet
from .recurrent import RecurrentClassifierConfig, RecurrentSeq2SeqConfig
from .size import Size
from .sources import one_sentence
from .transformer_xl import TransformerXLConfig
from .vocabulary import SpecialTokens


@dataclass(frozen=True)
class FreshArchitecture:
    """What is known about an architecture that fresh models are made of.

    Attributes
    ----------
    kinds : which heads it can have, as in ``attrim.models.loading.KINDS``; the first one is what it has by default.
    positions : the default of :attr:`Size.positions`; None where there is no limit.
    configure : its configuration from a size (with inner and positions filled in) and the numbers of special tokens.
    """

    kinds: tuple[str, ...]
    special: SpecialTokens
    configure: Callable[[Size, Mapping[str, int]], dict[str, Any]]
    positions: int | None = 512


def _transformer_xl(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    return {
        "model_type": TransformerXLConfig.model_type,
        "d_model": size.width,
        "n_layer": size.layers,
        "n_head": size.heads,
        "d_inner": size.inner,
        "dropout": size.dropout,
        "mem_len": size.memory or 150,
        "cutoffs": list(size.cutoffs),
        **tokens,
    }


def _marian(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", size.layers),
            ("attention_heads", size.heads),
            ("ffn_dim", size.inner),
        )
    }
    return {
        "model_type": "marian",
        **sides,
        "d_model": size.width,
        "dropout": size.dropout,
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": size.positions,
        "decoder_start_token_id": tokens["pad_token_id"],
        "forced_eos_token_id": tokens["eos_token_id"],
        **tokens,
    }


def _gpt2(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), size.dropout)
    return {
        "model_type": "gpt2",
        "n_embd": size.width,
        "n_layer": size.layers,
        "n_head": size.heads,
        "n_inner": size.inner,
        "n_positions": size.positions,
        **dropout,
        **tokens,
    }


def _llama(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        **_bert_sizes(size),
        "num_key_value_heads": size.heads,
        "attention_dropout": size.dropout,
        "tie_word_embeddings": True,
        **tokens,
    }


def _bert(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), size.dropout)
    return {"model_type": "bert", **_bert_sizes(size), **dropout, **tokens}


def _bert_sizes(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "max_position_embeddings": size.positions,
    }


def _recurrent_classifier(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    if size.heads != 1:
        raise ParameterError(f"A recurrent-classifier has one attention head, not {size.heads}; give heads 1.")
    return {
        "model_type": RecurrentClassifierConfig.model_type,
        "embed_dim": size.width,
        "hidden_dim": size.width,
        "intermediate_dim": size.inner,
        "layers": size.layers,
        "dropout": size.dropout,
        **tokens,
    }


def _recurrent_seq2seq(size: Size, tokens: Mapping[str, int]) -> dict[str, Any]:
    if size.inner != 4 * size.width:
        raise ParameterError("A recurrent-seq2seq has no feed-forward layers; leave their inner size out.")
    return {
        "model_type": RecurrentSeq2SeqConfig.model_type,
        "hidden_dim": size.width,
        "layers": size.layers,
        "heads": size.heads,
        "dropout": size.dropout,
        "decoder_start_token_id": tokens["bos_token_id"],
        **tokens,
    }


_LABELLING = ("sequence-classification", "token-classification", "question-answering")
# As in GPT-2 one token ends a text and begins the next.
_CAUSAL = SpecialTokens({"pad": "<pad>", "unk": "<unk>", "eos": "</s>", "bos": "</s>"})
_TRANSLATING = SpecialTokens({"eos": "</s>", "pad": "<pad>", "unk": "<unk>"}, "$A </s>", "$A </s> $B </s>")
_BRACKETED = SpecialTokens(
    {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}, "<s> $A </s>", "<s> $A </s> $B </s>"
)
_MASKED = SpecialTokens(
    {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "[CLS] $A [SEP]",
    "[CLS] $A [SEP] $B:1 [SEP]:1",
)

FRESH: dict[str, FreshArchitecture] = {
    "transformer-xl": FreshArchitecture(("causal-lm",), _CAUSAL, _transformer_xl, positions=None),
    "marian": FreshArchitecture(("seq2seq-lm",), _TRANSLATING, _marian),
    "gpt2": FreshArchitecture(("causal-lm", *_LABELLING), _CAUSAL, _gpt2),
    "llama": FreshArchitecture(("causal-lm", *_LABELLING), _CAUSAL, _llama),
    "bert": FreshArchitecture(("masked-lm", *_LABELLING), _MASKED, _bert),
    "recurrent-classifier": FreshArchitecture(
        ("sequence-classification",), _BRACKETED, _recurrent_classifier, positions=None
    ),
    "recurrent-seq2seq": FreshArchitecture(("seq2seq-lm",), _BRACKETED, _recurrent_seq2seq, positions=None),
}
"""The architectures that fresh models can have."""


def fresh_architecture(name: str, size: Size, kind: str = "auto") -> tuple[FreshArchitecture, str, int | None]:
    """Look an architecture up, and refuse what it does not have before anything is computed.

    Parameters
    ----------
    kind : the head that a task needs; ``auto`` takes the architecture's own.

    Returns
    -------
    The architecture, the kind of its head, and the most tokens that the model takes (None where there is no limit).
    """
    if name not in FRESH:
        raise UnknownName("architecture for a new model", name, FRESH)
    found = FRESH[name]
    size.check()
    if kind not in ("auto", *found.kinds):
        able = ", ".join(other for other, each in FRESH.items() if kind in each.kinds) or "none"
        raise ParameterError(f"A {name} has no {kind} head, which the task needs; architectures that do: {able}.")
    if found.positions is None and size.positions is not None:
        raise ParameterError(f"A {name} takes texts of any length; leave the positions out.")
    if name != "transformer-xl" and (size.memory is not None or size.cutoffs):
        what = "memory" if size.memory is not None else "adaptive softmax with cutoffs"
        raise ParameterError(f"A {name} has no {what}; leave it out, or make a transformer-xl.")
    return found, found.kinds[0] if kind == "auto" else kind, size.positions or found.positions


def fresh_model(
    name: str, size: Size, tokenizer: Any, kind: str = "auto", *, seed: int = 123, num_labels: int | None = None
) -> Any:
    """Make a stock model of ``transformers``, or a Transformer-XL, with random weights, in evaluation mode.

    Parameters
    ----------
    name : one of :data:`FRESH`.
    tokenizer : gives the vocabulary and the numbers of the special tokens.
    kind : which head it has, as in ``attrim.models.loading.KINDS``; ``auto`` takes the architecture's own.
    num_labels : classes of a classifier.
    """
    architecture, kind, positions = fresh_architecture(name, size, kind)
    inner = 4 * size.width if size.inner is None else size.inner
    filled = Size(**{**vars(size), "inner": inner, "positions": positions})
    words = ("pad", "bos", "eos")
    tokens = {
        f"{word}_token_id": number
        for word in words
        if word in architecture.special.names and (number := getattr(tokenizer, f"{word}_token_id")) is not None
    }
    labels: dict[str, Any] = {} if num_labels is None else {"num_labels": num_labels}
    with one_sentence(f"A {name} of this size could not be made"), quiet():
        config = AutoConfig.for_model(**architecture.configure(filled, tokens), vocab_size=len(tokenizer), **labels)
        return _drawn(automatic_class(kind).from_config, config, seed)


def redraw(model: Any, seed: int) -> Any:
    """Make another model with the configuration of one, and weights that a seed fixes: those of a fresh model.

    Examples
    --------
    >>> other = redraw(attrim.load_model("fresh", "causal-lm"), seed=2)  # what 'attrim new ... --seed 2' has written
    """
    drawn = _drawn(type(model)._from_config, copy.deepcopy(model.config), seed)
    return drawn.to(model.device, model.dtype)


def _drawn(make: Callable[[PretrainedConfig], Any], config: PretrainedConfig, seed: int) -> Any:
    """A model with weights that a seed fixes, in evaluation mode; random numbers elsewhere stay as they would be."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(config).eval()
