"""Apps to ask: a small model without runs, and folders of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from attrim.measurement import measure
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
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of the heads study, which have orders of heads; one of them has averages, too."""
    folder = tmp_path_factory.mktemp("served")
    glue = write_sst2(folder / "glue", train=24, dev=12)
    bench = Bench("tiny-bert", task="glue/sst2", data=str(glue), output=folder / "runs", quiet=True)
    study = Heads(scores=("gradient-attention",), steps=(0.5,), directions=("smallest",), scopes=("dataset",))
    first = study.run(bench)
    study.run(dataclasses.replace(bench, seed=7))
    batches = bench.loaded_task.feed(bench.loaded_model, bench.loaded_tokenizer)
    measure(bench.loaded_model, batches, Mean()).save(first.folder / "averages")
    return folder / "runs"


@pytest.fixture(scope="session")
def equipped(runs: Path) -> LiveModel:
    """The tiny classifier with what the runs hold."""
    return LiveModel(Source("tiny-bert", kind="sequence-classification"), Catalogue([runs]))
