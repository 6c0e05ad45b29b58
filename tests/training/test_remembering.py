"""Training a model that remembers the batch before: resumed bit for bit, undisturbed by evaluations."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attrim
import forks
from attrim.cli import main
from attrim.commands.new import New
from attrim.commands.train import Train
from attrim.core.modes import memory_of
from attrim.errors import ParameterError
from attrim.models.fresh import redraw
from attrim.stats.mean import Mean
from attrim.tasks import load_task
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe
from nets import Watch, equal, weights

TEXTS = [f"Story {number}: the {word} sleeps and the {word} wakes ." for number in range(40) for word in ("fox", "cat")]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with data, and a fresh Transformer-XL in it."""
    for split, texts in (("train", TEXTS), ("valid", TEXTS[:9])):
        (tmp_path / f"{split}.txt").write_text("\n".join(texts))
    size = {"layers": 2, "width": 16, "heads": 2, "memory": 12, "units": "words", "vocabulary": 60}
    New("transformer-xl", task="streams", data=str(tmp_path), output=tmp_path / "fresh", quiet=True, **size).run()
    return tmp_path


def loop_of(made: Path, folder: Path | None = None, callbacks: Any = (), **fields: Any) -> Loop:
    model = attrim.load_model(made / "fresh", "causal-lm")
    tokenizer = attrim.load_tokenizer(made / "fresh")
    task = load_task("streams", data=str(made), split="train", batch_size=3, max_length=8)
    recipe = Recipe(**{"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 4, **fields})
    epochs = lambda epoch: task.train_batches(tokenizer, model, epoch=epoch)
    return Loop(model, epochs, recipe, loss=task.loss, callbacks=callbacks, folder=folder)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_resumed_loop_goes_on_with_the_memory(made: Path, tmp_path: Path, stop: int, accumulation: int) -> None:
    whole, watch = loop_of(made, callbacks=[all_ := Watch()], accumulation=accumulation), Watch()
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        loop_of(made, tmp_path / "steps", [Watch(stop)], accumulation=accumulation).run()
    kept = sorted(path.name for path in (tmp_path / "steps").rglob("memory.safetensors"))
    assert bool(kept) is (stop > 4)
    resumed = loop_of(made, tmp_path / "steps", [watch], accumulation=accumulation)
    resumed.run()
    assert [step.loss for step in watch.steps] == [step.loss for step in all_.steps[-len(watch.steps) :]]
    assert equal(weights(resumed.model), weights(whole.model))
    assert memory_of(resumed.model) == {}  # the next pass begins anew


def test_a_memory_matters(made: Path, tmp_path: Path) -> None:
    """Without what the checkpoint remembers, the resumed run would end elsewhere; the test above can fail."""
    whole = loop_of(made)
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        loop_of(made, tmp_path / "steps", [Watch(6)]).run()
    resumed = loop_of(made, tmp_path / "steps", [Watch()])
    load = resumed._checkpoints._load_memory  # type: ignore[union-attr]

    def zeros(step: int, model: Any) -> None:
        load(step, model)
        model.memory = tuple(torch.zeros_like(part) for part in model.memory)

    resumed._checkpoints._load_memory = zeros  # type: ignore[union-attr, method-assign]
    resumed.run()
    assert not equal(weights(resumed.model), weights(whole.model))


def command(made: Path, **fields: Any) -> Train:
    options = {
        "task": "streams",
        "data": str(made),
        "batch_size": 4,
        "max_length": 8,
        "quiet": True,
        "output": made / "runs",
    }
    recipe = {"steps": 14, "learning_rate": 1e-2, "checkpoint_every": 5}
    return Train(**{"model": str(made / "fresh"), **options, **recipe, **fields})


def trained(command: Train) -> dict[str, Any]:
    outcome = command.run()
    return {"weights": load_file(Path(outcome.data["saved"]) / "model.safetensors"), **outcome.data}


def test_it_learns_and_evaluations_do_not_disturb_the_memory(made: Path) -> None:
    often, once = trained(command(made, evaluate_every=2)), trained(command(made))
    assert equal(often["weights"], once["weights"])
    validations = [result["metrics"]["word-perplexity"] for result in often["validations"].values()]
    assert len(validations) == 7
    assert validations[-1] < validations[0] / 2


def test_a_model_without_a_memory_learns_it_too(made: Path) -> None:
    size = {"layers": 1, "width": 16, "heads": 2, "units": "words", "vocabulary": 60, "positions": 32}
    New("llama", task="streams", data=str(made), output=made / "llama", quiet=True, **size).run()
    outcome = command(made, model=str(made / "llama"), evaluate_every=7).run()
    first, last = (result["metrics"]["word-perplexity"] for result in outcome.data["validations"].values())
    assert last < 0.8 * first


def test_a_killed_training_resumes_with_the_same_bytes(made: Path) -> None:
    words = ["train", str(made / "fresh"), "--task", "streams", "--data", str(made), "--batch-size", "4", "--quiet"]
    words += ["--max-length", "8", "--steps", "60", "--learning-rate", "0.01", "--checkpoint-every", "3"]
    with forks.Process("-m", "attrim", *words, "--output", str(made / "killed")) as process:
        while not list((made / "killed").glob("*/checkpoints/step-00000[6-9]")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list((made / "killed").rglob("memory.safetensors"))
    for folder in ("killed", "whole"):
        again = forks.run("-m", "attrim", *words, "--output", str(made / folder))
        assert again.returncode == 0, again.stderr
    one, other = (next((made / folder).rglob("model/model.safetensors")).read_bytes() for folder in ("killed", "whole"))
    assert one == other


def test_a_pattern_of_a_trained_model_for_a_fresh_one(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Averages belong to one model, so that they are refused for another; a mask that was baked of them is explicit."""
    common = ["--task", "streams", "--data", str(made), "--batch-size", "4", "--max-length", "8", "--quiet"]
    dense = command(made, save=made / "dense")
    dense.run()
    assert main(["measure", str(made / "dense"), *common, "--stats", "mean", "--output", str(made / "averages")]) == 0
    pattern = f"pattern:{made / 'averages'},tau=0.8"
    capsys.readouterr()
    training = ["train", str(made / "fresh"), *common, "--steps", "4", "--output", str(made / "runs")]
    assert main([*training, "--edit", pattern]) == 2
    assert "does not fit this model" in capsys.readouterr().err
    bake = [
        "bake",
        str(made / "dense"),
        "--edit",
        pattern,
        "--output",
        str(made / "pruned"),
        "--rounds",
        "0",
        "--quiet",
    ]
    assert main(bake) == 0
    assert main([*training, "--edit", f"mask:{made / 'pruned'}"]) == 0
    outcome = command(made, steps=4, edit=(f"mask:{made / 'pruned'}",)).run()
    zeros = next(iter(outcome.data["validations"].values()))
    assert zeros["zero_share"] > 0.5
    # In Python nothing is checked: the averages of the trained model serve a fresh one of the same shape.
    from attrim.stats.bundle import Stats

    averages = Stats.load(made / "averages")[Mean]
    fresh = redraw(attrim.load_model(made / "dense", "causal-lm"), 7)
    task = load_task("streams", data=str(made), batch_size=4, max_length=8)
    tokenizer = attrim.load_tokenizer(made / "dense")
    with attrim.edit(fresh, attrim.SparsePattern(averages, 0.8), example=next(task.feed(fresh, tokenizer))):
        assert torch.isfinite(fresh(**next(task.feed(fresh, tokenizer))).logits).all()


def test_several_processes_are_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(made)
    monkeypatch.setattr(type(loop._accelerator), "num_processes", 2)
    with pytest.raises(ParameterError, match="train it in one"):
        loop.run()


def test_a_kill_after_the_last_step_of_an_edited_training(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of the last step is there and the model is not: it is saved, and nothing is trained again."""
    options: dict[str, Any] = {
        "task": "streams", "data": str(made), "output": made / "runs", "steps": 4, "learning_rate": 1e-2,
        "batch_size": 3, "max_length": 8, "edit": ("window:3",), "quiet": True,
    }  # fmt: skip
    train = Train(str(made / "fresh"), **options)
    with monkeypatch.context() as patch:
        patch.setattr("attrim.training.finetuning.save_model", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train.run()
    (folder,) = (made / "runs").iterdir()
    assert not (folder / "model").exists()
    Train(str(made / "fresh"), **options).run()
    (folder,) = (made / "runs").iterdir()
    assert (folder / "model" / "baked.json").is_file()
    again = Train(str(made / "fresh"), **{**options, "output": made / "whole"})
    again.run()
    (whole,) = (made / "whole").iterdir()
    wanted, found = (load_file(each / "model" / "model.safetensors") for each in (whole, folder))
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
