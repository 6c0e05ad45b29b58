"""A small Marian with a word vocabulary, and parallel files in a language that is English with other words."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

WORDS = {"der": "the", "hund": "dog", "katze": "cat", "sieht": "sees", "rot": "red", "haus": "house", ".": "."}
SPECIAL = ("<pad>", "</s>", "<unk>")


def write_parallel(folder: Path, train: int = 64, val: int = 12, language: str = "en") -> Path:
    """Sentences of two to seven words, and their translation word by word; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(5)
    for name, size in {"train": train, "val": val}.items():
        sentences = [[*generator.choices(list(WORDS)[:-1], k=generator.randint(2, 6)), "."] for _ in range(size)]
        (folder / f"{name}.de").write_text("".join(" ".join(words) + "\n" for words in sentences))
        translated = (" ".join(WORDS[word] for word in words) for words in sentences)
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in translated))
    return folder


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word of both languages, and an end token behind every text."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS, *WORDS.values()]))}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=32
    )


def small_marian(vocabulary: int | None = None, spread: float = 0.4, **changes) -> MarianMTModel:
    """Two layers of each kind, four heads, for :func:`word_tokenizer`, in evaluation mode.

    With wide weights it writes something else for every source; with narrow ones it can be trained.
    """
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder")
             for what, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()}  # fmt: skip
    config = MarianConfig(
        vocab_size=vocabulary or len(word_tokenizer()),
        d_model=32,
        **sizes,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
        max_position_embeddings=32,
        init_std=spread,
        dropout=0.0,
        **changes,
    )
    torch.manual_seed(1)
    return MarianMTModel(config).eval()


def save_marian(folder: Path) -> str:
    """Write the model and its tokenizer; returns the folder's name."""
    small_marian(spread=0.1, scale_embedding=True).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)
