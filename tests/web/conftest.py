"""Apps to ask: a small model without runs, and folders of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

from attrim.measurement import measure
from attrim.models.tiny import tiny_tokenizer
from attrim.stats.mean import Mean
from attrim.studies.bench import Bench, Source
from attrim.studies.heads import Heads
from attrim.web.catalogue import Catalogue
from attrim.web.live import LiveModel
from one_letter import write_sst2
from served import client


@pytest.fixture(scope="session")
def classifier() -> LiveModel:
    """A tiny model that labels texts."""
    return LiveModel(Source("tiny-bert", kind="sequence-classification"), Catalogue([]))


@pytest.fixture(scope="session")
def writer() -> LiveModel:
    """A tiny language model."""
    return LiveModel(Source("tiny-gpt2", kind="causal-lm"), Catalogue([]))


@pytest.fixture(scope="session")
def seer() -> LiveModel:
    """A trained model that answers questions about pictures of shapes."""
    return LiveModel(Bench("shapes-lxmert-trained", task="shapes", quiet=True), Catalogue([]))


@pytest.fixture
def ask(classifier: LiveModel) -> Iterator[TestClient]:
    """A client of the tiny classifier."""
    with client(classifier) as made:
        yield made


@pytest.fixture(scope="session")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small classifier whose weights are so large that every edit changes its answer."""
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "lively"
    tokenizer = tiny_tokenizer()
    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=24, num_labels=2, initializer_range=0.4)  # fmt: skip
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, lively: Path) -> Path:
    """A folder with two runs of the heads study, which have orders of heads; one of them has averages, too."""
    folder = tmp_path_factory.mktemp("served")
    glue = write_sst2(folder / "glue", train=24, dev=12)
    bench = Bench(str(lively), task="glue/sst2", data=str(glue), output=folder / "runs", quiet=True)
    study = Heads(scores=("gradient-attention",), steps=(0.5,), directions=("smallest",), scopes=("dataset",))
    first = study.run(bench)
    study.run(dataclasses.replace(bench, seed=7))
    texts = ["A text that is long enough for all tests.", "Another one, of another length, for the averages."]
    batches = [dict(bench.loaded_tokenizer(text, return_tensors="pt")) for text in texts]
    measure(bench.loaded_model, batches, Mean()).save(first.folder / "averages")
    return folder / "runs"


@pytest.fixture(scope="session")
def equipped(runs: Path, lively: Path) -> LiveModel:
    """The small classifier with what the runs hold."""
    return LiveModel(Source(str(lively), kind="saved"), Catalogue([runs]))
