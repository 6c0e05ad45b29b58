"""Retrieval: ranks by hand, the chosen texts, and a real sentence encoder on SQuAD."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from attrim.errors import DataError
from attrim.models.loading import load_model, load_tokenizer
from attrim.tasks import load_task
from attrim.tasks.retrieval import mean_pool


@pytest.fixture
def squad(tmp_path):
    """Ten paragraphs of four questions each."""
    paragraphs = [
        {"context": f"paragraph {i}", "qas": [{"question": f"question {i} {j}"} for j in range(4)]} for i in range(10)
    ]
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(tmp_path)


def test_questions_belong_to_their_paragraphs(squad):
    examples = list(load_task("retrieval", data=squad, paragraphs=6, limit=9).examples())
    paragraphs = [e.texts[0] for e in examples if e.label == -1]
    questions = [(e.texts[0], int(e.label)) for e in examples if e.label >= 0]
    assert len(set(paragraphs)) == 6
    assert len(set(questions)) == 9
    for text, place in questions:
        assert text.split()[1] == paragraphs[place].split()[1]
    again = list(load_task("retrieval", data=squad, paragraphs=6, limit=9).examples())
    other = list(load_task("retrieval", data=squad, paragraphs=6, limit=9, seed=5).examples())
    assert again == examples != other


def test_few_paragraphs_of_each_article(tmp_path):
    articles = [
        {"paragraphs": [{"context": f"{title} {i}", "qas": [{"question": f"{title}?"}]} for i in range(size)]}
        for title, size in {"long": 40, "short": 3, "other": 9}.items()
    ]
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": articles}))
    task = load_task("retrieval", data=str(tmp_path), paragraphs=7, per_article=2, limit=5)
    with pytest.raises(DataError, match="There are 6 paragraphs"):
        list(task.examples())
    chosen = [
        [
            e.texts[0]
            for e in load_task(
                "retrieval", data=str(tmp_path), paragraphs=6, per_article=2, limit=5, seed=seed
            ).examples()
            if e.label == -1
        ]
        for seed in (0, 1)
    ]
    assert chosen[0] != chosen[1]
    assert [text.split()[0] for text in chosen[0]] == ["long", "long", "short", "short", "other", "other"]


def test_ranks_by_hand():
    """Three paragraphs on the axes; a tie with the right paragraph counts against it."""
    labels = np.array([-1.0, -1.0, -1.0, 0.0, 1.0, 2.0])
    outputs = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.9, 0.4, 0.1], [0.9, 0.4, 0.1], [0.9, 0.1, 0.1]])
    task = load_task("retrieval")
    columns = task.columns(outputs, labels)
    assert columns["rank"].tolist() == [1, 2, 3]
    assert task.hits(columns).tolist() == [True, False, False]
    assert task.score(columns) == pytest.approx({"top-1": 100 / 3, "top-5": 100.0})
    turned = outputs.copy()
    turned[0] = [0, 1, 0]
    assert task.distances(turned, outputs, labels)["cosine"] == pytest.approx(2 / 3)


def test_pooling_ignores_padding():
    hidden = torch.tensor([[[1.0, 3.0], [3.0, 5.0], [99.0, 99.0]]])
    assert mean_pool(hidden, torch.tensor([[1, 1, 0]])).tolist() == [[2.0, 4.0]]


def test_embeddings_do_not_depend_on_the_batch(squad):
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    whole, single = (
        {
            int(index): row
            for batch in load_task("retrieval", data=squad, paragraphs=4, limit=8, batch_size=size).batches(tokenizer)
            for index, row in zip(batch.index, load_task("retrieval").run(model, batch.inputs), strict=True)
        }
        for size in (12, 1)
    )
    for index, row in single.items():
        assert torch.allclose(row, whole[index], atol=1e-5)
        assert float(row.detach().norm()) == pytest.approx(1.0, abs=1e-5)


def test_too_few_texts(squad):
    with pytest.raises(DataError, match="There are 10 paragraphs"):
        list(load_task("retrieval", data=squad, paragraphs=11).examples())


def test_all_questions_are_asked_where_they_are_fewer_than_the_limit(squad):
    examples = list(load_task("retrieval", data=squad, paragraphs=2, limit=9).examples())
    assert [example.label for example in examples].count(-1.0) == 2
    assert len(examples) == 2 + 8
