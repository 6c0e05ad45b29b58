"""Small LXMERT and VisualBERT models for the task ``shapes``, and the tokenizer that knows its words.

They are stock classes of ``transformers``. ``shapes-lxmert`` and ``shapes-visualbert`` have random weights, to be
trained; ``shapes-lxmert-trained`` and ``shapes-visualbert-trained`` come trained with the package.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast

from .tiny import SEED, SPECIAL

COLORS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "cross")
COUNTS = ("0", "1", "2", "3", "4", "5")
ANSWERS = (*COLORS, *SHAPES, "yes", "no", *COUNTS)
"""The answers of the task ``shapes``, in the order of the outputs of its models."""
WORDS = (
    *SPECIAL.values(), *COLORS, *SHAPES, "what", "which", "color", "shape", "is", "has", "the", "a", "object",
    "objects", "there", "can", "you", "see", "how", "many", "are", "?",
)  # fmt: skip
PATCH = 6
FEATURES = PATCH * PATCH * 3
"""Numbers of a region: its pixels brought to 6 x 6, three colours each."""
LENGTH = 16

# Weights that begin larger than usual: with 0.02 LXMERT does not look at the picture for the first thousand steps.
_SHARED = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.12,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SHAPE_MODELS: dict[str, dict[str, Any]] = {
    "shapes-lxmert": {
        "model_type": "lxmert",
        **_SHARED,
        "l_layers": 2,
        "r_layers": 2,
        "x_layers": 2,
        "visual_feat_dim": FEATURES,
        "num_qa_labels": len(ANSWERS),
    },
    "shapes-visualbert": {
        "model_type": "visual_bert",
        **_SHARED,
        "num_hidden_layers": 4,
        "visual_embedding_dim": FEATURES,
    },
}


def shapes_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token a word of the questions, ``[CLS] question [SEP]``."""
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab=numbers, unk_token=SPECIAL["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )


def shapes_config(name: str) -> PretrainedConfig:
    """The configuration of one of ``SHAPE_MODELS``; its labels are the answers."""
    names: dict[str, Any] = {
        "id2label": dict(enumerate(ANSWERS)),
        "label2id": {answer: place for place, answer in enumerate(ANSWERS)},
    }
    return AutoConfig.for_model(**SHAPE_MODELS[name], vocab_size=len(WORDS), pad_token_id=0, **names)


def shapes_model(name: str, model_class: Any, seed: int | None = SEED) -> Any:
    """Build one of ``SHAPE_MODELS`` from scratch.

    Parameters
    ----------
    seed : draws the weights; None draws them from torch's random numbers as they are.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return model_class.from_config(shapes_config(name))
