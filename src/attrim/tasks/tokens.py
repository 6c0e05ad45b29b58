"""Tasks with a label for every token: named entities, chunks and parts of speech, from files in the CoNLL format.

A span is what ``conlleval`` and ``seqeval`` count (Tjong Kim Sang and De Meulder 2003, https://aclanthology.org/W03-0419):
``B-X`` begins one, and so does ``I-X`` after ``O`` or after another type.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.paths import home_path
from ..errors import DataError
from ..runs.result import Metric
from .base import Array, Task, register
from .batching import Batch
from .encoding import IGNORED, Example, Row, check_room, chunks
from .metrics import mean_ratio
from .reading import find_file, lines

OUTSIDE = "O"
_NAMES = {
    "train": ("eng.train", "train.txt", "train.conll"),
    "validation": ("eng.testa", "valid.txt", "dev.txt", "dev.conll"),
    "test": ("eng.testb", "test.txt", "test.conll"),
}
# A label that the model does not have is never the highest.
_NEVER = torch.finfo(torch.float32).min


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Begin every span with ``B-``; in IOB1 only a span right after one of its own type does. IOB2 stays as it is."""
    result = []
    before = OUTSIDE
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        result.append(f"B-{kind}" if prefix == "I" and before.partition("-")[2] != kind else tag)
        before = tag
    return result


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The spans of IOB tags (1 or 2): type, first word, last word + 1."""
    found = set()
    begin = 0
    tidy = [*to_iob2(tags), OUTSIDE]
    for place, tag in enumerate(tidy):
        if not tag.startswith("I-"):
            before = tidy[place - 1].partition("-")[2] if place else ""
            if before:
                found.add((before, begin, place))
            begin = place
    return found


def conll_file(path: Path, split: str) -> Path:
    """Return the file itself, or the file of a folder that holds the split, plain or gzip."""
    if not path.is_dir():
        return path
    names = _NAMES.get(split, (split, f"{split}.txt", f"{split}.conll"))
    found = find_file([path], names)
    if found is None:
        raise DataError(f"{path} holds none of {', '.join(names)} (plain or .gz); give the file itself as data.")
    return found


def sentences(path: Path, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words and the tags of every sentence of a CoNLL file.

    Parameters
    ----------
    column : place of the tag in a line; the word is the first one.
    """
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate((*lines(path), ""), 1):
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            if not -len(fields) <= column < len(fields):
                raise DataError(f"Line {number} of {path} has {len(fields)} columns, no column {column}; repair it.")
            words.append(fields[0])
            tags.append(fields[column])
        elif words:
            yield words, tags
            words, tags = [], []


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The number of the word at the first token of each word, ``IGNORED`` at all other tokens.

    Parameters
    ----------
    offsets : the characters of each token in the words joined by blanks; a token may have the blank before it, too.
    """
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    result, before = [], -1
    for start, end in offsets:
        word = bisect_right(starts, end - 1) - 1
        inside = end > start and end <= starts[word] + len(words[word])
        result.append(word if inside and word > before else IGNORED)
        before = max(before, word) if inside else before
    return result


@dataclass(kw_only=True)
class Tokens(Task):
    """Base of the tasks with one tag a word. The first token of a word carries its tag; words cut off count as wrong.

    Columns, one value a sentence: ``right`` and ``words``.

    Parameters
    ----------
    labels : the tags, in the order of the model's classes when the model does not name them.
    """

    labels: tuple[str, ...]

    kind: ClassVar[str] = "token-classification"
    metrics: ClassVar[Mapping[str, Metric]] = {"accuracy": mean_ratio("right", "words")}

    @property
    def num_labels(self) -> int:
        """One output a tag."""
        return len(self.labels)

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a sentence. Targets: ``labels [L]``, and ``words [L]``, the number of the word that begins there."""
        if not tokenizer.is_fast:
            raise DataError(
                f"{type(tokenizer).__name__} does not say which word a token is from; use a fast tokenizer."
            )
        check_room(tokenizer, max_length)
        place = 0
        for chunk in chunks(examples):
            texts = [" ".join(example.texts) for example in chunk]
            encoded = tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True)
            marks = encoded.pop("offset_mapping")
            for number, example in enumerate(chunk):
                words = first_tokens(example.texts, marks[number])
                labels = [IGNORED if word == IGNORED else example.answers[word] for word in words]
                inputs = {name: column[number] for name, column in encoded.items()}
                yield Row(place, inputs, float(place), {"labels": labels, "words": words})
                place += 1

    def check(self, model: nn.Module) -> None:
        """Compare the model's labels with the task's."""
        self._order(model)

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The tag of every word, ``[B, max_length]``; -1 after the last one."""
        words = inputs["words"]
        output: Any = model(**{name: tensor for name, tensor in inputs.items() if name not in ("words", "labels")})
        logits = getattr(output, "logits", None)
        if logits is None or logits.ndim != 3:
            what = "no logits" if logits is None else "no logits of single tokens"
            raise DataError(f"{type(model).__name__} gives {what}; load the model as kind {self.kind!r}.")
        logits = logits.float()
        columns = [logits[..., place] if place >= 0 else torch.full_like(logits[..., 0], _NEVER)
                   for place in self._order(model)]  # fmt: skip
        best = torch.stack(columns, dim=-1).max(-1)
        # A model that gives NaN must not look like one that predicts the first tag, so NaN is passed on.
        tags = torch.where(best.values.isfinite(), best.indices.float(), best.values)
        result = torch.full((len(words), self.max_length), -1.0, device=tags.device)
        rows, places = (words != IGNORED).nonzero(as_tuple=True)
        result[rows, words[rows, places]] = tags[rows, places]
        return result

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B, L]`` as the model counts them: at the first token of a word, -100 elsewhere."""
        order = torch.tensor(self._order(model))
        if (order < 0).any():
            raise DataError(
                f"{type(model).__name__} does not have every tag of {self.registered_name}; use a new head."
            )
        labels = batch.targets["labels"]
        return {"labels": torch.where(labels == IGNORED, labels, order[labels.clamp(min=0)])}

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Compare the tags of each sentence with the right ones."""
        rows = [self._compare(found, example.answers) for found, example in zip(outputs, self.examples(), strict=True)]
        return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Per cent of words with the same tag."""
        words = unedited >= 0
        return {"agreement": 100.0 * float(np.mean(outputs[words] == unedited[words]))}

    def tags(self, output: Array, count: int) -> list[str]:
        """The tags of a sentence of ``count`` words from its output ``[max_length]``; ``O`` for words cut off."""
        found = [self.labels[int(number)] if number >= 0 else OUTSIDE for number in output[:count]]
        return found + [OUTSIDE] * (count - len(found))

    def _compare(self, output: Array, right: tuple[int, ...]) -> dict[str, int]:
        found = output[: len(right)]
        return {"right": int(np.sum(found == np.array(right[: len(found)]))), "words": len(right)}

    def _order(self, model: nn.Module) -> list[int]:
        """For each tag of the task the class of the model, by name where names tell; -1 where the model has none."""
        config: Any = model.config
        names = {str(name): int(number) for number, name in config.id2label.items()}
        if all(name.startswith("LABEL_") or name.isdigit() for name in names):
            if len(names) != len(self.labels):
                raise DataError(
                    f"{type(model).__name__} has {len(names)} labels but {self.registered_name} has "
                    f"{len(self.labels)} tags; choose a model that was trained for it or set labels."
                )
            return list(range(len(self.labels)))
        foreign = sorted(set(names) - set(self.labels))
        if foreign:
            raise DataError(
                f"{type(model).__name__} has the label {foreign[0]!r}, which {self.registered_name} does not know; "
                "set labels to the tags of the data, or choose another model."
            )
        return [names.get(label, -1) for label in self.labels]


@dataclass(kw_only=True)
class TaggedSpans(Tokens):
    """Base of the tasks whose tags mark spans: precision, recall and F1 of whole spans, as ``conlleval`` counts them.

    Columns, one value a sentence: ``hits``, ``predicted`` and ``true`` spans, ``right`` and ``words``. Tags in IOB1 (as
    in the original files) are converted to IOB2; a model may answer in either.
    """

    metrics: ClassVar[Mapping[str, Metric]] = {
        "f1": mean_ratio("hits", "predicted", "true"),
        "precision": mean_ratio("hits", "predicted"),
        "recall": mean_ratio("hits", "true"),
        "accuracy": mean_ratio("right", "words"),
    }

    def _compare(self, output: Array, right: tuple[int, ...]) -> dict[str, int]:
        guess, true = spans(self.tags(output, len(right))), spans([self.labels[number] for number in right])
        counts = {"hits": len(guess & true), "predicted": len(guess), "true": len(true)}
        return {**counts, **super()._compare(output, right)}


@dataclass(kw_only=True)
class Conll(Tokens):
    """Base of the tasks whose files are in the CoNLL format.

    Parameters
    ----------
    data : a file in CoNLL format (a word and its tags a line, a blank line between sentences), or a folder of them.
    split : ``train``, ``validation``, ``test``, or any other file of the folder; a single file is always read.
    column : place of the tag in a line, from 0; negative numbers count from the end.
    """

    split: str = "validation"
    column: int

    def read(self) -> Iterator[Example]:
        """Yield every sentence: its words, and the numbers of their tags."""
        if self.data is None:
            raise DataError(f"The task {self.registered_name} reads local files; give a CoNLL file or folder as data.")
        path = conll_file(home_path(self.data), self.split)
        for words, tags in sentences(path, self.column):
            yield Example(tuple(words), None, self._numbers(tags, path))

    def _numbers(self, tags: list[str], path: Path) -> tuple[int, ...]:
        tidy = to_iob2(tags) if isinstance(self, TaggedSpans) else tags
        unknown = [tag for tag in tidy if tag not in self.labels]
        if unknown:
            raise DataError(
                f"{path} has the tag {unknown[0]!r}, which {self.registered_name} does not know; "
                "set column to where the tags are, or labels to the tags of this data."
            )
        return tuple(self.labels.index(tag) for tag in tidy)


def iob2_labels(*kinds: str) -> tuple[str, ...]:
    """The IOB2 tags of some kinds of spans."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


@register("tokens/ner")
@dataclass(kw_only=True)
class NamedEntities(TaggedSpans, Conll):
    """Find the names of persons, organisations, places and others. F1 of whole names."""

    column: int = 3
    labels: tuple[str, ...] = iob2_labels("PER", "ORG", "LOC", "MISC")


@register("tokens/chunk")
@dataclass(kw_only=True)
class Chunks(TaggedSpans, Conll):
    """Find the chunks of a sentence, such as noun phrases. F1 of whole chunks."""

    column: int = 2
    labels: tuple[str, ...] = iob2_labels(
        "ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP"
    )  # fmt: skip


@register("tokens/pos")
@dataclass(kw_only=True)
class PartsOfSpeech(Conll):
    """Name the part of speech of every word (Penn Treebank tags). Accuracy."""

    column: int = 1
    labels: tuple[str, ...] = (
        *('"', "''", "``", "#", "$", "(", ")", ",", ".", ":"),
        *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNP", "NNPS", "NNS", "NN|SYM"),
        *("PDT", "POS", "PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH"),
        *("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP", "WP$", "WRB"),
    )
