"""How well a language model predicts text: perplexity, and pseudo-perplexity for masked models.

Pseudo-perplexity masks one token at a time (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError, ParameterError
from ..runs.result import Columns, Metric
from .base import Array, register
from .batching import Batch, sample
from .encoding import IGNORED, Example, Row, chunks, encode_texts
from .texts import Text


def mean_loss(columns: Columns) -> NDArray[np.float64]:
    """Nats a token, from sums ``loss [..., N]`` and counts ``tokens [..., N]``: longer texts weigh more."""
    return np.asarray(np.sum(columns["loss"], axis=-1) / np.sum(columns["tokens"], axis=-1))


def perplexity(columns: Columns) -> NDArray[np.float64]:
    """The exponential of the mean loss."""
    return np.exp(mean_loss(columns))


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the losses, number of predicted tokens and number of right ones of each row, float64 ``[B, 3]``.

    Parameters
    ----------
    logits : ``[B, L, vocabulary]``, for the tokens of ``labels [B, L]``.
    """
    wanted = labels != IGNORED
    # Only the wanted rows become float32 probabilities: the vocabulary is what costs memory here.
    chosen, right = logits[wanted].float(), labels[wanted]
    losses = nn.functional.cross_entropy(chosen, right, reduction="none")
    facts = torch.stack([losses.double(), torch.ones_like(losses).double(), (chosen.argmax(-1) == right).double()], 1)
    total = torch.zeros(len(labels), 3, dtype=torch.float64, device=labels.device)
    return total.index_add_(0, wanted.nonzero()[:, 0], facts)


@dataclass(kw_only=True)
class LanguageModeling(Text):
    """Base of the tasks that predict tokens. Columns: ``loss`` (sum, in nats) and ``tokens`` (predicted ones)."""

    metrics: ClassVar[Mapping[str, Metric]] = {"perplexity": perplexity, "loss": mean_loss}
    smaller_is_better: ClassVar[frozenset[str]] = frozenset(metrics)

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Sum of the losses and number of predicted tokens of each row, ``[B, 2]``."""
        labels = inputs["labels"]
        output: Any = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        if getattr(output, "logits", None) is None:
            raise DataError(f"{type(model).__name__} gives no logits; load the model as kind {self.kind!r}.")
        return row_losses(*self.aligned(output.logits, labels))[:, :2]

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B, L]``, one token number a token."""
        return {"labels": batch.targets["labels"]}

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """How much the loss of a row moved up or down, in nats a token: 0 only if every row is as before."""
        return {"shift": float(np.abs(outputs[:, 0] - unedited[:, 0]).sum() / outputs[:, 1].sum())}


@register("causal-lm")
@dataclass(kw_only=True)
class CausalLanguageModeling(LanguageModeling):
    """Perplexity of a causal language model over texts, in windows. Columns: one value a window.

    Parameters
    ----------
    limit : use this many windows.
    max_length : tokens in a window.
    stride : tokens that neighbouring windows share; they are context in the second one and count only once.
    begin_token : where the tokenizer's begin token stands: before every text, if the tokenizer itself puts it there;
        before every window; or nowhere.
    """

    unit: Literal["line", "paragraph", "file"] = "file"
    stride: int = 0
    begin_token: Literal["text", "window", "never"] = "text"

    kind: ClassVar[str] = "causal-lm"

    def choose(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Keep every text: the limit counts windows, which only a tokenizer can tell."""
        return examples

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a window; the chosen ones are numbered in their order."""
        chosen = sample(self._windows(examples, tokenizer, max_length), self.limit, self.seed)
        for place, (tokens, labels) in enumerate(chosen):
            inputs = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
            yield Row(place, inputs, targets={"labels": labels})

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """The sums of each window."""
        return {"loss": outputs[:, 0], "tokens": outputs[:, 1]}

    def _windows(
        self, examples: Iterable[Example], tokenizer: Any, max_length: int
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Tokens and labels ``[L]`` of every window that has something to predict."""
        token = tokenizer.bos_token_id
        if self.begin_token == "window" and token is None:
            raise DataError(f"{type(tokenizer).__name__} has no begin token; use begin_token='never'.")
        before = [token] if self.begin_token == "text" and tokenizer("a")["input_ids"][0] == token else []
        begin = [token] if self.begin_token == "window" else []
        if max_length < 2:
            raise ParameterError(f"A window of {max_length} tokens has nothing to predict; give max_length at least 2.")
        room = max_length - len(begin)
        if not 0 <= self.stride < room:
            raise ParameterError(
                f"The stride must lie between 0 and {room - 1} for windows of {max_length} tokens, not {self.stride}."
            )
        for chunk in chunks(examples):
            texts = [example.texts[0] for example in chunk]
            # A tokenizer warns about texts longer than the model takes; windows are what makes them fit.
            for text in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
                tokens, known = before + text, 0
                while known < len(tokens):
                    start = max(0, known - self.stride)
                    part = tokens[start : start + room]
                    labels = [IGNORED] * (known - start) + part[known - start :]
                    if len(begin) + len(part) > 1:  # a token alone has nothing that it could be predicted from
                        yield begin + part, [IGNORED] * len(begin) + labels
                    known = start + len(part)

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A token is predicted from the one before it."""
        return logits[:, :-1], labels[:, 1:]


@register("masked-lm")
@dataclass(kw_only=True)
class MaskedLanguageModeling(LanguageModeling):
    """Pseudo-perplexity of a masked language model: tokens masked one at a time. Columns: one value a text.

    Each chosen token gives a copy of the text in which only this token is replaced by the mask token.

    Parameters
    ----------
    limit : use this many texts, of those that have enough tokens.
    share : which part of a text's tokens (special ones do not count) to mask; at least one is.
    min_tokens : leave out texts with fewer tokens.
    seed : chooses texts and positions; the positions of a text depend on nothing else but its place and tokens.
    """

    share: float = 0.15
    min_tokens: int = 1

    kind: ClassVar[str] = "masked-lm"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ParameterError(f"The share of masked tokens lies between 0 and 1, not {self.share}; 0.15 is usual.")

    def choose(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Keep every text: the limit counts texts with enough tokens, which only a tokenizer can tell."""
        return examples

    def chosen(self, tokenizer: Any, max_length: int) -> Iterator[Example]:
        """``limit`` texts that have enough tokens; more are drawn until there are so many, or no texts are left."""
        if self.limit is None:
            yield from self.examples()
            return
        number = self.limit
        while True:
            drawn = list(sample(self.examples(), number, self.seed))
            usable = [drawn[row.index] for row in self.train_rows(drawn, tokenizer, max_length)]
            if len(usable) >= self.limit or len(drawn) < number:
                break
            number *= 2
        yield from sample(usable, self.limit, self.seed)

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a chosen token."""
        for place, row in enumerate(self.train_rows(examples, tokenizer, max_length)):
            tokens, special = row.inputs["input_ids"], row.targets["special"]
            free = [position for position, mark in enumerate(special) if not mark]
            generator = random.Random(f"{self.seed} {place}")
            for position in sorted(generator.sample(free, max(1, int(self.share * len(free))))):
                masked = [*tokens[:position], tokenizer.mask_token_id, *tokens[position + 1 :]]
                labels = [IGNORED] * len(tokens)
                labels[position] = tokens[position]
                yield Row(place, {**row.inputs, "input_ids": masked}, float(place), {"labels": labels})

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Add the copies of each text up."""
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        loss, tokens = np.add.reduceat(outputs, starts, axis=0).T
        return {"loss": loss, "tokens": tokens}

    def train_rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a text, with the places of special tokens; texts with too few other tokens are left out."""
        if tokenizer.mask_token_id is None:
            raise DataError(f"{type(tokenizer).__name__} has no mask token; use the task causal-lm for such models.")
        for row in encode_texts(examples, tokenizer, max_length):
            special = tokenizer.get_special_tokens_mask(row.inputs["input_ids"], already_has_special_tokens=True)
            if len(special) - sum(special) >= max(1, self.min_tokens):
                yield Row(row.index, row.inputs, row.label, {"special": special})

    def train_batches(
        self, tokenizer: Any, model: nn.Module, *, seed: int = 0, epoch: int = 0
    ) -> Iterator[dict[str, Tensor]]:
        """Yield texts with other tokens masked in every epoch, as BERT does (https://arxiv.org/abs/1810.04805)."""
        from transformers import DataCollatorForLanguageModeling

        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=self.share)
        collator.generator = torch.Generator().manual_seed(random.Random(f"{seed} {epoch} mask").getrandbits(63))
        for inputs in super().train_batches(tokenizer, model, seed=seed, epoch=epoch):
            special = inputs.pop("special") != 0
            tokens, labels = collator.torch_mask_tokens(inputs["input_ids"].clone(), special_tokens_mask=special)
            if (labels != IGNORED).any():  # a batch of few short texts may end up with no masked token
                yield {**inputs, "input_ids": tokens, "labels": labels}

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """The places that are never masked, for :meth:`train_batches`."""
        return {"special": batch.targets["special"]}

    def evaluation_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B, L]``, the masked token of each row."""
        return {"labels": batch.targets["labels"]}
