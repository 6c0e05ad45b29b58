"""Find the paragraph that answers a question by the cosine of sentence embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataError
from ..runs.result import Columns, Metric
from .base import Array, Task, register
from .batching import sample, with_decoder
from .encoding import Example
from .squad_files import squad_articles


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of hidden states ``[B, L, D]`` over the real tokens of ``mask [B, L]``: ``[B, D]`` in float32."""
    weights = mask[..., None].float()
    return (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def top(places: int) -> Metric:
    """Per cent of questions whose paragraph is among the first ``places``."""

    def metric(columns: Columns) -> NDArray[np.float64]:
        return 100.0 * np.mean(np.asarray(columns["rank"]) <= places, axis=-1)

    return metric


@register("retrieval")
@dataclass(kw_only=True)
class Retrieval(Task):
    """Questions to paragraphs of a SQuAD JSON file, both embedded by a sentence encoder.

    An embedding is the mean of the last hidden states over the real tokens (Reimers and Gurevych 2019,
    https://arxiv.org/abs/1908.10084). Columns: ``rank [questions]``, the place of the right paragraph, from 1.

    Parameters
    ----------
    paragraphs : how many paragraphs to choose from.
    per_article : use at most so many paragraphs of an article (XQuAD takes five), because those of one article are
        easily taken for one another.
    limit : how many of their questions to ask; all of them where they are fewer.
    """

    limit: int | None = 300
    paragraphs: int = 100
    per_article: int | None = None

    metrics: ClassVar[Mapping[str, Metric]] = {"top-1": top(1), "top-5": top(5)}

    def examples(self) -> Iterator[Example]:
        """Yield the chosen paragraphs (label -1), then the questions (label: the place of their paragraph)."""
        every = dict(self._paragraphs())
        if self.paragraphs < 2 or len(every) < self.paragraphs:
            raise DataError(f"There are {len(every)} paragraphs, so 'paragraphs' must lie between 2 and that number.")
        chosen = list(sample(every, self.paragraphs, self.seed))
        questions = [(text, place) for place, paragraph in enumerate(chosen) for text in every[paragraph]]
        yield from (Example((paragraph,), -1.0) for paragraph in chosen)
        yield from (Example((text,), float(place)) for text, place in sample(questions, self.limit, self.seed))

    def _paragraphs(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the paragraphs to choose from, with their questions."""
        for number, article in enumerate(squad_articles(self.data)):
            asked = [(paragraph, questions) for paragraph, questions in article if questions]
            yield from sample(asked, self.per_article, None if self.seed is None else self.seed + number)

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Embed texts: ``[B, D]`` of length 1."""
        output: Any = model(**with_decoder(inputs, model.config))
        hidden = getattr(output, "encoder_last_hidden_state", None)
        hidden = getattr(output, "last_hidden_state", None) if hidden is None else hidden
        if hidden is None:
            raise DataError(
                f"{type(model).__name__} gives no hidden states; load the model as kind 'auto' for retrieval."
            )
        return torch.nn.functional.normalize(mean_pool(hidden, inputs["attention_mask"]), dim=-1)

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Rank the paragraphs for every question; a paragraph that ties with the right one counts as before it."""
        is_paragraph = labels < 0
        similarity = outputs[~is_paragraph] @ outputs[is_paragraph].T
        own = np.take_along_axis(similarity, labels[~is_paragraph].astype(np.int64)[:, None], axis=1)
        return {"rank": np.sum(similarity >= own, axis=1)}

    def hits(self, columns: Columns) -> NDArray[np.bool_]:
        """Questions whose paragraph comes first."""
        return np.asarray(columns["rank"]) == 1

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Mean cosine between the paragraphs' embeddings and those of the unedited model."""
        chosen = labels < 0
        return {"cosine": float(np.sum(outputs[chosen] * unedited[chosen], axis=1).mean())}
