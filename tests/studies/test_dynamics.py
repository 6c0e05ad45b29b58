"""The dynamics studies on the command line and in Python: they run, resume, are read back, and refuse bad input."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import attrim
from attrim.cli import main
from attrim.errors import DataError, ParameterError
from attrim.runs.files import replace_tensors
from attrim.studies.dynamics import (
    checkpoint_runs,
    copying,
    copying_runs,
    corpora,
    probes,
    proxies,
    text_runs,
    trainings,
)  # fmt: skip
from attrim.studies.dynamics.checkpoint_study import DynamicsCheckpoints, find_checkpoints
from attrim.studies.dynamics.copying import Evaluated, Training
from attrim.studies.dynamics.copying_runs import Screened
from attrim.studies.dynamics.generated import Copying
from attrim.studies.dynamics.interventions import PairReference, ProxyLoss, SteeredLoss, WordReference
from attrim.studies.dynamics.study import DynamicsCopy, DynamicsMultihead, GeneratedBench
from attrim.studies.dynamics.text_studies import DynamicsClassify, DynamicsTranslate, TextBench

SMALL = {"steps": 4, "hidden_dim": 8, "batch_size": 4, "save_every": 2}


def bench(tmp_path: Path) -> GeneratedBench:
    return GeneratedBench(output=tmp_path / "runs", workers=1, quiet=True)


def test_copying_runs_and_is_read_back(tmp_path: Path) -> None:
    study = DynamicsCopy(
        conditions=("5-of-5", "5-of-8"), seeds=(0, 1), interventions=("none", "uniform", "supervised"), **SMALL
    )
    found = study.run(bench(tmp_path))
    assert len(found.courses) == 12
    assert [one.step for one in found.courses["5-of-5/none/0"]] == [0, 2, 4]
    assert attrim.findings(found.folder) == found
    assert found.ratios == {"5-of-5": 1.0, "5-of-8": 7 / 4}
    assert {chart.name for chart in found.charts()} == {
        "accuracy-of-seeds", "alignment-of-seeds", "beta-before-alpha", "ratio-against-success",
    }  # fmt: skip
    assert len(found.tables()[0].rows) == 6
    assert "attention is aligned in" in found.sentences()[0]
    log = found.data()["logs"]["5-of-8/none/1"][-1]
    assert {"step", "acc", "attn_acc", "attn_acc_m1", "attn_acc_p1"} <= set(log)


def test_copying_does_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    real = copying_runs.train

    def counted(training: Training) -> list[Evaluated]:
        done.append(training.seed)
        return real(training)

    monkeypatch.setattr(copying_runs, "train", counted)
    first = DynamicsCopy(conditions=("5-of-5",), seeds=(0, 1), **SMALL).run(bench(tmp_path))
    more = DynamicsCopy(conditions=("5-of-5",), seeds=(0, 1, 2), **SMALL).run(bench(tmp_path))
    assert done == [0, 1, 2]
    assert first.folder == more.folder
    assert more.courses["5-of-5/none/0"] == first.courses["5-of-5/none/0"]


def test_trainings_are_the_same_from_one_seed_in_any_process() -> None:
    training = Training(Copying(6, 5), 3, steps=4, hidden_dim=8, batch_size=4, evaluate_every=2)
    torch.manual_seed(1)
    first = copying.train(training)
    torch.manual_seed(2)
    from attrim.studies.dynamics.pool import spread

    short = Training(Copying(6, 5), 4, steps=2, hidden_dim=8, evaluate_every=2)
    both = dict(spread(copying.train, [training, short], 2))
    assert both[training] == first


def test_uniform_copying_keeps_attention_even() -> None:
    course = copying.train(Training(Copying(6, 5), 0, steps=4, hidden_dim=8, evaluate_every=2, uniform_steps=-1))
    assert [one.evenness for one in course] == pytest.approx([1.0] * 3, abs=1e-6)


def test_even_attention_for_the_first_steps_only() -> None:
    """With uniform attention for the first two of four steps, attention is trained in the last two only."""
    moved = []
    for steps in (2, 4):
        training = Training(Copying(6, 5), 0, steps=steps, hidden_dim=8, evaluate_every=2, uniform_steps=2)
        model = copying.build(training)
        before = model.cross_attention.parts()[0].query.weight.detach().clone()
        loss = SteeredLoss(model, training.uniform_steps)
        copying._loop(model, training.data, training, steps, 0, loss).run()
        moved.append(not torch.equal(before, model.cross_attention.parts()[0].query.weight))
    assert moved == [False, True]


def test_what_is_taught_before_is_knowledge_of_symbols() -> None:
    data = Copying(6, 6)
    taught = Training(data, 0, steps=2, hidden_dim=32, batch_size=32, learning_rate=5e-3, evaluate_every=2, taught=80)
    course = copying.train(taught)
    plain = copying.train(Training(data, 0, steps=2, hidden_dim=32, batch_size=32, evaluate_every=2))
    assert course[0].beta is not None
    assert plain[0].beta is not None
    assert course[0].beta > plain[0].beta + 0.2


def test_supervision_aligns_attention() -> None:
    options = {"steps": 60, "hidden_dim": 24, "batch_size": 32, "learning_rate": 5e-3, "evaluate_every": 60}
    course = copying.train(Training(Copying(6, 6), 0, supervise=2.0, **options))
    assert course[-1].aligned[0] > 0.9


def test_a_head_depends_on_its_number_alone() -> None:
    options = {"data": Copying(6, 5), "seed": 0, "hidden_dim": 8}
    one, several = (copying.build(Training(heads=heads, **options)) for heads in ((7,), (3, 7)))
    first, second = one.cross_attention.parts()[0], several.cross_attention.parts()[1]
    assert torch.equal(first.query.weight, second.query.weight)
    assert torch.equal(one.decoder.weight_hh_l0, several.decoder.weight_hh_l0)
    assert not torch.equal(second.query.weight, several.cross_attention.parts()[0].query.weight)


def test_the_three_arms() -> None:
    study = DynamicsMultihead(combinations=3, good=1, bad=8)
    verdicts = ["bad"] * 9 + ["good", "undecided"]
    screened = [Screened(head, (0.5,), verdict) for head, verdict in enumerate(verdicts)]
    found = copying_runs.arms(study, screened)
    assert {kind: len(networks) for kind, networks in found.items()} == {"all bad": 3, "one good": 3, "random": 3}
    assert all(len(set(heads)) == 8 for networks in found.values() for heads in networks)
    assert all(set(heads) <= set(range(9)) for heads in found["all bad"])
    assert all(set(heads) & {9} for heads in found["one good"])
    assert all(min(heads) >= copying_runs.RANDOM_HEADS for heads in found["random"])
    with pytest.raises(DataError, match="screen more with --most-heads"):
        copying_runs.arms(study, screened[:5])


def test_multihead_screens_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bars that tiny networks reach: head 1 is made good, the others stay bad."""
    real = copying_runs.train

    def judged(training: Training) -> list[Evaluated]:
        course = real(training)
        if training.heads == (1,):
            course = [*course[:-1], Evaluated(**{**vars(course[-1]), "accuracy": 0.99})]
        return course

    monkeypatch.setattr(copying_runs, "train", judged)
    study = DynamicsMultihead(
        condition="5-of-5", heads=2, bad=2, combinations=1, arm_steps=4, evaluate_on=8, data_seeds=(0, 1), **SMALL
    )
    found = study.run(bench(tmp_path))
    # Four at a time; the fifth is not needed any more.
    assert [one.verdict for one in found.screened] == ["bad", "good", "bad", "bad"]
    assert {kind: len(networks) for kind, networks in found.arms.items()} == {"all bad": 1, "one good": 1, "random": 1}
    assert attrim.findings(found.folder) == found
    assert len(found.tables()) == 3
    assert [chart.name for chart in found.charts()] == ["arms", "every-network"]
    assert "one good head" in found.sentences()[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["copy", "--conditions", "24"], "LENGTH-of-SYMBOLS"),
        (["copy", "--conditions", "9-of-5"], "cannot be drawn without repetition"),
        (["copy", "--save-every", "500"], "past the last of 200 steps"),
        (["copy", "--ratios", "0.5"], "at least 1"),
        (
            ["copy", "--interventions", "uniform-first", "--uniform-steps", "200"],
            "--uniform-steps must be from 1 to 199",
        ),
        (["copy", "--seeds"], "at least one entry"),
        (["multihead", "--bad", "3"], "8 bad ones"),
        (["classify", "--datasets", "IMBD", "--data", "."], "did you mean 'IMDB'"),
        (["classify", "--datasets", "IMDB"], "give --data FOLDER"),
        (["classify", "--custom-saves", "5000"], "step 5000 is none of the 4000 steps"),
        (["classify", "--classes", "one"], "two labels"),
        (["translate", "--datasets", "iwslt14", "--data", "."], "cannot be had freely"),
        (["translate", "--train-file", "a.de"], "two files"),
        (["copi"], "did you mean 'copy'"),
        ([], "needs one of"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dynamics", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def write_texts(folder: Path, count: int = 60) -> None:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = [f"w{word}" for word in generator.integers(8, size=6)] + ["good" if number % 2 else "bad"]
        rows.append({"text": " ".join(words), "label": "pos" if number % 2 else "neg"})
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows[: count - 12])))
    (folder / "validation.jsonl").write_text("\n".join(map(json.dumps, rows[count - 12 :])))


def test_classification_from_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"include_kendall_tau": True, "include_train_results": True, "keep_models": True}
    study, place = tiny_classification(tmp_path, custom_saves=(1,), **options)
    found = study.run(place)
    # Two metrics, two splits, and two ways of choosing checkpoints.
    assert len(found.summaries) == 8
    one = found.summaries[0]
    assert one.alpha_course.steps == (0, 1, 3, 6)
    keys = {"unif", "px", "logistic", "counts", "grad", "normal"}
    assert set(one.courses) == keys
    released = found.data()["results"][0]
    assert {f"{kind}_{key}" for kind in ("agr", "xi") for key in keys} <= set(released)
    assert {"best_perf", "baseline", "alpha_corrs", "alpha_perfs", "iterations"} <= set(released)
    assert released["performance"] == "test_acc"
    assert set(released["details"]) == {*keys, "alpha"}
    assert all(one["interval"][0] <= one["maximum"] + 1e-9 for one in released["details"].values())
    assert one.agreements["normal"].value == pytest.approx(one.courses["normal"].maximum)
    assert one.agreements["alpha"].value == pytest.approx(one.alpha_course.maximum)
    assert attrim.findings(found.folder) == found
    assert [table.name for table in found.tables()] == ["agreements", "xi", "intervals", "courses"]
    assert len(found.charts()) == 3
    kept = found.folder / "trainings" / "train.jsonl" / "normal_A" / "models"
    assert sorted(path.name for path in kept.iterdir()) == [f"step-{step:06d}" for step in (0, 1, 3, 6)]
    # Nothing is trained again.
    monkeypatch.setattr(trainings, "build", lambda *_: pytest.fail("trained again"))
    assert study.run(place).summaries == found.summaries


def tiny_classification(tmp_path: Path, **changes: object) -> tuple[DynamicsClassify, TextBench]:
    write_texts(tmp_path)
    options = {
        "quick": True, "steps": 6, "save_every": 3, "custom_saves": (), "hidden_dim": 6, "intermediate_dim": 6,
        "word_dim": 6, "batch_size": 8, "other_seeds": (13, 14), "epochs": 2, "embed_dim": 8, "resamples": 20,
    }  # fmt: skip
    place = TextBench(
        output=tmp_path / "runs", workers=1, quiet=True, train_file=tmp_path / "train.jsonl",
        validation_file=tmp_path / "validation.jsonl",
    )  # fmt: skip
    return DynamicsClassify(**{**options, **changes}), place  # type: ignore[arg-type]


def test_interventions_on_classifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny_classification(tmp_path)[0].run(tiny_classification(tmp_path)[1])
    names = ("uniform-first", "taught", "supervised")
    study, place = tiny_classification(tmp_path, interventions=names, uniform_steps=3, taught_steps=5)
    # Proxies and ordinary runs are those that the run has; only the interventions are trained.
    monkeypatch.setattr(text_runs.proxies, "fit_classifier", lambda *_, **__: pytest.fail("fitted again"))
    trained: list[str] = []
    real = trainings.build
    monkeypatch.setattr(trainings, "build", lambda one, corpus: trained.append(one.name) or real(one, corpus))
    found = study.run(place)
    labels = ["uniform-first-3", "taught-5", "supervised-0.5"]
    assert trained == [f"{label}_{letter}" for label in labels for letter in "BC"]
    assert found.folder == plain.folder
    one = found.summaries[0]
    assert one.alpha_course == plain.summaries[0].alpha_course
    assert list(one.interventions) == labels
    # Before the first step, only what was taught differs from ordinary runs.
    assert one.interventions["uniform-first-3"].alpha.values[0] == one.alpha_course.values[0]
    assert one.interventions["supervised-0.5"].beta.values[0] == one.courses["normal"].values[0]
    table = next(table for table in found.tables() if table.name == "interventions")
    assert [row[1] for row in table.rows] == ["ordinary", *labels]
    assert "interventions-train.jsonl" in [chart.name for chart in found.charts()]
    assert set(found.data()["results"][0]["interventions"]) == set(labels)
    assert attrim.findings(found.folder) == found


def test_teaching_brings_beta_to_the_proxy_and_leaves_attention(tmp_path: Path) -> None:
    corpus = corpora.keywords(200, 20)
    words = torch.linspace(-2, 2, corpus.vocab_size, dtype=torch.float64)
    replace_tensors(tmp_path / "proxies.safetensors", {"px": words})
    training = trainings.ProbedTraining(
        "taught", tmp_path, tmp_path / "corpus.json", seed=1, steps=6, saves=(), batch_size=16, learning_rate=1e-2,
        sizes={"hidden_dim": 12, "intermediate_dim": 4, "embed_dim": 12}, taught_steps=60,
        proxy=tmp_path / "proxies.safetensors",
    )  # fmt: skip
    model = trainings.build(training, corpus)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    loss = ProxyLoss(words)
    batch = trainings.make_batch(corpus.validation, False)
    first = float(loss(model, batch).detach())
    trainings.teach(model, training, corpus)
    assert float(loss(model, batch).detach()) < 0.5 * first
    kept = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert kept == probes.attention_parameters(model)


def test_references_of_supervision() -> None:
    """A classifier is pulled to the real word that argues most for the label, a translator to the likeliest word."""
    ids = torch.tensor([[1, 3, 2], [1, 2, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([1, 0])}
    words = torch.tensor([-9.0, 0.5, -1, 2])
    assert WordReference(words)(inputs).argmax(-1).tolist() == [[1], [1]]
    bag = proxies.Bag(4, 4, 5)
    pairs = {**inputs, "labels": torch.tensor([[3, 1], [2, -100]])}
    examples = [([1, 3, 2], [0, 3, 1]), ([1, 2], [0, 2])]
    wanted = proxies.pair_readings(bag, examples).choices()
    found = PairReference(bag)(pairs)
    assert found.argmax(-1)[pairs["labels"] >= 0].tolist() == wanted.tolist()
    assert found.sum(-1).tolist() == [[1, 1], [1, 1]]


def test_even_first_steps_are_not_repeated_after_a_kill() -> None:
    model = copying.build(Training(Copying(6, 5), 0, hidden_dim=8))
    loss = SteeredLoss(model, uniform_steps=3)
    loss.done = 3
    again = SteeredLoss(model, uniform_steps=3)
    again.load(loss.state())
    batch = Copying(6, 5).batch(2, np.random.default_rng(0))
    again(model, batch).backward()
    assert model.cross_attention.parts()[0].query.weight.grad.any()


def test_a_run_with_bleu_is_another_one(tmp_path: Path) -> None:
    """Probes that were read without BLEU have none to show later."""
    assert "eval_bleu" not in DynamicsTranslate().identity()
    assert DynamicsTranslate(eval_bleu=True).identity()["eval_bleu"]


def test_a_killed_training_goes_on_with_the_same_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpora.keywords(80, 12)
    monkeypatch.setattr(trainings, "CHECKPOINTS", 2)

    def planned(name: str) -> trainings.ProbedTraining:
        trainings.save_corpus(corpus, tmp_path / "corpus.json")
        return trainings.ProbedTraining(
            name, tmp_path / name, tmp_path / "corpus.json", seed=1, steps=6, saves=(0, 3, 6), batch_size=8,
            learning_rate=1e-2, sizes={"hidden_dim": 4, "intermediate_dim": 4, "embed_dim": 4}, delta=True,
        )  # fmt: skip

    whole = planned("whole")
    trainings.train(whole)
    real = trainings.read_probes
    stopped = planned("stopped")

    def stop(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        if given[3] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainings, "read_probes", stop)
    with pytest.raises(KeyboardInterrupt):
        trainings.train(stopped)
    monkeypatch.setattr(trainings, "read_probes", real)
    trainings.train(stopped)
    for kind in ("alpha", "beta", "grad"):
        ours, theirs = (trainings.Trained(one).readings(kind, 6, "val") for one in (stopped, whole))
        assert np.array_equal(ours.scores, theirs.scores), kind


def test_translation_runs(tmp_path: Path) -> None:
    lines = [f"ein wort{number % 7} und wort{number % 5}" for number in range(60)]
    for split, part in (("train", lines[:48]), ("val", lines[48:])):
        (tmp_path / f"{split}.de").write_text("\n".join(part) + "\n")
        (tmp_path / f"{split}.en").write_text(
            "\n".join(line.replace("ein", "a").replace("und", "and") for line in part)
        )
    study = DynamicsTranslate(
        quick=True, steps=4, save_every=2, custom_saves=(), hidden_dim=6, vocabulary=300, batch_size=8, epochs=1,
        embed_dim=8, resamples=20, eval_bleu=True, test_set_size=6,
    )  # fmt: skip
    place = TextBench(
        output=tmp_path / "runs", workers=1, quiet=True, train_file=tmp_path / "train.de",
        validation_file=tmp_path / "val.de",
    )  # fmt: skip
    found = study.run(place)
    assert {one.performance for one in found.summaries} == {"acc", "bleu"}
    accuracy = found.summaries[0]
    assert set(accuracy.courses) == {"unif", "px", "counts", "grad", "normal"}
    assert 0 <= accuracy.best_perf <= 100
    predictions = accuracy.agreements["unif"].predictions
    corpus = study.corpora(place)[0]
    assert predictions == sum(len(target) - 1 for _, target in corpus.validation)


def test_the_released_format(tmp_path: Path) -> None:
    vocabulary = [f"word{number}" for number in range(9)]
    common = {"vocab": vocabulary, "XY": [[[1, 2, 3], 1], [[1, 2, 4], 0]] * 10}
    (tmp_path / "IMDB_train.json").write_text(json.dumps(common))
    (tmp_path / "IMDB_test.json").write_text(json.dumps({"vocab": ["other"] * 9, "XY": [[[1, 3, 8], 1]]}))
    corpus = corpora.read_classification("imdb", str(tmp_path))
    # Test ids are those of the training vocabulary, and a word that is rare there is unknown.
    assert [corpus.vocabulary[token] for token in corpus.validation[0][0]] == [
        "<bos>",
        "word1",
        "word3",
        "<unk>",
        "<eos>",
    ]
    assert len(corpus.training) + len(corpus.held_out) == 20
    (tmp_path / "IMDB_test.json").write_text(json.dumps({"vocab": vocabulary, "XY": [[[1], 3]]}))
    with pytest.raises(DataError, match="label 3, not 0 or 1"):
        corpora.read_classification("IMDB", str(tmp_path))
    (tmp_path / "IMDB_test.json").write_text(json.dumps({"vocab": vocabulary, "XY": [[[77], 1]]}))
    with pytest.raises(DataError, match="'vocab' does not have"):
        corpora.read_classification("IMDB", str(tmp_path))


def test_labels_that_are_not_two(tmp_path: Path) -> None:
    rows = [("one two three", label) for label in ("a", "b", "c")] * 4
    with pytest.raises(DataError, match="--classes FIRST SECOND"):
        corpora.classification("mine", rows, rows)
    reduced = corpora.classification("mine", rows, rows, classes=("a", "c"))
    assert len(reduced.validation) == 8


def test_own_tables(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('sentence\tlabel\nfine\t1\nso "so"\t0\n')
    (tmp_path / "b.csv").write_text('text,label\n"fine, really",1\n')
    (tmp_path / "c.tsv").write_text('sentence\tlabel\n"over\ntwo lines"\t1\n')
    assert corpora.read_texts(tmp_path / "a.tsv") == [("fine", "1"), ('so "so"', "0")]
    assert corpora.read_texts(tmp_path / "b.csv") == [("fine, really", "1")]
    assert corpora.read_texts(tmp_path / "c.tsv")[0][0].split() == ["over", "two", "lines"]


@pytest.mark.parametrize("name", ["SMS", "SNS", "AG_News", "Newsgroups"])
def test_published_sets_are_two_classes(name: str, shared_data: Path) -> None:
    corpus = corpora.read_classification(name, str(shared_data), size=50)
    assert {label for _, label in corpus.validation} == {0, 1}
    assert corpus.validation[0][0][0] == 1


def test_a_parameter_in_python_is_checked() -> None:
    with pytest.raises(ParameterError, match="at least one worker"):
        GeneratedBench(workers=0)
    with pytest.raises(ParameterError, match="--test-set-size must be at least 1"):
        DynamicsClassify(test_set_size=0)


@pytest.mark.slow
def test_copying_needs_symbols_that_tell_what_goes_with_what(tmp_path: Path) -> None:
    """Section 9 of the specification with 4 seeds: permutations do not align, the others do."""
    found = DynamicsCopy(seeds=(0, 1, 2, 3)).run(GeneratedBench(output=tmp_path, quiet=True))
    counts = {
        condition: sum(
            copying.aligned(course) for name, course in found.courses.items() if name.startswith(f"{condition}/")
        )
        for condition in found.ratios
    }
    assert counts["24-of-24"] <= 1
    assert counts["24-of-36"] >= 3
    assert counts["24-of-24-repeated"] >= 3


def _wait(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.slow
def test_workers_end_with_a_killed_study() -> None:
    """Otherwise they would train on beside the command that goes on, in the same folders."""
    code = (
        "from attrim.studies.dynamics.pool import spread\n"
        "from tests.studies.test_dynamics import _wait\n"
        "if __name__ == '__main__':\n"
        "    for _, pid in spread(_wait, [0.0, 0.01, 300.0, 300.1], 2): print(pid, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as study:
        assert study.stdout is not None
        workers = {int(study.stdout.readline()) for _ in range(2)}
        study.kill()
    waited = 0.0
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and waited < 60:
        time.sleep(0.5)
        waited += 0.5
    assert waited < 60


def test_every_flag_of_the_released_code_is_mapped() -> None:
    """The page names every option of the released programs, and every flag that it says is ours is there."""
    page = (Path(__file__).parents[2] / "docs" / "dynamics.md").read_text()
    table = page[page.index("## The released code and these commands") :]
    released = [
        "--seed",
        "--dataset",
        "--datasets",
        "--steps",
        "--uniform",
        "--config",
        "--test_set_size",
        "--save_every",
        "--custom_saves",
        "--bsize",
        "--epochs",
        "--embed_dim",
        "--lr",
        "--out_file",
        "--include_kendall_tau",
        "--include_train_results",
        "--eval_bleu",
        "--grad_bsize",
        "--include_train_subset",
        "--include_bleu_results",
        "--num_vocab",
        "--seq_length",
        "--bi",
        "--exp_name",
        "--steps_s1",
        "--hidden_dim",
        "--no_rep",
        "--invasive_uniform",
        "--early_stop",
        "--no_context",
    ]
    assert [flag for flag in released if not re.search(rf"{flag}(?![\w-])", table)] == []
    kinds = (DynamicsClassify, DynamicsTranslate, DynamicsCopy, DynamicsMultihead, TextBench)
    ours = {field.name for kind in kinds for field in dataclasses.fields(kind)} | {"json", "config"}
    right = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    named = {flag.replace("-", "_") for cell in right for flag in re.findall(r"--([a-z][a-z-]+)", cell)}
    assert named <= ours


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of a tiny model, and the data that it was trained on."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_texts(folder)
    words = ["train", "tiny-bert", "--task", "classification", "--data", str(folder), "--steps", "4", "--save-every"]
    assert main([*words, "2", "--batch-size", "8", "--output", str(folder / "runs"), "--quiet"]) == 0
    (run,) = (folder / "runs").iterdir()
    (run / "models").rename(folder / "models")
    return folder


def test_probes_of_the_heads_of_checkpoints(fine_tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = attrim.Bench(
        str(fine_tuned / "models"), task="classification", data=str(fine_tuned), limit=6, batch_size=4,
        select_layers=(0,), output=tmp_path / "runs", quiet=True,
    )  # fmt: skip
    study = DynamicsCheckpoints(beta_limit=3, resamples=20)
    found = study.run(place)
    assert found.accuracies.steps == (0, 2, 4)
    assert len(found.heads) == 4
    assert all(one.courses["alpha"].last == 1.0 for one in found.heads)
    assert all(one.last["beta"].predictions == 3 and one.last["delta"].predictions == 6 for one in found.heads)
    assert attrim.findings(found.folder) == found
    assert [chart.name for chart in found.charts()] == ["probes-over-steps", "beta-of-heads", "delta-of-heads"]
    monkeypatch.setattr(checkpoint_runs.probes, "betas", lambda *_: pytest.fail("read again"))
    assert study.run(place) == found


def test_checkpoints_of_several_runs(fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run as another one agrees with the first as that does with itself."""
    shutil.copytree(fine_tuned / "models", tmp_path / "again")
    place = attrim.Bench(
        str(fine_tuned / "models"), task="classification", data=str(fine_tuned), limit=6, batch_size=4,
        select_layers=(0,), output=tmp_path / "runs", quiet=True,
    )  # fmt: skip
    study = DynamicsCheckpoints(probes=("alpha", "delta"), resamples=20, other_folders=(str(tmp_path / "again"),))
    found = study.run(place)
    for one in found.heads:
        assert one.courses["others"] == one.courses["alpha"]
        step = one.courses["alpha"].crossing(one.courses["delta"].maximum)
        assert one.xi["delta"].step == step
    assert "highest others" in [column.name for column in found.tables()[0].columns]
    assert attrim.findings(found.folder) == found
    shutil.rmtree(tmp_path / "again" / "step-000002")
    words = ["dynamics", "checkpoints", str(fine_tuned / "models"), "--other-folders", str(tmp_path / "again")]
    assert main([*words, "--task", "classification", "--data", str(fine_tuned)]) == 2
    assert "keep the same steps of every run" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_finite(fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(fine_tuned / "models", tmp_path / "models")
    path = tmp_path / "models" / "step-000002" / "model.safetensors"
    tensors = load_file(path)
    save_file({name: torch.full_like(one, torch.nan) for name, one in tensors.items()}, path, {"format": "pt"})
    words = ["dynamics", "checkpoints", str(tmp_path / "models"), "--task", "classification", "--data"]
    assert main([*words, str(fine_tuned), "--output", str(tmp_path / "runs"), "--limit", "4"]) == 2
    assert "not finite" in capsys.readouterr().err


def test_beta_of_a_head_with_the_others_off(fine_tuned: Path) -> None:
    """With one head left on one key, a position that attends to nothing else gets the same output everywhere."""
    model = attrim.load_model(fine_tuned / "models" / "step-000004", "sequence-classification")
    batch = {"input_ids": torch.tensor([[2, 40, 41, 3]]), "labels": torch.tensor([1])}
    (site, *_) = attrim.sites(model)
    beside, alone = (probes.betas(model, [batch], [(site, 0)], how)[site, 0] for how in ("as-they-are", "ablated"))
    assert len(beside.scores) == len(alone.scores) == 4
    assert not np.allclose(beside.scores, alone.scores)


@pytest.mark.parametrize("others", ["as-they-are", "ablated"])
def test_beta_of_a_later_layer_is_that_of_a_whole_pass(fine_tuned: Path, others: probes.Others) -> None:
    """Layers before the head's are computed once for a batch; the result is that of computing them each time."""
    model = attrim.load_model(fine_tuned / "models" / "step-000004", "sequence-classification")
    tokens = torch.tensor([[2, 40, 41, 42, 3], [2, 43, 44, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([1, 0])}
    site = attrim.sites(model)[-1]
    assert site.layer > 0
    found = probes.betas(model, [batch], [(site, 1)], others)[site, 1].rows()
    off = attrim.Select(layers=[site.layer], heads=[head for head in range(site.heads) if head != 1])
    rest = [attrim.Gate(0.0, select=off)] if others == "ablated" else []
    for key in range(5):
        cells = torch.ones(1, 5, 5, dtype=torch.bool)
        cells[:, :, key] = False
        forced = attrim.Mask(cells, select=attrim.Select(layers=[site.layer], heads=[1]))
        with torch.no_grad(), attrim.edit(model, forced, *rest):
            logits = model(input_ids=tokens, attention_mask=mask).logits.log_softmax(-1)
        for row, gold in enumerate((1, 0)):
            if key < len(found[row]):
                assert found[row][key] == pytest.approx(float(logits[row, gold]), abs=1e-6)


def test_probes_of_a_language_model() -> None:
    model = attrim.load_model("tiny-gpt2", "causal-lm")
    tokens = torch.tensor([[2, 40, 41, 42, 3]])
    batch = {"input_ids": tokens, "labels": tokens}
    select = attrim.Select(layers=[0], heads=[1])
    alpha = probes.alpha(model, [batch], select)
    # The last token predicts nothing; a token attends to itself and to those before it.
    assert alpha.lengths.tolist() == [1, 2, 3, 4]
    delta = probes.delta(model, [batch])
    delta.fits(alpha)
    assert [row.sum() for row in alpha.rows()] == pytest.approx([1.0] * 4, abs=1e-5)


def test_probes_of_an_encoder_decoder() -> None:
    model = attrim.load_model("tiny-t5", "seq2seq-lm")
    batch = {"input_ids": torch.tensor([[40, 41, 42, 3]]), "labels": torch.tensor([[50, 51, 3]])}
    alpha = probes.alpha(model, [batch], attrim.Select(roles="cross", layers=[0], heads=[0]))
    assert alpha.lengths.tolist() == [4, 4, 4]
    assert probes.delta(model, [batch]).lengths.tolist() == [4, 4, 4]


def test_a_folder_without_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dynamics", "checkpoints", str(tmp_path), "--task", "classification", "--data", str(tmp_path)]) == 2
    assert "at least 2 are needed" in capsys.readouterr().err


def test_a_vocabulary_that_does_not_fit(fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForSequenceClassification

    from attrim.models.tiny import tiny_model

    shutil.copytree(fine_tuned / "models", tmp_path / "models")
    small = tiny_model("tiny-bert", AutoModelForSequenceClassification, vocab_size=20)
    small.save_pretrained(tmp_path / "models" / "step-000002")
    words = ["dynamics", "checkpoints", str(tmp_path / "models"), "--task", "classification", "--data"]
    assert main([*words, str(fine_tuned), "--output", str(tmp_path / "runs"), "--limit", "4"]) == 2
    assert "vocabulary" in capsys.readouterr().err


def test_the_callback_of_a_stock_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from attrim.studies.dynamics.trainer_callback import DynamicsCallback

    model = attrim.load_model("tiny-bert", "sequence-classification")
    data = [
        {"input_ids": [2, 40 + number, 3], "attention_mask": [1, 1, 1], "labels": number % 2} for number in range(8)
    ]
    arguments = TrainingArguments(
        tmp_path / "out", max_steps=5, per_device_train_batch_size=4, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callback = DynamicsCallback(tmp_path / "kept", every=3, steps=(1,))
    Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    assert list(find_checkpoints(tmp_path / "kept")) == [0, 1, 3, 5]
    with pytest.raises(ParameterError, match="step 9 is none of the 5 steps"):
        Trainer(model, arguments, train_dataset=data, callbacks=[DynamicsCallback(tmp_path, steps=(9,))]).train()


def test_heads_of_a_kind_that_there_is_enough_of_are_screened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = DynamicsMultihead(condition="5-of-5", evaluate_on=8, **SMALL)
    trained: list[Training] = []
    real = copying_runs.train

    def counted(training: Training) -> list[Evaluated]:
        trained.append(training)
        return real(training)

    monkeypatch.setattr(copying_runs, "train", counted)
    # Untrained networks are bad.
    assert copying_runs._screen_one((0, study, ("good",))).verdict == "not needed"
    assert len(trained) == 1
    assert copying_runs._screen_one((0, study, ("good", "bad"))).verdict == "bad"
    assert len(trained) == 4
