"""SQuAD: answers of a model that knows them, questions without answer, and real models, trained and not."""

from __future__ import annotations

import pytest
import torch

from attrim.edits.threshold import Threshold
from attrim.errors import DataError
from attrim.evaluation import evaluate
from attrim.tasks import load_task
from squads import LONG, TOKENIZER, Knows, answered, squad


@pytest.mark.parametrize("normalize_windows", [False, True])
def test_a_model_that_knows(tmp_path, normalize_windows):
    """The answer lies in one of several windows, in a long paragraph and in a short one."""
    data = squad(
        tmp_path,
        [(LONG, [("Who?", ["Ada Lovelace"]), ("And?", ["fox"])]), ("Ada Lovelace was born.", [("Who?", ["Ada"])])],
    )
    task = load_task("squad", data=data, max_length=120, stride=30, batch_size=3, normalize_windows=normalize_windows)
    task.max_question_length = 16
    outputs, labels = answered(task, Knows("Ada Lovelace"))
    assert len(outputs) > 10
    assert task.answers(outputs, labels) == {"q0": "Ada Lovelace", "q1": "Ada Lovelace", "q2": "Ada Lovelace"}
    columns = task.columns(outputs, labels)
    assert columns["exact_match"].tolist() == [1, 0, 0]
    assert columns["f1"].tolist() == pytest.approx([1, 0, 2 / 3])
    assert LONG[int(columns["start"][0]) : int(columns["end"][0])] == "Ada Lovelace"
    assert task.hits(columns).tolist() == [True, False, False]
    assert task.distances(outputs, outputs, labels) == {"agreement": 100.0}
    listed = task.best_answers(outputs, labels)["q0"]
    assert (listed[0]["text"], len(listed)) == ("Ada Lovelace", 20)
    assert sum(answer["probability"] for answer in listed) == pytest.approx(1)
    task.max_answer_length = 5
    assert "Ada Lovelace" not in task.answers(*answered(task, Knows("Ada Lovelace"))).values()


def test_whole_words(tmp_path):
    task = load_task("squad", data=squad(tmp_path, [("One (two)\nthree.", [("?", ["two"])])]), whole_words=True)
    assert task.answers(*answered(task, Knows("wo)\nth"))) == {"q0": "(two) three."}


def test_questions_without_answer(tmp_path):
    data = squad(tmp_path, [("The fox is red.", [("Colour?", ["red"]), ("Age?", [])])], "dev-v2.0.json")
    task = load_task("squad-v2", data=data)
    for nothing, expected in ((4.0, ["red", "red"]), (6.0, ["", ""])):
        outputs, labels = answered(task, Knows("red", nothing=nothing))
        assert list(task.answers(outputs, labels).values()) == expected
        columns = task.columns(outputs, labels)
        assert columns["exact_match"].tolist() == [
            float(text == gold) for text, gold in zip(expected, ("red", ""), strict=True)
        ]
        assert (columns["start"] < 0).tolist() == [not text for text in expected]
    task.no_answer_threshold = 2.5
    assert list(task.answers(*answered(task, Knows("red", nothing=6.0))).values()) == ["red", "red"]
    with pytest.raises(DataError, match=r"'q1' has no answer; use the task squad-v2"):
        list(load_task("squad", data=f"{data}/dev-v2.0.json").examples())


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta", "tiny-gpt2", "tiny-bart", "tiny-t5"])
def test_tiny_models(tmp_path, name):
    data = squad(tmp_path, [(LONG, [("Who?", ["Ada Lovelace"]), ("What?", ["fox"])]), ("A cat.", [("?", ["cat"])])])
    task = load_task("squad", data=data, max_length=150, stride=20, batch_size=4)
    model = task.load_model(name)
    result = evaluate(model, task, TOKENIZER, Threshold(0.02))
    assert 0 < result.zero_share < 1
    assert len(result.columns["f1"]) == 3
    assert set(result.metrics) == {"exact-match", "f1"}
    inputs = next(iter(task.train_batches(TOKENIZER, model)))
    assert torch.isfinite(model(**inputs).loss)
    fed = next(iter(task.feed(model, TOKENIZER)))
    assert "offsets" not in fed
    model(**fed)


def test_training_learns_the_answer(tmp_path):
    """A few steps on one question lower the loss and bring the right span to the top."""
    task = load_task("squad", data=squad(tmp_path, [("The fox is red.", [("Colour?", ["red"])])]))
    model = task.load_model("tiny-bert").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(30):
        [inputs] = list(task.train_batches(TOKENIZER, model, epoch=epoch))
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert evaluate(model, task, TOKENIZER).metrics == {"exact-match": 100.0, "f1": 100.0}
