"""Language modelling on continuous streams of text, with the memory of a Transformer-XL or without one.

All texts are joined to one stream, which is cut into several that run side by side, in consecutive segments, as
Transformer-XL is trained and evaluated (Dai et al. 2019, https://arxiv.org/abs/1901.02860).
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.paths import home_path
from ..errors import DataError, ParameterError
from ..models.digests import tokenizer_digest
from ..models.loading import longest_input
from ..runs.result import Columns, Metric
from .base import Array, register
from .batching import Batch
from .encoding import chunks
from .language_modeling import LanguageModeling, mean_loss, perplexity
from .reading import find_file

_NAMES = {"validation": ("valid", "validation", "val", "dev")}
_FORMS = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt", "{}.jsonl", "{}.csv")
_WORD = re.compile(r"\S+")
KEEP = 4
"""How many tokenised streams are kept, each with 5 bytes a token."""
_KEPT: dict[Any, TokenStream] = {}


def word_perplexity(columns: Columns) -> NDArray[np.float64]:
    """The exponential of the loss of all tokens a word, from ``loss`` and ``words`` ``[..., N]``."""
    return np.exp(np.sum(columns["loss"], axis=-1) / np.sum(columns["words"], axis=-1))


@dataclass(frozen=True)
class TokenStream:
    """The tokens of all texts, each followed by the token that ends a text.

    Attributes
    ----------
    tokens : int32 ``[N]``.
    words : uint8 ``[N]``, how many words begin in each token; the end of a text counts as one. All zeros where they
        were not asked for.
    starts : int64 ``[texts + 1]``, where each text begins, and N.
    """

    tokens: NDArray[np.int32]
    words: NDArray[np.uint8]
    starts: NDArray[np.int64]

    def shuffled(self, generator: random.Random) -> TokenStream:
        """The texts in another order."""
        order = list(range(len(self.starts) - 1))
        generator.shuffle(order)
        parts = [slice(self.starts[place], self.starts[place + 1]) for place in order]
        lengths = np.diff(self.starts)[order]
        return TokenStream(
            np.concatenate([self.tokens[part] for part in parts]),
            np.concatenate([self.words[part] for part in parts]),
            np.concatenate([[0], np.cumsum(lengths)]),
        )


@register("streams")
@dataclass(kw_only=True)
class Streams(LanguageModeling):
    """Perplexity a word on continuous text, in consecutive segments, with the memory of a Transformer-XL.

    Columns: one value a segment. Every token is predicted once. A word is a run of characters without blanks, and the
    end of a text counts as one, so that the perplexity a word compares models with different vocabularies.

    Parameters
    ----------
    train_file, validation_file : WikiText's files, ``.txt``, ``.jsonl`` or ``.csv``, plain or ``.gz``.
    data : in place of these, a folder with files that are named after their split (``wiki.train.tokens``,
        ``train.txt``, ``train.jsonl``), or one file that is always read.
    split : ``train``, ``validation``, or the name of another file of the folder.
    limit : use this many texts.
    max_length : tokens in a segment.
    batch_size : streams that run side by side; each begins without a memory.
    shuffle : put the texts in another order in every epoch of training; otherwise they stay in that of the file.
    """

    max_length: int = 150
    train_file: str | None = None
    validation_file: str | None = None
    split: str = "validation"
    shuffle: bool = False

    kind: ClassVar[str] = "causal-lm"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "word-perplexity": word_perplexity,
        "token-perplexity": perplexity,
        "loss": mean_loss,
    }
    smaller_is_better: ClassVar[frozenset[str]] = frozenset(metrics)

    def __post_init__(self) -> None:
        if self.layout:
            raise ParameterError(f"A stream has no padding, so it takes no layout; leave out {self.layout!r}.")
        if self.max_length < 1 or self.batch_size < 1:
            raise ParameterError("A segment has at least 1 token and a batch at least 1 stream; give larger numbers.")

    def batches(self, tokenizer: Any, max_length: int | None = None) -> Iterator[Batch]:
        """Yield the segments in their order: the same places of all streams, and in the end what is left over."""
        stream = self.encoded(tokenizer, words=True)
        length = self.max_length if max_length is None else min(self.max_length, max_length)
        total = len(stream.tokens) - 1
        streams = min(self.batch_size, total)
        size = total // streams
        segments = -(-size // length)
        for place in range(segments):
            starts = np.arange(streams) * size + place * length
            index = np.arange(streams) * segments + place
            yield _batch(stream, index, starts, min(length, size - place * length), begins=place == 0)
        # Fewer tokens than there are streams.
        if rest := total - streams * size:
            for place in range(-(-rest // length)):
                start = streams * size + place * length
                index = np.array([streams * segments + place])
                yield _batch(stream, index, np.array([start]), min(length, total - start), begins=place == 0)

    def train_batches(
        self, tokenizer: Any, model: nn.Module, *, seed: int = 0, epoch: int = 0
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the segments in their order, with the next token of each as its label; what is left over is not used.

        Parameters
        ----------
        model : says how long a segment may be and whether it has a memory; it is not called.
        """
        stream = self.encoded(tokenizer, words=False)
        if self.shuffle:
            stream = stream.shuffled(random.Random(f"{seed} {epoch}"))
        length = min(self.max_length, longest_input(model, tokenizer) or self.max_length)
        size = (len(stream.tokens) - 1) // self.batch_size
        if size == 0:
            raise DataError(
                f"The training data has {len(stream.tokens)} tokens, too few for {self.batch_size} streams; use more "
                "texts or a smaller batch size."
            )
        for start in range(0, size, length):
            places = np.arange(self.batch_size) * size + start
            batch = _batch(stream, places, places, min(length, size - start), begins=start == 0)
            yield self.arguments({**batch.inputs, "labels": batch.targets["labels"]}, model)

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """The inputs of a batch as the model takes them: only one with a memory asks where texts begin."""
        takes = inspect.signature(type(model).forward).parameters
        return {name: tensor for name, tensor in inputs.items() if name != "begins" or name in takes}

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Sum of the losses, number of tokens and number of words of each segment, ``[B, 3]``."""
        given = self.arguments(inputs, model)
        words = given.pop("words").double()
        losses = _token_losses(model, given)
        tokens = torch.full_like(words, losses.shape[1])
        return torch.stack([losses.double().sum(1), tokens, words], dim=1)

    def loss(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The mean loss of the tokens of a batch of :meth:`train_batches`, a scalar."""
        return _token_losses(model, inputs).mean()

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """The sums of each segment."""
        return dict(zip(("loss", "tokens", "words"), outputs.T, strict=True))

    def encoded(self, tokenizer: Any, *, words: bool) -> TokenStream:
        """All chosen texts as one stream, tokenised once for all epochs and for other tasks with the same texts.

        Parameters
        ----------
        words : count them, which takes a fast tokenizer and more time.
        """
        facts = [(str(path.absolute()), path.stat().st_mtime_ns) for path in self._files() if path.exists()]
        chosen = (self.limit, self.seed, self.unit, self.column, self.strip)
        key = (tokenizer_digest(tokenizer), words, chosen, *facts)
        if key not in _KEPT:
            found = self._encode(tokenizer, words)
            while len(_KEPT) >= KEEP:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[key] = found
        return _KEPT[key]

    def _encode(self, tokenizer: Any, words: bool) -> TokenStream:
        end = next(
            (
                number
                for name in ("eos", "sep", "bos")
                if (number := getattr(tokenizer, f"{name}_token_id")) is not None
            ),
            None,
        )
        if end is None:
            raise DataError(f"{type(tokenizer).__name__} has no token that ends a text; set tokenizer.eos_token.")
        if words and not tokenizer.is_fast:
            raise DataError(f"{type(tokenizer).__name__} does not say where its tokens stand; use a fast tokenizer.")
        # The first token is the end of nothing, so that the first word is predicted from something.
        parts, counts, lengths = [np.array([end], np.int32)], [np.zeros(1, np.uint8)], [1]
        for chunk in chunks(self.examples()):
            texts = [example.texts[0] for example in chunk]
            encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=words, verbose=False)
            for number, (text, tokens) in enumerate(zip(texts, encoded["input_ids"], strict=True)):
                parts.append(np.array([*tokens, end], np.int32))
                counts.append(
                    _count_words(text, encoded["offset_mapping"][number])
                    if words
                    else np.zeros(len(tokens) + 1, np.uint8)
                )
                lengths.append(len(tokens) + 1)
        # The first text begins after the token that ends nothing; when texts are shuffled it moves like a text.
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return TokenStream(np.concatenate(parts), np.concatenate(counts), starts)

    def _files(self) -> list[Path]:
        given = {"train": self.train_file, "validation": self.validation_file}.get(self.split)
        path = given if given is not None else self.data
        if path is None:
            flag = f"--{self.split}-file FILE or " if self.split in ("train", "validation") else ""
            raise DataError(f"The task streams has no {self.split} data; give {flag}--data FOLDER.")
        folder = home_path(path)
        if not folder.is_dir():
            return [folder]
        names = [form.format(name) for name in _NAMES.get(self.split, (self.split,)) for form in _FORMS]
        found = find_file([folder], names)
        if found is None:
            there = ", ".join(sorted(each.name for each in folder.iterdir() if each.is_file())[:8]) or "nothing"
            raise DataError(
                f"{folder} has no file for the split {self.split} (such as {names[2]} or {names[3]}) but {there}; "
                "choose another split, as in --option split=test."
            )
        return [found]


def _batch(
    stream: TokenStream, index: NDArray[np.int64], starts: NDArray[np.int64], length: int, begins: bool
) -> Batch:
    """Segments of ``length`` tokens at ``starts [B]``; the labels are one token further on."""
    places = starts[:, None] + np.arange(length)
    following = torch.from_numpy(stream.tokens[places + 1].astype(np.int64))
    words = stream.words[places + 1].sum(1, dtype=np.int64)
    return Batch(
        index=index.astype(np.int64),
        inputs={
            "input_ids": torch.from_numpy(stream.tokens[places].astype(np.int64)),
            "begins": torch.full((len(starts),), begins),
        },
        labels=np.full(len(starts), np.nan),
        targets={"labels": following, "words": torch.from_numpy(words)},
    )


def _token_losses(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Minus the log-probability of the token that follows each one, ``[B, L]``."""
    if "begins" in inputs:
        losses: Tensor = model(**inputs).token_losses
        return losses
    labels = inputs["labels"]
    output: Any = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
    if getattr(output, "logits", None) is None:
        raise DataError(f"{type(model).__name__} gives no logits; load the model as kind 'causal-lm'.")
    flat = nn.functional.cross_entropy(output.logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def _count_words(text: str, offsets: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """How many words each token is the first to reach into, and one for the end of the text, ``[tokens + 1]``.

    Parameters
    ----------
    offsets : the first and the last character of each token; subwords of one character share them.
    """
    starts = np.array([match.start() for match in _WORD.finditer(text)])
    ends = np.array([end for _, end in offsets], dtype=np.int64)
    reached = np.maximum.accumulate(np.searchsorted(starts, ends, side="left")) if len(ends) else ends
    # Words that became no token at all are added to the end of the text.
    counts = np.diff(np.concatenate([[0], reached, [len(starts) + 1]]))
    return np.minimum(counts, 255).astype(np.uint8)
