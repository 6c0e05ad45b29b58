"""The nine tasks of GLUE with their official metrics (Wang et al. 2019, https://arxiv.org/abs/1804.07461).

Data comes from the hub (``nyu-mll/glue``) or from a local folder in the standard file formats, plain or gzip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..intervals import Metric
from .base import register
from .gluedata import Files, Glue
from .metrics import accuracy, average, f1, matthews, of_labels, pearson, spearman

_F1_AND_ACCURACY = {"f1": of_labels(f1), "accuracy": of_labels(accuracy)}
_CORRELATIONS = {"pearson": of_labels(pearson), "spearman": of_labels(spearman)}


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
