"""Settings of single layers that share the unedited first layers give what each of them gives alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attrim.core.text import parse_chain
from attrim.errors import DataError
from attrim.evaluation import evaluate_layers, evaluate_settings
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.run import Run
from attrim.tasks import Task, load_task

EDITS = (
    "threshold:0.05,layers=0",
    "threshold:0.05,layers=1",
    "gate:0,layers=1,heads=0",
    "hidden-threshold:0.5,layers=1",
)
SETTINGS = {text: parse_chain(text) for text in EDITS}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    paragraphs = [
        {"context": f"text {i} " * (i + 1), "qas": [{"question": f"which {i} {j}"} for j in range(3)]} for i in range(7)
    ]
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return load_task("retrieval", data=str(tmp_path), paragraphs=7, limit=15, batch_size=4)


def test_results_equal_those_of_settings_evaluated_alone(task: Task, tmp_path: Path) -> None:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    alone = evaluate_settings(model, task, tokenizer, SETTINGS)
    with Run.open(tmp_path / "runs", {"test": 1}) as run:
        together = evaluate_layers(model, task, tokenizer, SETTINGS, run=run)
        stored = run.settings()
    assert list(together) == ["unedited", *EDITS] == stored
    for name, result in together.items():
        assert np.array_equal(result.outputs, alone[name].outputs), name
        assert result.zero_share == alone[name].zero_share
        assert result.changes == alone[name].changes
        assert result.metrics == alone[name].metrics


def test_stored_settings_are_read(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    with Run.open(tmp_path / "runs", {"test": 1}) as run:
        first = evaluate_layers(model, task, tokenizer, dict(list(SETTINGS.items())[:2]), run=run)
        seen: list[str] = []
        import attrim.evaluation as module

        real = module._run_together
        monkeypatch.setattr(module, "_run_together", lambda *given: seen.extend(given[3]) or real(*given))
        second = evaluate_layers(model, task, tokenizer, SETTINGS, run=run)
    assert seen == list(EDITS[2:])
    assert all(second[name].metrics == result.metrics for name, result in first.items())


def test_the_name_of_the_unedited_model_is_kept(task: Task) -> None:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    with pytest.raises(DataError, match="kept for the model without edits"):
        evaluate_layers(model, task, tokenizer, {"unedited": parse_chain("gate:0")})
