"""Translation with encoder-decoder models: parallel texts, beam search, and BLEU that can be resampled.

BLEU and chrF are those of sacreBLEU (Post 2018, https://aclanthology.org/W18-6319). Every sentence keeps the n-gram
counts that BLEU is made of, so the BLEU of any sample of sentences follows from sums.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.modes import device_of
from ..core.paths import home_path
from ..errors import DataError, ParameterError, shorten
from ..models.loading import longest_input
from ..runs.result import Columns, Metric
from .base import Array, register
from .batching import Batch
from .encoding import IGNORED, Example, Row, check_room, chunks
from .hubdata import HubData
from .language_modeling import mean_loss, perplexity, row_losses
from .metrics import mean_of, mean_ratio
from .reading import find_file, lines, require_parallel, warn_once

ORDERS = (1, 2, 3, 4)
_VALIDATION, _TEST = ("validation", "val", "valid", "dev"), ("test2016", "test_2016_flickr")
SPLITS = {**dict.fromkeys(_VALIDATION, _VALIDATION), "test": ("test", *_TEST), "test2016": _TEST}
"""What the files of a split may be called where they are not called like the split itself."""
_FACTS = 3  # numbers in front of the token numbers of an output


def bleu(columns: Columns) -> NDArray[np.float64]:
    """Corpus BLEU from the n-gram counts of sentences ``[..., N]``, smoothed as sacreBLEU does by default (``exp``)."""
    total = {name: np.sum(column, axis=-1, dtype=np.float64) for name, column in columns.items()}
    length, reference = total["length"], total["reference_length"]
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(length < reference, 1 - reference / length, 0.0)
        halves = np.ones_like(length)
        for order in ORDERS:
            matches, ngrams = total[f"matches_{order}"], total[f"ngrams_{order}"]
            halves = np.where(matches > 0, halves, 2 * halves)
            score = score + np.log(np.where(matches > 0, matches, 1 / halves) / ngrams) / len(ORDERS)
        # Without a single match there is nothing to smooth; a corpus of shorter sentences than n words has no n-grams.
        some = np.any([total[f"matches_{order}"] > 0 for order in ORDERS], axis=0)
        scored = some & (total[f"ngrams_{ORDERS[-1]}"] > 0)
        return np.asarray(np.where(scored, 100.0 * np.exp(score), 0.0))


@dataclass(kw_only=True)
class ParallelText(HubData):
    """Base of the tasks with sentences in two languages, for encoder-decoder models such as Marian, T5 and BART.

    Columns, one value a sentence: ``loss`` (sum, in nats), ``tokens`` and ``right`` (predicted from the true ones).

    Parameters
    ----------
    data : a folder with ``SPLIT.SOURCE`` and ``SPLIT.TARGET`` (``train.de`` and ``train.en``), one sentence a line,
        plain or .gz; or the prefix of two such files, which are always read; None means the hub.
    source, target : the languages, as the files or the columns of the hub data are called.
    train_file, validation_file : prefix of two files of your own, or both paths with a comma between them.
    dataset, config : name and configuration of hub data.
    split : ``train``, ``validation``, ``test``, or any other name of files.
    lowercase : read all texts in lower case.
    prefix : what stands before every sentence of the source, as T5 needs it.
    """

    max_length: int = 128
    source: str = "de"
    target: str = "en"
    train_file: str | None = None
    validation_file: str | None = None
    dataset: str = "bentrevett/multi30k"
    config: str = ""
    lowercase: bool = False
    prefix: str = ""

    kind: ClassVar[str] = "seq2seq-lm"

    def __post_init__(self) -> None:
        self._tokenizer: Any = None
        if self.source == self.target:
            raise ParameterError(f"Source and target are both {self.source!r}; give two languages.")
        if self.layout:
            raise ParameterError(f"The task {self.registered_name} has no layouts; leave layout={self.layout!r} out.")

    def read(self) -> Iterator[Example]:
        """Yield every pair of sentences; pairs with an empty side are left out, and one line on the log says so."""
        empty = 0
        for pair in self._pairs():
            texts = tuple(text.strip().lower() if self.lowercase else text.strip() for text in pair)
            if all(texts):
                yield Example(texts)
            else:
                empty += 1
        if empty:
            warn_once(f"{empty:,} pairs of the {self.split} data have an empty side and are left out.")

    def files(self) -> tuple[Path, Path] | None:
        """The files of the source and the target; None for data of the hub."""
        given = {"train": self.train_file}.get(self.split, self.validation_file)
        if given is not None and "," in given:
            first, second = (home_path(part) for part in given.split(",", 1))
            return first, second
        path = given if given is not None else self.data
        if path is None:
            return None
        place = home_path(path)
        if given is None and place.is_dir():
            folder, names = place, SPLITS.get(self.split, (self.split,))
        else:
            folder, names = place.parent, (place.name,)
        found = [find_file([folder], self._names(names, language)) for language in (self.source, self.target)]
        if found[0] is None or found[1] is None:
            missing = " or ".join(f"{name}.{self.target if found[0] else self.source}" for name in names)
            raise DataError(
                f"{folder} holds no {missing} (plain or .gz); check the path, the split ({self.split}) and the "
                f"languages (source={self.source}, target={self.target})."
            )
        return found[0], found[1]

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row a pair. Target: ``labels``, the tokens of the translation."""
        self._tokenizer = tokenizer  # outputs are token numbers, which only it can read
        check_room(tokenizer, max_length)
        place = 0
        for chunk in chunks(examples):
            options = {"truncation": True, "max_length": max_length}
            encoded = tokenizer([self.prefix + example.texts[0] for example in chunk], **options)
            labels = tokenizer(text_target=[example.texts[1] for example in chunk], **options)["input_ids"]
            for number in range(len(chunk)):
                inputs = {name: encoded[name][number] for name in ("input_ids", "attention_mask")}
                # An array, because it has a length of its own.
                yield Row(place, inputs, targets={"labels": np.asarray(labels[number], dtype=np.int64)})
                place += 1

    def check(self, model: nn.Module) -> None:
        """Refuse a model that does not translate."""
        config = getattr(model, "config", None)
        if not getattr(config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
            raise DataError(
                f"{type(model).__name__} is not an encoder-decoder model that writes text; the task "
                f"{self.registered_name} needs one, such as Marian, T5 or BART."
            )
        if getattr(config, "decoder_start_token_id", None) is None:
            raise DataError(
                f"The configuration of {type(model).__name__} has no decoder_start_token_id, so it does not say how a "
                "translation begins; set it."
            )

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """``labels [B, T]``, -100 behind the end of a translation."""
        return {"labels": batch.targets["labels"]}

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """With labels, the decoder reads the true translation; its mask tells attention which tokens are padding."""
        if "labels" not in inputs or "decoder_input_ids" in inputs:
            return super().arguments(inputs, model)
        labels, config = inputs["labels"], getattr(model, "config", None)
        shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            tokens = shift(labels=labels)
        else:  # a model without the head that writes
            start = torch.full_like(labels[:, :1], getattr(config, "decoder_start_token_id", None) or 0)
            tokens = torch.cat([start, labels[:, :-1]], 1)
            tokens = tokens.masked_fill(tokens == IGNORED, getattr(config, "pad_token_id", None) or 0)
        # The decoder reads one token behind its answer, so its input is real where its answer is.
        return {**inputs, "decoder_input_ids": tokens, "decoder_attention_mask": (labels != IGNORED).long()}

    def feed(self, model: nn.Module, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
        """Yield batches in which the decoder reads the true translation (for ``measure``)."""
        device = device_of(model)
        for batch in self.batches(tokenizer, longest_input(model, tokenizer)):
            inputs = {**batch.inputs, "labels": batch.targets["labels"]}
            given = self.arguments({name: tensor.to(device) for name, tensor in inputs.items()}, model)
            yield {name: tensor for name, tensor in given.items() if name != "labels"}

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Loss, tokens and right tokens of each sentence when the decoder reads the true translation, ``[B, 3]``."""
        given = self.arguments(inputs, model)
        labels = given.pop("labels")
        return row_losses(model(**given).logits, labels)

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """The sums of each sentence."""
        return {name: outputs[:, place].astype(np.float64) for place, name in enumerate(("loss", "tokens", "right"))}

    def _names(self, names: Iterable[str], language: str) -> list[str]:
        """What a file may be called: ``train.de``, or ``train.de-en.de`` as in IWSLT and WMT."""
        pairs = (f"{self.source}-{self.target}", f"{self.target}-{self.source}")
        return [file for name in names for file in (f"{name}.{language}", *(f"{name}.{p}.{language}" for p in pairs))]

    def _pairs(self) -> Iterator[tuple[str, str]]:
        files = self.files()
        if files is None:
            for row in self.hub_rows(self.dataset, self.config or None, self.split):
                yield self._hub_pair(row)
            return
        facts = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file())
        counts = line_counts(facts) if len(facts) == 2 else ()
        require_parallel(files, counts)
        yield from zip(*map(lines, files), strict=True)

    def _hub_pair(self, row: Mapping[str, Any]) -> tuple[str, str]:
        texts = row.get("translation", row)  # WMT keeps both languages in one column
        found = tuple(texts.get(language) for language in (self.source, self.target))
        if not all(isinstance(text, str) for text in found):
            raise DataError(
                f"{self.dataset} has no texts in {self.source!r} and {self.target!r} (it has "
                f"{shorten(', '.join(texts), str)}); set source and target."
            )
        return found[0], found[1]


@lru_cache(maxsize=32)
def line_counts(facts: tuple[tuple[Path, int, int], ...]) -> tuple[int, ...]:
    """How many lines files have; a file with another time or size is read anew."""
    return tuple(sum(1 for _ in lines(path)) for path, _, _ in facts)


@register("translation/loss")
@dataclass(kw_only=True)
class TranslationLoss(ParallelText):
    """How well a translation model predicts each next token of the true translation. Perplexity; faster than BLEU."""

    metrics: ClassVar[Mapping[str, Metric]] = {
        "perplexity": perplexity,
        "loss": mean_loss,
        "token-accuracy": mean_ratio("right", "tokens"),
    }
    smaller_is_better: ClassVar[frozenset[str]] = frozenset({"perplexity", "loss"})

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """How much the loss of a sentence moved up or down, in nats a token."""
        return {"shift": float(np.abs(outputs[:, 0] - unedited[:, 0]).sum() / outputs[:, 1].sum())}


@register("translation")
@dataclass(kw_only=True)
class Translation(ParallelText):
    """Translate sentences with beam search. BLEU of the whole, mean chrF of sentences, token accuracy and perplexity.

    Columns, one value a sentence: those of the loss, ``matches_1`` to ``matches_4`` and ``ngrams_1`` to ``ngrams_4``,
    ``length`` and ``reference_length`` (words), ``chrf``. The translations are the ``texts`` of a result.

    Parameters
    ----------
    beams : of the beam search; 1 takes the likeliest token at every step.
    max_new_tokens : longest translation, in tokens; it does not depend on the source, so that neither do the batches.
    length_penalty : above 0 favours longer translations, below 0 shorter ones.
    tokenize : how sacreBLEU finds words: ``13a``, ``intl``, ``char``, ``none`` and so on.
    """

    beams: int = 4
    max_new_tokens: int = 128
    length_penalty: float = 1.0
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"

    metrics: ClassVar[Mapping[str, Metric]] = {
        "bleu": bleu,
        "chrf": mean_of("chrf"),
        "token-accuracy": mean_ratio("right", "tokens"),
        "perplexity": perplexity,
    }
    smaller_is_better: ClassVar[frozenset[str]] = frozenset({"perplexity"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beams", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ParameterError(f"The option {name} must be at least 1, not {getattr(self, name)}.")
        if not math.isfinite(self.length_penalty):
            raise ParameterError(f"The length penalty must be a number, not {self.length_penalty}.")
        if self.beams == 1 and self.length_penalty != 1.0:
            raise ParameterError("A length penalty chooses between beams, and there is one; leave it out.")

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Loss, tokens, right tokens, and the tokens of the translation, ``[B, 3 + max_new_tokens]``; -1 is none."""
        facts = super().run(model, inputs)
        written = self._generate(model, inputs)[:, 1:]  # without the token that every translation begins with
        padding = self._tokenizer.pad_token_id
        result = facts.new_full((len(facts), _FACTS + self.max_new_tokens), -1.0)
        result[:, :_FACTS] = facts
        result[:, _FACTS : _FACTS + written.shape[1]] = torch.where(written == padding, -1, written).double()
        return result

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Compare each translation with the true one."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        counter, characters = BLEU(tokenize=self.tokenize, effective_order=True), CHRF()
        rows = []
        for text, example in zip(self.written(outputs), self.examples(), strict=True):
            reference = [example.texts[1]]
            text = text.lower() if self.lowercase else text
            score = counter.sentence_score(text, reference)
            chrf = characters.sentence_score(text, reference).score / 100
            rows.append((*score.counts, *score.totals, score.sys_len, score.ref_len, chrf))
        names = [f"{what}_{order}" for what in ("matches", "ngrams") for order in ORDERS]
        table = np.array(rows, dtype=np.float64).T
        found = dict(zip([*names, "length", "reference_length", "chrf"], table, strict=True))
        return {**super().columns(outputs, labels), **found}

    def written(self, outputs: Array) -> list[str]:
        """The translations."""
        if self._tokenizer is None:
            raise DataError("The tokens of translations are read with their tokenizer; evaluate the model first.")
        tokens = [[int(token) for token in row[_FACTS:] if token >= 0] for row in outputs]
        texts: list[str] = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in texts]

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Per cent of sentences with the same translation."""
        same = (outputs[:, _FACTS:] == unedited[:, _FACTS:]).all(1)
        return {"agreement": 100.0 * float(np.mean(same))}

    def _generate(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        """Token numbers ``[B, 1 + length]``."""
        config = copy.deepcopy(model.generation_config)
        config.update(
            num_beams=self.beams,
            max_new_tokens=min(self.max_new_tokens, (longest_input(model) or math.inf) - 1),
            max_length=None,
            do_sample=False,
            length_penalty=self.length_penalty if self.beams > 1 else None,
            early_stopping=None if self.beams == 1 else False,
        )
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return model.generate(**given, generation_config=config)
