"""Label smoothing: the numbers of transformers, for every head with labels, and refused where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from attrim.cli import main
from attrim.errors import ParameterError
from attrim.tasks import load_task
from attrim.tasks.base import Task
from one_letter import write_sst2
from translated import small_marian, word_tokenizer, write_parallel


def case(name: str, folder: Path) -> tuple[Task, object, object]:
    """A task, a model and a tokenizer."""
    if name == "translation":
        return (
            load_task(name, data=str(write_parallel(folder / "pairs")), split="train"),
            small_marian(),
            word_tokenizer(),
        )
    if name == "glue/sst2":
        task, model = load_task(name, data=str(write_sst2(folder / "glue", 20, 4)), split="train"), "tiny-bert"
    else:
        (folder / "a.txt").write_text("some words to read, one after the other\n" * 9)
        task, model = load_task(name, data=str(folder / "a.txt"), max_length=32), "tiny-gpt2"
    return task, task.load_model(model), task.load_tokenizer(model)


@pytest.mark.parametrize("name", ["translation", "glue/sst2", "causal-lm"])
def test_the_loss_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    task, model, tokenizer = case(name, tmp_path)
    inputs = next(task.train_batches(tokenizer, model))
    with torch.inference_mode():
        for parameter in model.parameters():  # so that the answers of a model that was never trained differ
            parameter *= 1 if name == "translation" else 3
        output = model(**inputs)
        stock = LabelSmoother(epsilon=0.1)(output, inputs["labels"], shift_labels=name == "causal-lm")
        assert float(task.smoothed(0.1)(model, inputs)) == pytest.approx(float(stock), rel=1e-5)
        assert float(task.smoothed(0.0)(model, inputs)) == pytest.approx(float(output.loss), rel=1e-5)
        assert float(stock) != pytest.approx(float(output.loss), rel=1e-3)


def test_tasks_with_a_loss_of_their_own_or_without_labels_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="shapes has a loss of its own"):
        load_task("shapes").smoothed(0.1)
    smoothed = load_task("glue/stsb").smoothed(0.1)
    with pytest.raises(ParameterError, match="scores in place of labels"):
        smoothed(torch.nn.Linear(1, 1), {"labels": torch.zeros(2)})
    with pytest.raises(ParameterError, match="has no labels"):
        load_task("squad").smoothed(0.1)(torch.nn.Linear(1, 1), {"start_positions": torch.zeros(2)})


def test_it_changes_what_is_trained(tmp_path: Path) -> None:
    glue = write_sst2(tmp_path / "glue", 20, 4)
    words = f"train tiny-bert --task glue/sst2 --data {glue} --steps 2 --batch-size 8 --output {tmp_path / 'runs'}"
    for number, flags in enumerate(["", "--label-smoothing 0.2", "--betas 0.9 0.98"]):
        assert main([*words.split(), *flags.split(), "--save", str(tmp_path / f"model-{number}"), "--quiet"]) == 0
    files = {(tmp_path / f"model-{number}" / "model.safetensors").read_bytes() for number in range(3)}
    assert len(files) == 3
