"""Steps of a training at which something is looked at or kept, step 0 included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attrim.cli import main
from attrim.errors import ParameterError
from attrim.models.loading import load_model
from attrim.training.loop import Loop
from attrim.training.scheduled import AtSteps, scheduled
from nets import Watch, train, weights


def test_a_schedule() -> None:
    assert scheduled(10) == (0, 10)
    assert scheduled(10, every=4) == (0, 4, 8, 10)
    assert scheduled(10, every=5, extra=(1, 3, 10)) == (0, 1, 3, 5, 10)
    with pytest.raises(ParameterError, match="step 11 is none of the 10 steps"):
        scheduled(10, extra=(11,))
    with pytest.raises(ParameterError, match="at least 1"):
        scheduled(10, every=0)


def test_step_0_comes_before_anything_is_trained() -> None:
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def look(step: int, loop: Loop) -> None:
        seen[step] = {name: value.clone() for name, value in weights(loop.model).items()}

    loop = train(callbacks=[AtSteps(look, every=5)])
    assert list(seen) == [0, 5, 10, 12]
    assert not torch.equal(seen[0]["first.weight"], seen[5]["first.weight"])
    assert torch.equal(seen[12]["first.weight"], weights(loop.model)["first.weight"])


def test_a_resumed_training_does_not_begin_again(tmp_path: Path) -> None:
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[AtSteps(lambda step, _: steps.append(step), every=2), Watch(7)])
    train(tmp_path, callbacks=[AtSteps(lambda step, _: steps.append(step), every=2), Watch()])
    # Looks come before the stop of step 7; the loop goes on from the checkpoint of step 4.
    assert steps == [0, 2, 4, 6, 6, 8, 10, 12]


def test_a_schedule_past_the_last_step_is_refused_before_training() -> None:
    with pytest.raises(ParameterError, match="step 50 is none of the 12 steps"):
        train(callbacks=[AtSteps(lambda *_: None, extra=(50,))])


def test_the_train_command_keeps_every_scheduled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": text, "label": label} for text, label in [("good film", "yes"), ("bad film", "no")] * 8]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, rows[:4])))
    words = ["train", "tiny-bert", "--task", "classification", "--data", str(tmp_path), "--steps", "5", "--save-every"]
    words += ["2", "--custom-saves", "1", "--batch-size", "4", "--output", str(tmp_path / "runs"), "--json"]
    assert main(words) == 0
    folder = Path(json.loads(capsys.readouterr().out)["folder"]) / "models"
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{step:06d}" for step in (0, 1, 2, 4, 5)]
    first, last = (load_model(folder / f"step-{step:06d}", "sequence-classification") for step in (0, 5))
    assert not torch.equal(first.classifier.weight, last.classifier.weight)
    words[words.index("--custom-saves") + 1] = "9"
    assert main(words) == 2
    assert "step 9 is none of the 5 steps" in capsys.readouterr().err
