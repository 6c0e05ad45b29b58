"""Tiny random models and a byte tokenizer, made on the spot: for trying things with nothing downloaded.

They are real classes of ``transformers`` with random weights; what they answer means nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LENGTH = 512
SEED = 0

# One line an architecture: its model_type and its own names for a small size (2 layers of 4 heads, 32 wide).
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_LENGTH = {"max_position_embeddings": LENGTH}
TINY: dict[str, dict[str, Any]] = {
    "tiny-bert": {"model_type": "bert", **_BERT, **_LENGTH},
    "tiny-roberta": {"model_type": "roberta", **_BERT, "max_position_embeddings": LENGTH + 1},
    "tiny-deberta": {"model_type": "deberta-v2", **_BERT, **_LENGTH, "relative_attention": True},
    "tiny-gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH},
    "tiny-llama": {"model_type": "llama", **_BERT, **_LENGTH, "num_key_value_heads": 2},
    "tiny-t5": {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "tiny-bart": {"model_type": "bart", **_BART, **_LENGTH},
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token a byte, ``[CLS] text [SEP]`` and ``[CLS] text [SEP] text [SEP]``."""
    alphabet = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    numbers = {token: number for number, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    # Every text begins with [CLS] and ends with [SEP], so these serve where a model asks for begin and end tokens.
    names = {**SPECIAL, "bos": SPECIAL["cls"], "eos": SPECIAL["sep"]}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        **{f"{name}_token": token for name, token in names.items()},
    )


def tiny_config(name: str, **changes: Any) -> PretrainedConfig:
    """Return the configuration of a built-in tiny model, with its vocabulary set to the tiny tokenizer's."""
    tokenizer = tiny_tokenizer()
    tokens = {f"{word}_token_id": getattr(tokenizer, f"{word}_token_id") for word in ("pad", "bos", "eos")}
    start = {"decoder_start_token_id": tokenizer.bos_token_id} if name in ("tiny-t5", "tiny-bart") else {}
    return AutoConfig.for_model(**{**TINY[name], "vocab_size": len(tokenizer), **tokens, **start, **changes})


def tiny_model(name: str, model_class: Any, **changes: Any) -> Any:
    """Build a tiny model of an ``AutoModel…`` class; the same name always gives the same weights."""
    config = tiny_config(name, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return model_class.from_config(config)
