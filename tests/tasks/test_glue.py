"""GLUE: every file format, the official counts, and models whose labels do not fit."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from attrim.errors import DataError, UnknownName
from attrim.models.loading import load_model
from attrim.tasks import TASKS, load_task
from attrim.tasks.classify import label_order

COUNTS = [  # PROVENANCE.md of the shared data; CoLA, SST-2, RTE and STS-B are GLUE's own counts
    ("cola", "train", 8551, 6023),
    ("cola", "validation", 1043, 719),
    ("sst2", "train", 67349, 37569),
    ("sst2", "validation", 872, 444),
    ("sst2", "test", 1821, 904),
    ("sst2", "train_sentences_6920", 6920, 3610),
    ("mrpc", "train", 4076, 2753),
    ("mrpc", "test", 1725, 1147),
    ("rte", "train", 2490, 1241),
    ("rte", "validation", 277, 131),
]


@pytest.mark.parametrize(("name", "split", "count", "ones"), COUNTS)
def test_official_counts(shared_data, name, split, count, ones):
    labels = [e.label for e in load_task(f"glue/{name}", data=str(shared_data / "glue"), split=split).examples()]
    assert len(labels) == count
    assert labels.count(1.0) == ones


def test_similarity_scores(shared_data):
    for split, count in (("train", 5749), ("validation", 1500)):
        examples = list(load_task("glue/stsb", data=str(shared_data / "glue" / "STS-B"), split=split).examples())
        assert len(examples) == count
        assert {len(e.texts) for e in examples} == {2}
        assert all(e.label is not None and 0 <= e.label <= 5 for e in examples)


# The official files, in their column layouts: folder, file, content, expected texts and labels.
LAYOUTS = {
    "glue/cola": ("CoLA/dev.tsv", "gj04\t1\t\tA dog ran.\ngj04\t0\t*\tA dog run ed.\n", [("A dog ran.",)], [1, 0]),
    "glue/sst2": ("SST-2/dev.tsv", 'sentence\tlabel\nfine "film \t1\n', [('fine "film ',)], [1]),
    "glue/mrpc": (
        "MRPC/dev.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t1\t2\tx\ty\r\n",
        [("x", "y")],
        [0],
    ),
    "glue/stsb": (
        "STS-B/dev.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\to\ts\ts\tx\ty\t3.750\n",
        [("x", "y")],
        [3.75],
    ),
    "glue/qqp": (
        "QQP/dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tx?\ty?\t1\n1\t2\tbroken row\n",
        [("x?", "y?")],
        [1],
    ),
    "glue/mnli": (
        "MNLI/dev_matched.tsv",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
        "0\t1\t1n\tfiction\t(\t(\t(\t(\tx\ty\tneutral\tneutral\tneutral\tneutral\tentailment\tneutral\n",
        [("x", "y")],
        [1],
    ),
    "glue/mnli-mismatched": (
        "MNLI/dev_mismatched.tsv",
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tx\ty\tneutral\tcontradiction\n",
        [("x", "y")],
        [2],
    ),
    "glue/qnli": ("QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n0\tq?\ts\tnot_entailment\n", [("q?", "s")], [1]),
    "glue/rte": ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tx\ty\tentailment\n", [("x", "y")], [0]),
    "glue/wnli": ("WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tx\ty\t1\n", [("x", "y")], [1]),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_official_layouts(tmp_path, name, packed):
    place, content, texts, labels = LAYOUTS[name]
    path = tmp_path / place
    path.parent.mkdir()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content.encode()))
    else:
        path.write_bytes(content.encode())
    for data in (tmp_path, path.parent):
        examples = list(load_task(name, data=str(data)).examples())
        assert [e.label for e in examples] == labels
        assert [e.texts for e in examples][: len(texts)] == texts


def test_all_nine_are_covered():
    assert {name for name in TASKS if name.startswith("glue/")} == set(LAYOUTS)


def test_unlabelled_test_files_can_be_read_but_not_scored(tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tOne.\n1\tTwo.\n")
    task = load_task("glue/cola", data=str(tmp_path), split="test")
    assert [e.texts[0] for e in task.examples()] == ["One.", "Two."]
    with pytest.raises(DataError, match="2 of the 2 examples of glue/cola have no label"):
        task.columns(np.zeros((2, 2)), np.full(2, np.nan))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\nx\t7\n", "label '7'"),
        ("sentence\tlabel\nx\tgood\n", "label 'good'"),
        ("text\tlabel\nx\t1\n", "no column 'sentence'"),
        ("sentence\tlabel\nx\n", "Line 2 of .* has 1 columns, not 2"),
        ("sentence\tlabel\n", "found no examples"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "dev.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        list(load_task("glue/sst2", data=str(tmp_path)).examples())


def test_missing_files_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match=r"looked for dev\.tsv .*the folder has notes\.txt") as caught:
        list(load_task("glue/sst2", data=str(tmp_path)).examples())
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match="There is no folder"):
        list(load_task("glue/sst2", data=str(tmp_path / "none")).examples())
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\nx\t1\n" * 1000)[:40])
    with pytest.raises(DataError, match=r"dev\.tsv\.gz is damaged"):
        list(load_task("glue/sst2", data=str(tmp_path)).examples())


def test_unknown_options_and_names():
    with pytest.raises(DataError, match=r"no option 'splitt'; it has .*split"):
        load_task("glue/sst2", splitt="train")
    with pytest.raises(UnknownName, match="did you mean 'glue/sst2'"):
        load_task("glue/sst-2")


def test_labels_are_matched_by_name():
    names = ("entailment", "neutral", "contradiction")
    assert label_order({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, names, "m") == [2, 1, 0]
    assert label_order({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, names, "m") == [0, 1, 2]
    assert label_order({0: "not entailment", 1: "Entailment"}, ("entailment", "not_entailment"), "m") == [1, 0]
    with pytest.raises(DataError, match=r"3 labels .* but the task has 2"):
        label_order({0: "a", 1: "b", 2: "c"}, ("negative", "positive"), "m")
    with pytest.raises(DataError, match="are not those of the task"):
        label_order({0: "ham", 1: "spam"}, ("negative", "positive"), "m")


def test_logits_come_in_the_order_of_the_task():
    task = load_task("glue/mnli")
    model = task.load_model("tiny-bert")
    inputs = {"input_ids": torch.tensor([[2, 40, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    plain = task.run(model, inputs)
    model.config.id2label = {0: "contradiction", 1: "entailment", 2: "neutral"}
    assert torch.equal(task.run(model, inputs), plain[:, [1, 2, 0]])
    assert torch.equal(load_task("glue/mnli", label_order=(2, 0, 1)).run(model, inputs), plain[:, [2, 0, 1]])
    with pytest.raises(DataError, match="regression with one output"):
        load_task("glue/stsb").check(model)
    with pytest.raises(DataError, match="label_order must name"):
        load_task("glue/sst2", label_order=(0, 1)).check(model)
    with pytest.raises(DataError, match="no logits"):
        task.run(_without_head(), inputs)


def _without_head():
    model = load_model("tiny-bert")
    model.config.num_labels = 3
    return model


def test_distances_of_answers():
    logits, other = np.array([[0.0, 0.0], [0.0, 5.0]]), np.array([[0.0, np.log(3)], [5.0, 0.0]])
    moved = load_task("glue/sst2").distances(other, logits, np.zeros(2))
    gap = 1 / (1 + np.exp(-5)) - 1 / (1 + np.exp(5))
    assert moved == pytest.approx({"agreement": 0.0, "shift": (0.25 + gap) / 2})
    assert load_task("glue/stsb").distances(np.array([[1.0]]), np.array([[3.0]]), np.zeros(1)) == {"shift": 2.0}


def test_fingerprint_follows_the_chosen_examples(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "".join(f"text {i}\t{i % 2}\n" for i in range(50)))
    whole, few, same, others = (
        load_task("glue/sst2", data=str(tmp_path), limit=limit, seed=seed).fingerprint()
        for limit, seed in ((None, 1), (5, 1), (5, 1), (5, 2))
    )
    assert few == same
    assert len({whole, few, others}) == 3
