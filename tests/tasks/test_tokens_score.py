"""Scores of tags: spans as the official scorer counts them, by hand, against seqeval, and against numbers it gave."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.tasks import load_task
from attrim.tasks.tokens import spans, to_iob2
from tagged import FILE


def test_spans_by_hand():
    assert to_iob2(["I-PER", "I-PER", "B-PER", "I-ORG", "O", "I-ORG"]) == [
        "B-PER", "I-PER", "B-PER", "B-ORG", "O", "B-ORG",
    ]  # fmt: skip
    assert spans(["B-PER", "I-PER", "O", "I-LOC"]) == {("PER", 0, 2), ("LOC", 3, 4)}
    assert spans(["B-PER", "B-PER", "I-LOC"]) == {("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)}
    assert spans(["O", "O"]) == spans([]) == set()


# What get_entities of seqeval 1.2.2 gives, so that these hold where it is not installed.
ENTITIES = {
    "I-PER I-PER O I-LOC": {("PER", 0, 2), ("LOC", 3, 4)},
    "B-PER B-PER I-LOC": {("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)},
    "O I-PER I-LOC I-LOC B-LOC": {("PER", 1, 2), ("LOC", 2, 4), ("LOC", 4, 5)},
    "B-LOC I-PER O O I-PER": {("LOC", 0, 1), ("PER", 1, 2), ("PER", 4, 5)},
}


@pytest.mark.parametrize("sequence", ENTITIES)
def test_spans_that_seqeval_gave(sequence):
    assert spans(sequence.split()) == ENTITIES[sequence]


tags = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])


@given(st.lists(tags, max_size=12))
def test_spans_are_those_of_seqeval(sequence):
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities(sequence)
    assert spans(sequence) == {(kind, first, last + 1) for kind, first, last in entities}


@given(st.lists(tags, max_size=12))
def test_iob2_keeps_spans(sequence):
    tidy = to_iob2(sequence)
    assert spans(tidy) == spans(sequence)
    assert to_iob2(tidy) == tidy
    begins = sum(tag.startswith("B-") for tag in tidy)
    assert begins == len(spans(sequence))


def outputs(task, *sentences):
    """Outputs of a model that says these tags."""
    table = np.full((len(sentences), task.max_length), -1.0)
    for row, sentence in zip(table, sentences, strict=True):
        row[: len(sentence)] = [task.labels.index(tag) for tag in sentence]
    return table


def test_scores_by_hand(tmp_path):
    """Truth: ORG, MISC in the first sentence; PER of two words and PER in the second."""
    (tmp_path / "eng.testa").write_text(FILE)
    task = load_task("tokens/ner", data=str(tmp_path))
    said = outputs(task, ["B-ORG", "O", "O", "B-LOC"], ["I-PER", "I-PER", "B-PER"])
    columns = task.columns(said, np.arange(2.0))
    assert {name: column.tolist() for name, column in columns.items()} == {
        "hits": [1, 2], "predicted": [2, 2], "true": [2, 2], "right": [2, 2], "words": [4, 3],
    }  # fmt: skip
    assert task.score(columns) == pytest.approx(
        {"f1": 75.0, "precision": 75.0, "recall": 75.0, "accuracy": 100 * 4 / 7}
    )
    nothing = task.columns(outputs(task, ["O"] * 4, ["O"] * 3), np.arange(2.0))
    assert task.score(nothing) == pytest.approx({"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 200 / 7})
    cut = task.columns(outputs(task, ["B-ORG"], []), np.arange(2.0))  # words that were cut off count as wrong
    assert task.score(cut) == pytest.approx({"f1": 40.0, "precision": 100.0, "recall": 25.0, "accuracy": 100 / 7})
    assert task.distances(said, said, np.zeros(2)) == {"agreement": 100.0}


def scores(truth, said):
    """The task's metrics of tags that a model said, by sentence."""
    task = load_task("tokens/ner")
    rows = [
        task._compare(output, tuple(task.labels.index(tag) for tag in right))
        for output, right in zip(outputs(task, *said), truth, strict=True)
    ]
    return task.score({name: np.array([row[name] for row in rows]) for name in rows[0]})


@given(st.lists(st.tuples(tags, tags), min_size=1, max_size=30), st.integers(1, 30))
def test_scores_are_those_of_seqeval(pairs, border):
    metrics = pytest.importorskip("seqeval.metrics")
    sentences = [part for part in (pairs[:border], pairs[border:]) if part]
    truth = [to_iob2([tag for tag, _ in part]) for part in sentences]
    said = [[tag for _, tag in part] for part in sentences]
    found = scores(truth, said)
    assert found["f1"] == pytest.approx(100 * metrics.f1_score(truth, said, zero_division=0))
    assert found["precision"] == pytest.approx(100 * metrics.precision_score(truth, said, zero_division=0))
    assert found["recall"] == pytest.approx(100 * metrics.recall_score(truth, said, zero_division=0))
    assert found["accuracy"] == pytest.approx(100 * metrics.accuracy_score(truth, said))


# Sentences (separated by a bar), then precision, recall, F1 and accuracy as seqeval 1.2.2 computed them.
SEQEVAL = [
    ("B-PER I-PER O B-LOC", "B-PER O O B-LOC", 50.0, 50.0, 50.0, 75.0),
    ("B-PER I-PER O B-LOC", "I-PER I-PER O I-LOC", 100.0, 100.0, 100.0, 50.0),
    ("B-PER I-PER I-PER O", "B-PER I-LOC I-PER O", 0.0, 0.0, 0.0, 75.0),
    ("B-PER B-PER O|B-LOC I-LOC", "B-PER I-PER O|I-LOC B-LOC", 0.0, 0.0, 0.0, 40.0),
    ("B-PER|B-PER", "O|B-PER", 100.0, 50.0, 66.666667, 50.0),
    ("O O", "B-PER I-PER", 0.0, 0.0, 0.0, 0.0),
    ("B-LOC O", "O O", 0.0, 0.0, 0.0, 50.0),
]


@pytest.mark.parametrize(("truth", "said", "precision", "recall", "f1", "accuracy"), SEQEVAL)
def test_scores_that_seqeval_gave(truth, said, precision, recall, f1, accuracy):
    found = scores(*([sentence.split() for sentence in text.split("|")] for text in (truth, said)))
    assert found == pytest.approx({"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}, abs=1e-5)


def test_scores_that_seqeval_gave_for_many_sentences():
    """Sixty random sentences, 475 words, of which three in ten have another tag."""
    generator, known = random.Random(7), ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    truth, said = [], []
    for _ in range(60):
        right = to_iob2([generator.choice(known) for _ in range(generator.randint(1, 15))])
        truth.append(right)
        said.append([tag if generator.random() < 0.7 else generator.choice(known) for tag in right])
    assert sum(map(len, truth)) == 475
    assert scores(truth, said) == pytest.approx(
        {"precision": 72.807018, "recall": 77.570093, "f1": 75.113122, "accuracy": 77.263158}, abs=1e-5
    )
