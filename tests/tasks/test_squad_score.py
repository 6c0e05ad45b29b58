"""SQuAD's scores: by hand, against torchmetrics, and on the official answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.tasks import load_task
from attrim.tasks.squad import accepted, best, exact_match, f1, normalize


def test_normalisation():
    assert normalize("The  Cat's, a(n) HAT!") == "cats hat"  # "a(n)" loses its brackets first and is then "an"
    assert normalize("an apple - the U.S.A.") == "apple usa"
    assert normalize("theatre and a") == "theatre and"
    assert accepted(["the", "!", "x"]) == ["x"]
    assert accepted(["a", "..."]) == accepted([]) == [""]


def test_scores_by_hand():
    assert exact_match("the Broncos", "Broncos!") == 1
    assert exact_match("Denver Broncos", "Broncos") == 0
    assert f1("Denver Broncos", "Broncos") == pytest.approx(2 / 3)
    assert f1("x x y", "x y y") == pytest.approx(2 / 3)
    assert f1("", "the") == 1
    assert f1("", "x") == f1("x", "") == f1("x", "y") == 0
    assert best(f1, "gold", ["silver", "gold medal", "gold"]) == 1


words = st.lists(st.sampled_from(["the", "a", "Cat", "cat", "hat.", "-", "U.S.", "x", "Ünder"]), max_size=5).map(
    " ".join
)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_scores_equal_torchmetrics(prediction, answers):
    """Where no gold answer is empty, which the official 1.1 script does not expect."""
    reference = pytest.importorskip("torchmetrics.functional.text").squad
    answers = [answer for answer in answers if normalize(answer)] or ["x"]
    target = {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "q"}
    expected = reference({"prediction_text": prediction, "id": "q"}, target)
    assert 100 * best(exact_match, prediction, answers) == pytest.approx(float(expected["exact_match"]))
    assert 100 * best(f1, prediction, answers) == pytest.approx(float(expected["f1"]))


@pytest.mark.parametrize(("split", "count", "empty"), [("validation", 10_570, 3), ("train-v1.1.part", 4_370, 0)])
def test_gold_answers_are_right(shared_data, split, count, empty):
    """Official counts; every answer stands where the data says and scores 100, but for three that are only a dot."""
    task = load_task("squad", data=str(shared_data / "squad"), split=split)
    questions = list(task.examples())
    assert len(questions) == len({question.name for question in questions}) == count
    dots = 0
    for question in questions:
        texts = [text for text, _ in question.answers]
        for text, start in question.answers:
            assert question.texts[1][start : start + len(text)] == text
            if normalize(text):
                assert best(exact_match, text, texts) == best(f1, text, texts) == 1
            else:
                dots += text == "."
                assert best(f1, text, texts) == 0
    assert dots == empty
