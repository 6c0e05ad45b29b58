"""``attrim score``: numbers for heads, and orders that other commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
from attrim.cli import main
from attrim.core.order import read_order
from attrim.models.tiny import tiny_tokenizer
from attrim.scores.base import Scores
from attrim.tasks.base import load_task
from one_letter import write_sst2


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    glue = write_sst2(tmp_path / "glue", train=8, dev=12)
    return ["score", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--quiet", "--batch-size", "5"]


def test_an_order_is_written_as_json_and_csv_and_edits_read_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--score", "gradient-attention", "--output", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    order = read_order(tmp_path / "out" / "order.json")
    assert order == read_order(tmp_path / "out" / "order.csv")
    task = load_task("glue/sst2", data=words[5])
    model = task.load_model("tiny-bert")
    expected = attrim.GradientAttention()(model, task.feed(model, tiny_tokenizer()))
    assert order == expected.order()
    evaluate = ["evaluate", *words[1:6], "--edit", f"gate:0,heads=@{tmp_path / 'out' / 'order.json'}:1/2", "--json"]
    assert main(evaluate) == 0
    (result,) = [each for name, each in json.loads(capsys.readouterr().out)["results"].items() if "gate" in name]
    assert result["zero_share"] == 0.5
    assert (tmp_path / "out" / "scores.png").exists()


def test_scores_of_examples_are_kept_as_tensors(words: list[str], tmp_path: Path, capsys: Any) -> None:
    score = "lrp:scope=example,unit=site"
    assert main([*words, "--score", score, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Relevance that arrives at the input, of 1: 1.0000" in printed
    assert "the mean over 12 examples" in printed
    kept = Scores.load(tmp_path / "out")
    assert kept.scope == "example"
    assert kept.options["unit"] == "site"
    assert [list(values.shape) for values in kept.values.values()] == [[12, 4], [12, 4]]
    assert all(torch.equal(values[:, :1].expand(12, 4), values) for values in kept.values.values())
    torch.testing.assert_close(kept.facts["lowest_total"], 1.0, rtol=0, atol=1e-4)
    assert read_order(tmp_path / "out" / "order.json") == kept.over_examples().order()


def test_json_and_scores_that_compare_with_a_constant(words: list[str], capsys: Any) -> None:
    assert main([*words, "--score", "divergence", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["order"]) == 8
    assert found["idle"] == []
    assert found["files"] == []


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("lambdas", "attrim constant --until order"),
        ("nonsense", "nonsense"),
        ("gradient-attention:target=7", "target=7 is not an answer"),
        ("confidence:cells=mean", "cells"),
    ],
)
def test_what_is_refused(words: list[str], score: str, message: str, capsys: Any) -> None:
    assert main([*words, "--score", score]) == 2
    assert message in capsys.readouterr().err


def test_damaged_scores_are_refused(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([*words, "--score", "random:seed=3", "--output", str(out)]) == 0
    index = json.loads((out / "scores.json").read_text())
    (out / "scores.json").write_text(json.dumps({**index, "name": "other"}))
    with pytest.raises(attrim.errors.ArtefactError, match="has changed since it was saved"):
        Scores.load(out)


def test_the_heads_study_reads_the_order_of_a_model_with_sites_without_influence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--task", "shapes", "--limit", "4"]
    assert main(["score", "shapes-lxmert-trained", *data, "--score", "lrp", "--output", str(tmp_path / "scored")]) == 0
    study = ["--scores", f"@{tmp_path / 'scored' / 'order.json'}", "--scopes", "dataset", "--steps", "0.5"]
    small = ["--score-examples", "4", "--formats", "png", "--output", str(tmp_path / "runs"), "--quiet"]
    assert main(["heads", "shapes-lxmert-trained", *data, *study, *small]) == 0, capsys.readouterr().err
