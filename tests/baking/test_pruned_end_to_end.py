"""A trained model with a global pattern, from the command line to pipeline and Trainer: the same answers everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments, pipeline

import attrim
import forks
from attrim.cli import main
from attrim.core.text import parse_chain
from attrim.edits import save_edits
from attrim.evaluation import Prepared
from attrim.kernels import team
from attrim.kernels.ways import noting
from attrim.models.loading import load_model, load_tokenizer
from attrim.tasks import load_task
from one_letter import write_sst2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a small classifier, average its attention, make a mask of that, and bake it."""
    root = tmp_path_factory.mktemp("pruned")
    glue = write_sst2(root / "glue", train=48, dev=24)
    data = ["--task", "glue/sst2", "--data", str(glue), "--quiet"]
    found = {name: root / name for name in ("trained", "averages", "mask", "pruned")} | {"glue": glue}
    trained = ["train", "tiny-bert", *data, "--steps", "20", "--learning-rate", "5e-3", "--output", str(root / "runs")]
    assert main([*trained, "--save", str(found["trained"])]) == 0
    assert main(["measure", str(found["trained"]), *data, "--stats", "mean", "--output", str(found["averages"])]) == 0
    save_edits(parse_chain(f"pattern:{found['averages']},tau=0.6"), found["mask"])
    baked = ["bake", str(found["trained"]), "--edit", f"mask:{found['mask']}", "--output", str(found["pruned"])]
    assert main([*baked, "--rounds", "2", "--length", "32"]) == 0
    return found


def evaluated(folders: dict[str, Path], name: str, *edits: Any) -> Any:
    task = load_task("glue/sst2", data=str(folders["glue"]))
    folder = str(folders[name])
    model = load_model(folder, "sequence-classification")
    return attrim.evaluate(model, task, load_tokenizer(folder), edits)


def test_the_same_score_to_the_last_example(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (mask,) = parse_chain(f"mask:{folders['mask']}")
    edited, baked = evaluated(folders, "trained", mask), evaluated(folders, "pruned")
    assert edited.metrics == baked.metrics
    assert edited.columns.keys() == baked.columns.keys()
    assert all((edited.columns[name] == baked.columns[name]).all() for name in ("prediction", "label"))
    dense = evaluated(folders, "trained")
    assert dense.metrics["accuracy"] > 60, "the model learned something that a pattern can change"
    capsys.readouterr()
    words = ["evaluate", str(folders["pruned"]), "--task", "glue/sst2", "--data", str(folders["glue"]), "--json"]
    fresh = forks.run("-m", "attrim", *words)
    assert fresh.returncode == 0, fresh.stderr
    assert json.loads(fresh.stdout)["results"]["unedited"]["metrics"] == pytest.approx(baked.metrics)


@pytest.mark.skipif(
    not team.available() or team.PATHS[team.path()] == "torch", reason="the compiled passes are not used here"
)
def test_the_kernel_gives_the_same_answers(folders: dict[str, Path]) -> None:
    """Counting zeros needs the weights, so an ordinary evaluation does not use the kernel; this one does."""
    (mask,) = parse_chain(f"mask:{folders['mask']}")
    edited = evaluated(folders, "trained", mask)
    folder = str(folders["pruned"])
    model, task = load_model(folder, "sequence-classification"), load_task("glue/sst2", data=str(folders["glue"]))
    with noting() as notes:
        found = Prepared(model, task, load_tokenizer(folder), count_zeros=False).point("unedited", ())
    assert notes
    assert found.metrics == edited.metrics
    assert (found.columns["prediction"] == edited.columns["prediction"]).all()


def test_pipeline_and_trainer(folders: dict[str, Path], tmp_path: Path) -> None:
    model, baked = (load_model(str(folders[name]), "sequence-classification") for name in ("trained", "pruned"))
    tokenizer = load_tokenizer(str(folders["pruned"]))
    (mask,) = parse_chain(f"mask:{folders['mask']}")
    texts = ["zzzz bb1", "aaaa bbbb2", "zzzz bbb13"]
    answers = pipeline("text-classification", model=baked, tokenizer=tokenizer)(texts)
    data = [{**tokenizer(text), "labels": number % 2} for number, text in enumerate(texts)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=3, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, learning_rate=1e-2, lr_scheduler_type="constant", max_grad_norm=0.0, optim="sgd",
    )  # fmt: skip
    trainer = Trainer(model=baked, args=arguments, train_dataset=data, processing_class=tokenizer)
    predicted = torch.from_numpy(trainer.predict(data).predictions)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), attrim.edit(model.eval(), mask):
        expected = model(**batch).logits
    torch.testing.assert_close(predicted, expected, rtol=1e-4, atol=1e-5)
    assert [answer["score"] for answer in answers] == pytest.approx(expected.softmax(-1).amax(-1).tolist(), abs=1e-4)
    for other in (baked, model):  # dropout would draw other numbers in the two
        for module in other.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout_prob", None), float):
                module.dropout_prob = 0.0
    before = {name: parameter.detach().clone() for name, parameter in baked.named_parameters()}
    trainer.train()
    model.train()
    with attrim.edit(model, mask):
        model(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
    own = dict(model.named_parameters())
    for name, parameter in baked.named_parameters():
        gradient = own[name].grad
        moved = (before[name] - parameter.detach()) / 1e-2
        torch.testing.assert_close(
            moved, torch.zeros_like(moved) if gradient is None else gradient, rtol=1e-2, atol=1e-4
        )
