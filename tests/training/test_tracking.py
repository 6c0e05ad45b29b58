"""Trackers get what the run gets, at the same steps; one that is not installed is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate import tracking as stock
from accelerate.tracking import GeneralTracker

from attrim.cli import main
from attrim.errors import UnknownName
from attrim.models.loading import load_tokenizer
from attrim.runs.run import Run
from attrim.tasks import load_task
from attrim.training import tracking
from attrim.training.finetuning import finetune
from attrim.training.recipe import Recipe
from one_letter import write_sst2


class Notebook(GeneralTracker):
    """Remembers everything."""

    name = "notebook"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.configuration: dict = {}
        self.logged: list = []
        self.open = False

    @property
    def tracker(self) -> list:
        return self.logged

    def start(self) -> None:
        self.open = True

    def store_init_configuration(self, values) -> None:
        self.configuration = values

    def log(self, values, step=None, **_) -> None:
        assert self.open
        self.logged.append((step, values))

    def finish(self) -> None:
        self.open = False


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_sst2(tmp_path / "glue", train=40, dev=8)


def test_a_tracker_gets_losses_and_metrics(glue: Path, tmp_path: Path) -> None:
    task, notebook = load_task("glue/sst2", data=str(glue)), Notebook()
    training = load_task("glue/sst2", data=str(glue), split="train")
    with Run.open(tmp_path / "runs", {"a": 1}) as run:
        finetune(
            task.load_model("tiny-bert"), load_tokenizer("tiny-bert"), training, task,
            Recipe(steps=20, betas=(0.9, 0.98)), run, evaluate_every=15, tracker=notebook,
        )  # fmt: skip
        known = run.metrics()
    assert not notebook.open
    assert notebook.configuration["learning_rate"] == 5e-5
    assert notebook.configuration["betas"] == "(0.9, 0.98)"
    assert [step for step, _ in notebook.logged] == [10, 15, 20, 20]
    assert notebook.logged[0][1] == {f"train/{name}": value for name, value in known["train/000010"].items()}
    assert notebook.logged[1][1] == {"validation/accuracy": known["validation/000015"]["accuracy"]}


def test_a_tracker_is_closed_after_an_error(glue: Path, tmp_path: Path) -> None:
    with Run.open(tmp_path / "runs", {"a": 1}) as run:
        notebook = Notebook()
        with pytest.raises(KeyboardInterrupt), tracking.tracking(notebook, run, {}):
            raise KeyboardInterrupt
        assert not notebook.open
        with pytest.raises(UnknownName, match="tensorboard"), tracking.tracking("tensorbord", run, {}):
            pass


def test_a_package_that_is_missing_is_named(
    glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stock, "_available_trackers", [])
    words = f"train tiny-bert --task glue/sst2 --data {glue} --tracker wandb --output {tmp_path / 'runs'}"
    assert main(words.split()) == 2
    assert "'pip install wandb'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_tensorboard_files_are_in_the_run(glue: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    words = f"train tiny-bert --task glue/sst2 --data {glue} --tracker tensorboard --output {tmp_path / 'runs'}"
    assert main([*words.split(), "--steps", "10", "--quiet"]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = (tmp_path / "runs").glob("*/tensorboard")
    found = EventAccumulator(str(folder))
    found.Reload()
    assert [event.step for event in found.Scalars("validation/accuracy")] == [10]
    assert "train/loss" in found.Tags()["scalars"]
