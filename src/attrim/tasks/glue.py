"""The GLUE tasks (Wang et al. 2019, https://arxiv.org/abs/1804.07461), from the hub or from local files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..core.paths import home_path
from ..errors import DataError
from ..runs.result import Metric
from .base import register
from .classify import Classify
from .encoding import Example
from .hubdata import HubData
from .metrics import accuracy, average, f1, matthews, of_labels, pearson, spearman
from .reading import find_file, tsv_rows

Files = Mapping[str, tuple[tuple[str, ...], ...]]
HUB = "nyu-mll/glue"
_F1_AND_ACCURACY = {"f1": of_labels(f1), "accuracy": of_labels(accuracy)}
_CORRELATIONS = {"pearson": of_labels(pearson), "spearman": of_labels(spearman)}


@dataclass(kw_only=True)
class Glue(HubData, Classify):
    """Base of the GLUE tasks: where each keeps its texts and labels.

    Parameters
    ----------
    data : a folder with the task's files, or the folder above it (``glue/SST-2`` or ``glue``); None means the hub.
    split : ``train``, ``validation`` or ``test``; of a local folder also any other file (``train_sentences_6920``).
    min_words : leave out examples with fewer words, such as the short phrases of SST-2's training data.
    """

    max_length: int = 128
    min_words: int = 0

    folder: ClassVar[str]
    texts: ClassVar[tuple[str, ...]]  # columns of the local files
    hub_texts: ClassVar[tuple[str, ...]] = ()  # columns of the hub data, where they have other names
    target: ClassVar[str] = "label"
    header: ClassVar[tuple[str, ...] | None] = None  # for files that do not begin with their column names
    skip_short: ClassVar[bool] = False
    # For each split the file sets that may hold it; all files of a set belong together.
    files: ClassVar[Files] = {
        "train": (("train.tsv",),),
        "validation": (("dev.tsv",),),
        "test": (("test-labeled.tsv",), ("test.tsv",)),
    }

    def read(self) -> Iterator[Example]:
        """Yield the examples of the split from the local folder or the hub."""
        examples = self._from_hub() if self.data is None else self._from_files(home_path(self.data))
        for example in examples:
            if self.min_words <= 0 or len(" ".join(example.texts).split()) >= self.min_words:
                yield example

    def _from_files(self, data: Path) -> Iterator[Example]:
        for path in self._find(data):
            # The official test file of CoLA begins with column names although the others do not.
            header = None if path.name.startswith("test.tsv") else self.header
            for row in tsv_rows(path, header, self.skip_short):
                missing = [column for column in self.texts if column not in row]
                if missing:
                    raise DataError(
                        f"{path} has no column {missing[0]!r} (it has {', '.join(row)}); it is not {self.folder} data."
                    )
                yield Example(tuple(row[column] for column in self.texts), self._label(row.get(self.target), path))

    def _find(self, data: Path) -> list[Path]:
        if not data.is_dir():
            raise DataError(f"There is no folder {data}; give a folder with {self.folder} files as data.")
        folders = [data / self.folder, data / self.folder.lower(), data / self.registered_name.split("/")[1], data]
        folders = [folder for folder in folders if folder.is_dir()]
        sets = self.files.get(self.split, ((f"{self.split}.tsv",), (f"{self.split}.txt",)))
        for names in sets:
            found = [find_file(folders, [name]) for name in names]
            if all(found):
                return [path for path in found if path is not None]
        present = ", ".join(sorted(path.name for path in folders[0].iterdir()))
        wanted = " or ".join(" with ".join(names) for names in sets)
        raise DataError(
            f"There is no {self.split} split of {self.registered_name} in {folders[0]}: looked for {wanted} "
            f"(plain or .gz); the folder has {present or 'nothing'}."
        )

    def _label(self, text: str | None, path: Path) -> float | None:
        if text is None or text == "":
            return None
        if text in self.labels:
            return float(self.labels.index(text))
        try:
            number = float(text)
        except ValueError as error:
            raise DataError(f"{path} has the label {text!r}, which {self.registered_name} does not know.") from error
        if self.labels and number not in range(len(self.labels)):
            raise DataError(f"{path} has the label {text!r}, but {self.registered_name} has {len(self.labels)} labels.")
        return number

    def _from_hub(self) -> Iterator[Example]:
        for row in self.hub_rows(HUB, *self._hub_names()):
            label = row["label"]
            known = label is not None and (label >= 0 or not self.labels)  # the hub marks unknown labels by -1
            yield Example(
                tuple(row[column] for column in self.hub_texts or self.texts), float(label) if known else None
            )

    def _hub_names(self) -> tuple[str, str]:
        """The names of the configuration and the split on the hub."""
        return self.registered_name.split("/")[1], self.split


@register("glue/cola")
@dataclass(kw_only=True)
class Cola(Glue):
    """Is a sentence acceptable English? Matthews correlation."""

    folder: ClassVar[str] = "CoLA"
    texts: ClassVar[tuple[str, ...]] = ("sentence",)
    header: ClassVar[tuple[str, ...] | None] = ("source", "label", "star", "sentence")
    labels: ClassVar[tuple[str, ...]] = ("unacceptable", "acceptable")
    metrics: ClassVar[Mapping[str, Metric]] = {"matthews": of_labels(matthews)}
    files: ClassVar[Files] = {
        "train": (("train.tsv",), ("in_domain_train.tsv",)),
        "validation": (("dev.tsv",), ("in_domain_dev.tsv", "out_of_domain_dev.tsv")),
        "test": (("test.tsv",),),
    }


@register("glue/sst2")
@dataclass(kw_only=True)
class Sst2(Glue):
    """Is the feeling of a sentence about a film negative or positive? Accuracy."""

    folder: ClassVar[str] = "SST-2"
    texts: ClassVar[tuple[str, ...]] = ("sentence",)
    labels: ClassVar[tuple[str, ...]] = ("negative", "positive")


@register("glue/mrpc")
@dataclass(kw_only=True)
class Mrpc(Glue):
    """Do two sentences mean the same? F1 and accuracy.

    The raw files (``msr_paraphrase_*.txt``) have a train and a test split, no validation split.
    """

    folder: ClassVar[str] = "MRPC"
    texts: ClassVar[tuple[str, ...]] = ("#1 String", "#2 String")
    hub_texts: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    target: ClassVar[str] = "Quality"
    labels: ClassVar[tuple[str, ...]] = ("not_equivalent", "equivalent")
    metrics: ClassVar[Mapping[str, Metric]] = {**_F1_AND_ACCURACY, "combined": average(*_F1_AND_ACCURACY.values())}
    files: ClassVar[Files] = {
        "train": (("train.tsv",), ("msr_paraphrase_train.txt",)),
        "validation": (("dev.tsv",),),
        "test": (("msr_paraphrase_test.txt",), ("test.tsv",)),
    }


@register("glue/stsb")
@dataclass(kw_only=True)
class Stsb(Glue):
    """How similar are two sentences, from 0 to 5? Pearson and Spearman correlation."""

    folder: ClassVar[str] = "STS-B"
    texts: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    target: ClassVar[str] = "score"
    metrics: ClassVar[Mapping[str, Metric]] = {**_CORRELATIONS, "combined": average(*_CORRELATIONS.values())}


@register("glue/qqp")
@dataclass(kw_only=True)
class Qqp(Glue):
    """Do two questions ask the same? F1 and accuracy."""

    folder: ClassVar[str] = "QQP"
    texts: ClassVar[tuple[str, ...]] = ("question1", "question2")
    target: ClassVar[str] = "is_duplicate"
    labels: ClassVar[tuple[str, ...]] = ("not_duplicate", "duplicate")
    metrics: ClassVar[Mapping[str, Metric]] = Mrpc.metrics
    skip_short: ClassVar[bool] = True  # the official files have a few broken rows


@register("glue/mnli")
@dataclass(kw_only=True)
class Mnli(Glue):
    """Does a sentence follow from another, contradict it, or neither? Accuracy on genres seen in training."""

    folder: ClassVar[str] = "MNLI"
    texts: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    hub_texts: ClassVar[tuple[str, ...]] = ("premise", "hypothesis")
    target: ClassVar[str] = "gold_label"
    labels: ClassVar[tuple[str, ...]] = ("entailment", "neutral", "contradiction")
    part: ClassVar[str] = "matched"
    files: ClassVar[Files] = {
        "train": (("train.tsv",),),
        "validation": (("dev_matched.tsv",),),
        "test": (("test_matched.tsv",),),
    }

    def _hub_names(self) -> tuple[str, str]:
        return "mnli", self.split if self.split == "train" else f"{self.split}_{self.part}"


@register("glue/mnli-mismatched")
@dataclass(kw_only=True)
class MnliMismatched(Mnli):
    """MNLI on genres that training does not have. Accuracy."""

    part: ClassVar[str] = "mismatched"
    files: ClassVar[Files] = {
        "train": (("train.tsv",),),
        "validation": (("dev_mismatched.tsv",),),
        "test": (("test_mismatched.tsv",),),
    }


@register("glue/qnli")
@dataclass(kw_only=True)
class Qnli(Glue):
    """Does a sentence answer a question? Accuracy."""

    folder: ClassVar[str] = "QNLI"
    texts: ClassVar[tuple[str, ...]] = ("question", "sentence")
    labels: ClassVar[tuple[str, ...]] = ("entailment", "not_entailment")


@register("glue/rte")
@dataclass(kw_only=True)
class Rte(Glue):
    """Does a sentence follow from another? Accuracy."""

    folder: ClassVar[str] = "RTE"
    texts: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    labels: ClassVar[tuple[str, ...]] = ("entailment", "not_entailment")


@register("glue/wnli")
@dataclass(kw_only=True)
class Wnli(Glue):
    """Does a sentence with a pronoun replaced follow from the original? Accuracy."""

    folder: ClassVar[str] = "WNLI"
    texts: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    labels: ClassVar[tuple[str, ...]] = ("not_entailment", "entailment")
