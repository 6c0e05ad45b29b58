"""Commands that are killed with SIGKILL, each in a process of its own, go on and end like those that were not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim.evaluation
import attrim.measurement
import attrim.report.drawing
import attrim.stats.resume
import forks
from attrim.commands.base import Command
from attrim.commands.evaluate import Evaluate
from attrim.commands.measure import Measure
from attrim.commands.study import command_of
from attrim.runs.run import Run
from attrim.stats.bundle import Stats
from attrim.studies.sparsity import Sparsity

# Whenever something was kept the process says so and waits for a line, so that it is killed exactly there.
PATIENT = """
import sys
from attrim.cli import main
from attrim.runs.result import Result
from attrim.stats.resume import Checkpoint

store, passed = Result.store, Checkpoint.passed

def said(*words):
    print(*words, file=sys.stderr, flush=True)
    sys.stdin.readline()

def stored(self, run, setting):
    result = store(self, run, setting)
    said("stored", setting)
    return result

def kept(self, stats, origin, batches, now=False):
    passed(self, stats, origin, batches, now=True)
    said("kept", batches)

Result.store, Checkpoint.passed = stored, kept
sys.exit(main(sys.argv[1:]))
"""


def kill_when(words: list[str], last: str, times: int = 1) -> list[str]:
    """Run a command until it has kept what ``last`` begins for the n-th time, kill it, and say what it kept."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    kept: list[str] = []
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forks.Process("-c", PATIENT, *words, env=environment, **pipes) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for line in process.stderr:
            assert line.startswith(("stored ", "kept ")), line
            kept.append(line.strip())
            if sum(said.startswith(last) for said in kept) == times:
                process.send_signal(signal.SIGKILL)
                break
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait() == -signal.SIGKILL
    return kept


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    paragraphs = [
        {"context": f"text {i} of {7 * i} words", "qas": [{"question": f"which {i} {j}"} for j in range(2)]}
        for i in range(6)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the settings that are evaluated from now on."""
    evaluated: list[str] = []
    real = attrim.evaluation._run
    monkeypatch.setattr(attrim.evaluation, "_run", lambda *given: evaluated.append(given[4]) or real(*given))
    return evaluated


def results(command: Command) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command gives but the time it took, and the predictions in its run."""
    found = command.run().data["results"]
    [folder] = command.output.iterdir()  # type: ignore[attr-defined]
    with Run.read(folder) as run:
        assert run.finished
        assert set(run.settings()) == set(found)
        columns = {name: {key: column.tolist() for key, column in run.predictions(name).items()} for name in found}
    return {name: {**result, "seconds": None} for name, result in found.items()}, columns


def test_evaluate(squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = ("threshold:0.02", "threshold:0.05", "uniform")
    words = ["evaluate", "tiny-bert", "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6"]
    words += ["--limit", "8", "--output", str(tmp_path / "killed")]
    kept = kill_when([*words, *(word for edit in edits for word in ("--edit", edit))], "stored", times=2)
    assert kept == ["stored unedited", "stored threshold:0.02"]
    shared = {"model": "tiny-bert", "task": "retrieval", "data": str(squad), "option": ("paragraphs=6",), "limit": 8}
    whole = results(Evaluate(**shared, edit=edits, output=tmp_path / "whole"))
    evaluated = counted(monkeypatch)
    assert results(Evaluate(**shared, edit=edits, output=tmp_path / "killed")) == whole
    assert evaluated == ["threshold:0.05", "uniform"]


def test_sparsity(squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between settings, after two of the three passes that measure were finished and two settings stored."""
    words = ["sparsity", "tiny-bert", "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6"]
    words += ["--limit", "8", "--bars", "0.02", "0.05", "--methods", "linear-slog-clamped-midval", "lloyd-max"]
    words += ["--bits", "3", "--formats", "png", "--parts", "distances", "--output", str(tmp_path / "killed")]
    kept = kill_when(words, "stored", times=3)
    assert [said for said in kept if said.startswith("stored")][:2] == ["stored unedited", "stored threshold:0.02"]
    flags: dict[str, Any] = {"bars": (0.02, 0.05), "methods": ("linear-slog-clamped-midval", "lloyd-max"), "bits": (3,)}
    flags |= {"formats": ("png",), "parts": ("distances",), "option": ("paragraphs=6",), "limit": 8}
    shared = {"model": "tiny-bert", "task": "retrieval", "data": str(squad), **flags}
    # The figures have their own tests.
    monkeypatch.setattr(attrim.report.drawing, "WORTH", 10**6)
    monkeypatch.setattr(attrim.report.drawing.Drawing, "finish", lambda *_: [])
    whole = results(command_of(Sparsity)(**shared, output=tmp_path / "whole"))
    evaluated = counted(monkeypatch)
    monkeypatch.setattr(attrim.measurement, "measure", lambda *_, **__: pytest.fail("stored stats were measured again"))
    assert results(command_of(Sparsity)(**shared, output=tmp_path / "killed")) == whole
    assert evaluated == [name for name in whole[0] if f"stored {name}" not in kept]
    assert 0 < len(evaluated) < len(whole[0])


def test_measure(squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["measure", "tiny-bert", "--task", "squad-paragraphs", "--data", str(squad), "--batch-size", "1"]
    words += ["--stats", "histogram:rows=true", "mean", "moments", "sample:count=2"]
    assert kill_when([*words, "--output", str(tmp_path / "killed")], "kept 3") == ["kept 1", "kept 2", "kept 3"]
    assert not (tmp_path / "killed" / "stats.json").exists()  # half of the stats is not taken for all of them
    stats = ("histogram:rows=true", "mean", "moments", "sample:count=2")
    shared = {"model": "tiny-bert", "task": "squad-paragraphs", "data": str(squad), "batch_size": 1, "stats": stats}
    whole = Measure(**shared, output=tmp_path / "whole").run().data
    covered: list[int] = []
    real = attrim.stats.resume.Checkpoint.resume

    def resume(self: Any, *given: Any) -> Any:
        found = real(self, *given)
        covered.append(found[0])
        return found

    monkeypatch.setattr(attrim.stats.resume.Checkpoint, "resume", resume)
    again = Measure(**shared, output=tmp_path / "killed").run().data
    assert covered == [3]
    assert again["stats"] == whole["stats"]
    assert not (tmp_path / "killed" / "unfinished").exists()
    mine, theirs = Stats.load(tmp_path / "killed"), Stats.load(tmp_path / "whole")
    assert mine.origin == theirs.origin
    for name in theirs:
        left, right = mine[name].state()[0], theirs[name].state()[0]
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in right), name
