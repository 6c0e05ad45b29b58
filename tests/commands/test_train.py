"""``attrim train``: from files to a model that stock transformers loads, also after a kill."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import forks
from attrim.cli import main
from attrim.commands import commands
from attrim.commands.parsing import parse
from attrim.commands.train import Train
from attrim.errors import DataError
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.run import Run
from attrim.tasks import load_task
from attrim.training.loop import Loop
from one_letter import write_sst2
from translated import save_marian, write_parallel


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_sst2(tmp_path / "glue", train=96, dev=24)


def command(glue: Path, **fields) -> Train:
    shared = {"model": "tiny-bert", "task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs"}
    return Train(**{**shared, "learning_rate": 5e-3, "batch_size": 16, "steps": 6, **fields})


def folders(glue: Path) -> list[Path]:
    return sorted((glue.parent / "runs").iterdir())


def test_flags_and_yaml_fill_the_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model: minilm\ntask: glue/sst2\nsteps: 205\nfreeze: [embeddings]\nschedule: cosine\n")
    words = ["train", "--config", str(path), "--learning-rate", "2e-4", "--train-option", "split=a", "--keep-best"]
    assert parse(words, commands()) == Train(
        model="minilm",
        task="glue/sst2",
        steps=205,
        freeze=("embeddings",),
        schedule="cosine",
        learning_rate=2e-4,
        train_option=("split=a",),
        keep_best=True,
        config=path,
    )
    words = "train minilm --task glue/rte --freeze embeddings --freeze layer.0 --edit uniform"
    assert parse(words.split(), commands()) == Train(
        model="minilm", task="glue/rte", freeze=("embeddings", "layer.0"), edit=("uniform",)
    )


def test_a_model_learns_and_stock_transformers_loads_it(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"train tiny-bert --task glue/sst2 --data {glue} --steps 40 --learning-rate 5e-3 --batch-size 16"
    words += f" --evaluate-every 20 --output {glue.parent / 'runs'} --save {glue.parent / 'model'} --json"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["validations"]) == ["20", "40"]
    assert found["validations"]["40"]["metrics"]["accuracy"] == 100
    assert found["step"] == 40
    model = AutoModelForSequenceClassification.from_pretrained(glue.parent / "model")
    tokenizer = AutoTokenizer.from_pretrained(glue.parent / "model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    with torch.inference_mode():
        logits = model(**tokenizer(["aaaa bb", "zzzz bb"], return_tensors="pt")).logits
    assert logits.argmax(1).tolist() == [0, 1]
    with Run.read(found["folder"]) as run:
        metrics = run.metrics()
        assert run.finished
        assert len(run.predictions("validation/000040")["prediction"]) == 24
    assert [name for name in metrics if name.startswith("train/")] == [f"train/{n:06d}" for n in (10, 20, 30, 40)]
    assert metrics["train/000040"]["loss"] < metrics["train/000010"]["loss"]
    assert main(f"evaluate {glue.parent / 'model'} --task glue/sst2 --data {glue} --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["results"]["unedited"]["metrics"]["accuracy"] == 100


def test_a_finished_run_is_not_repeated(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = command(glue).run().data
    monkeypatch.setattr(Loop, "run", lambda _: pytest.fail("a finished run was trained again"))
    again = command(glue, save=glue.parent / "copy", checkpoint_every=3).run().data
    assert again["validations"] == first["validations"]
    assert (glue.parent / "copy" / "model.safetensors").exists()
    assert len(folders(glue)) == 1


def test_checkpoints_that_a_kill_left_in_a_finished_run_are_removed(glue: Path) -> None:
    command(glue).run()
    stale = folders(glue)[0] / "checkpoints" / "step-000006"
    stale.mkdir(parents=True)
    command(glue).run()
    assert not stale.parent.exists()


@pytest.mark.parametrize("change", [{"seed": 5}, {"learning_rate": 1e-3}, {"limit": 20}, {"edit": ("uniform",)}])
def test_another_configuration_is_another_run(glue: Path, change: dict) -> None:
    one = command(glue, steps=2).run().data
    other = command(glue, **{"steps": 2, **change}).run().data
    assert other["folder"] != one["folder"]
    weights, changed = (load_file(Path(data["saved"]) / "model.safetensors") for data in (one, other))
    assert any(not torch.equal(weights[name], changed[name]) for name in weights)


def test_the_best_weights_are_saved(glue: Path) -> None:
    """The learning rate is so high that the model is spoilt after it was good."""
    fields = {"steps": 30, "evaluate_every": 5, "keep_best": True, "schedule": "constant"}
    data = command(glue, **fields).run().data
    scores = {step: result["metrics"]["accuracy"] for step, result in data["validations"].items()}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert data["step"] == best
    task = load_task("glue/sst2", data=str(glue))
    from attrim.evaluation import evaluate

    result = evaluate(task.load_model(data["saved"]), task, load_tokenizer(data["saved"]))
    assert result.metrics["accuracy"] == scores[best]


def test_edits_act_while_training_and_leave_the_model_as_it_was(glue: Path) -> None:
    """With every head gated off, the loss does not depend on queries, keys and values: they cannot move."""
    parts = ("query", "key", "value")
    before = load_model("tiny-bert", "sequence-classification", num_labels=2).state_dict()
    data = command(glue, edit=("gate:0",), weight_decay=0.0, evaluate_every=3).run().data
    after = load_file(Path(data["saved"]) / "model.safetensors")
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert not [name for name in moved if any(f"self.{part}." in name for part in parts)]
    assert any("intermediate" in name for name in moved)
    assert data["validations"][3]["zero_share"] == 1.0
    data = command(glue, weight_decay=0.0).run().data
    after = load_file(Path(data["saved"]) / "model.safetensors")
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items() if "self.value" in name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_edits_train_in_half_precision_as_well(glue: Path, dtype: str) -> None:
    data = command(glue, edit=("threshold:0.06",), dtype=dtype, freeze=("embeddings",)).run().data
    assert 0 < data["validations"][6]["zero_share"] < 1
    after = load_file(Path(data["saved"]) / "model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}


def test_training_labels_follow_the_names_of_the_model(glue: Path) -> None:
    task = load_task("glue/sst2", data=str(glue), split="train", batch_size=96)
    model, tokenizer = task.load_model("tiny-bert"), load_tokenizer("tiny-bert")
    [usual] = task.train_batches(tokenizer, model)
    model.config.id2label = {0: "positive", 1: "negative"}
    [turned] = task.train_batches(tokenizer, model)
    assert torch.equal(usual["input_ids"], turned["input_ids"])
    assert torch.equal(usual["labels"], 1 - turned["labels"])
    assert len(usual["labels"].unique()) == 2


def test_training_data_is_in_another_order_every_epoch(glue: Path) -> None:
    task = load_task("glue/sst2", data=str(glue), split="train", batch_size=16)
    model, tokenizer = task.load_model("tiny-bert"), load_tokenizer("tiny-bert")

    def read(**order):
        batches = task.train_batches(tokenizer, model, **order)
        return [tuple(text) for batch in batches for text in tokenizer.batch_decode(batch["input_ids"])]

    assert read() == read()
    assert read() != read(epoch=1)
    assert read() != read(seed=1)
    assert len(read()) == 96


def test_examples_without_labels_are_an_error(glue: Path) -> None:
    (glue / "train.tsv").write_text("sentence\na b c\n")
    with pytest.raises(DataError, match="no label"):
        command(glue).run()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--schedule stairs", "cosine"),
        ("--dtype float64", "float16"),
        ("--label-smoothing 1", "label smoothing must lie between 0 and 1"),
        ("--tracker paper", "tensorboard"),
        ("--steps 0", "steps must be a number above 0"),
        ("--evaluate-every 0", "evaluate-every"),
        ("--freeze embedings", "'embedings'"),
        ("--freeze *", "Every parameter is frozen"),
        ("--train-option splitt=train", "did you mean 'split'"),
        ("--train-option split=missing", "missing split"),
        ("--edit treshold:0.1", "threshold"),
        ("--save .", "holds no model"),
        ("--task text", "no metric"),
        ("--kind token-classification", "trains a sequence-classification head"),
        ("--task retrieval --data built-in --limit 20 --evaluate-limit 20", "no labels to train with"),
    ],
)
def test_user_errors_are_one_sentence(
    glue: Path, words: str, named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    task = [] if "--task" in words else ["--task", "glue/sst2", "--data", str(glue)]
    assert main(["train", "tiny-bert", *task, *words.split(), "--output", str(tmp_path / "runs")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert named in printed.err


def classifying(glue: Path) -> str:
    words = f"train tiny-bert --task glue/sst2 --data {glue} --steps 36 --batch-size 16 --accumulation 2 --warmup 5"
    words += " --learning-rate 5e-3 --evaluate-every 9 --keep-best --checkpoint-every 8 --edit threshold:0.06"
    return f"{words} --quiet"


def translating(glue: Path) -> str:
    model, data = save_marian(glue.parent / "marian"), write_parallel(glue.parent / "pairs")
    words = f"train {model} --task translation --data {data} --steps 36 --batch-size 16 --warmup 5 --betas 0.9 0.98"
    words += " --schedule inverse-sqrt --label-smoothing 0.1 --dtype float16 --option max_new_tokens=8 --option beams=2"
    return f"{words} --learning-rate 5e-3 --evaluate-every 9 --keep-best --checkpoint-every 8 --edit entmax --quiet"


@pytest.mark.parametrize("training", [classifying, translating])
def test_a_killed_training_resumes_with_the_same_weights(glue: Path, training) -> None:
    """SIGKILL after the second checkpoint, in a process of its own; the rest gives the same bytes as a whole run."""
    words = training(glue)
    killed, whole = glue.parent / "killed", glue.parent / "whole"
    process = forks.Process("-m", "attrim", *words.split(), "--output", str(killed))
    deadline = time.monotonic() + 120
    while not list(killed.glob("*/checkpoints/step-00001[6-9]")) and time.monotonic() < deadline:
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    [folder] = killed.iterdir()
    assert not (folder / "model").exists()
    with Run.read(folder) as run:
        assert not run.finished
    assert main([*words.split(), "--output", str(killed)]) == 0
    assert main([*words.split(), "--output", str(whole)]) == 0
    [other] = whole.iterdir()
    name = "model/model.safetensors"
    assert (folder / name).read_bytes() == (other / name).read_bytes()
    assert not (folder / "checkpoints").exists()
    with Run.read(folder) as first_run, Run.read(other) as second_run:
        assert first_run.metrics() == second_run.metrics()


@pytest.mark.slow
def test_minilm_learns_sst2(shared_data: Path, tmp_path: Path) -> None:
    """Thirty steps on real sentences with frozen embeddings: far better than the 51 % of the larger class."""
    train = Train(
        model="minilm",
        task="glue/sst2",
        data=str(shared_data / "glue"),
        train_option=("split=train_sentences_6920", "min_words=6"),
        steps=30,
        learning_rate=2e-4,
        freeze=("embeddings",),
        evaluate_limit=300,
        output=tmp_path,
    )
    assert train.run().data["validations"][30]["metrics"]["accuracy"] > 70


def squad_files(folder: Path) -> str:
    """Paragraphs in which the answer is always the same word, somewhere."""
    for name, size in {"train": 48, "dev": 12}.items():
        paragraphs = []
        for i in range(size):
            context = f"{'ab ' * (i % 5)}zzz {'cd ' * (i % 3)}end"
            answer = {"text": "zzz", "answer_start": context.index("zzz")}
            paragraphs.append({"context": context, "qas": [{"id": f"{i}", "question": "who?", "answers": [answer]}]})
        (folder / f"{name}-v1.1.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(folder)


def conll_files(folder: Path) -> str:
    """Sentences in which one word is always the name of a person."""
    for name, size in {"train": 48, "testa": 12}.items():
        sentences = []
        for i in range(size):
            words = [*("ab O" for _ in range(i % 4)), "zzz I-PER", *("cd O" for _ in range(1 + i % 3))]
            sentences.append("\n".join(f"{word.split()[0]} NN I-NP {word.split()[1]}" for word in words))
        (folder / f"eng.{name}").write_text("-DOCSTART- -X- O O\n\n" + "\n\n".join(sentences) + "\n")
    return str(folder)


@pytest.mark.parametrize(
    ("task", "files", "stock"),
    [
        ("squad", squad_files, "AutoModelForQuestionAnswering"),
        ("tokens/ner", conll_files, "AutoModelForTokenClassification"),
    ],
)
def test_other_tasks_learn_too(tmp_path: Path, task: str, files, stock: str) -> None:
    data = files(tmp_path)
    fields = {"task": task, "data": data, "steps": 80, "learning_rate": 1e-2, "warmup": 5}
    train = Train(model="tiny-bert", output=tmp_path / "runs", batch_size=16, **fields)
    found = train.run().data
    assert found["validations"][80]["metrics"]["f1"] > 90
    model = getattr(transformers, stock).from_pretrained(found["saved"])
    if task == "tokens/ner":
        assert model.config.id2label[1] == "B-PER"
