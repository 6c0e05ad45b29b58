"""Commands that are killed at random moments and started again end as if nothing had happened.

``make kills`` runs it. ``ATTRIM_KILLS`` says how many kills there are in all and ``ATTRIM_FUZZ_SEED`` when they come.
One kill in three is a SIGTERM, which the command sees; the others are SIGKILL, which it does not.

A process that has imported everything forks one for each try, so that a try costs what the command itself costs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attrim.report.drawing
from attrim.cli import main
from attrim.core.record import same
from attrim.runs.run import Run

KILLS = int(os.environ.get("ATTRIM_KILLS", "10"))
SEED = int(os.environ.get("ATTRIM_FUZZ_SEED", "0"))
FREE = {"seconds", "seconds_a_step"}
"""What two runs of the same command may differ in: the time that they took."""
ONCE = 120.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few questions and a few sentences with labels."""
    folder = tmp_path_factory.mktemp("data")
    paragraphs = [
        {"context": f"text {i} of {7 * i} words", "qas": [{"question": f"which {i} {j}"} for j in range(2)]}
        for i in range(6)
    ]
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    rows = "".join(f"{'good' if i % 2 else 'bad'} film number {i}\t{i % 2}\n" for i in range(24))
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
    return folder


def commands(data: Path) -> dict[str, list[str]]:
    """The commands, each small, all but their --output."""
    asked = ["--task", "retrieval", "--data", str(data / "squad.json"), "--option", "paragraphs=6", "--limit", "8"]
    rated = ["--task", "glue/sst2", "--data", str(data), "--limit", "16"]
    edits = [word for bar in ("0.02", "0.05", "0.1") for word in ("--edit", f"threshold:{bar}")]
    study = ["--bars", "0.02", "0.05", "--methods", "linear-slog-clamped-midval", "--bits", "3", "--parts", "distances"]
    probes = [
        "--max-length",
        "24",
        "--budgets",
        "0",
        "all",
        "--seeds",
        "0",
        "1",
        "--epochs",
        "1",
        "--order-epochs",
        "1",
    ]
    steps = ["--steps", "8", "--checkpoint-every", "2", "--batch-size", "4", "--evaluate-every", "4"]
    pruned = ["--taus", "0.8", "--kinds", "ap", "window", "--seeds", "0", "--head-examples", "4", "--formats", "png"]
    return {
        "evaluate": ["evaluate", "tiny-bert", *asked, *edits],
        "sparsity": ["sparsity", "tiny-bert", *asked, *study, "--formats", "png"],
        "constant": ["constant", "tiny-bert", *rated, *probes],
        "prune": ["prune", "tiny-bert", *rated, *steps, *pruned, "--max-length", "24"],
        "train": ["train", "tiny-bert", *rated, *steps, "--max-length", "24"],
        "bake": ["bake", "tiny-bert", "--edit", "gate:0,heads=0/1+1/2", "--rounds", "0"],
    }


def forked(words: list[str], errors: Path) -> int:
    """Start a command in a forked process, whose errors go to a file."""
    process = os.fork()
    if process:
        return process
    try:
        # Not what pytest has put in their place.
        with Path(os.devnull).open("w") as sys.stdout, errors.open("w") as sys.stderr:
            torch.set_num_threads(1)
            code = main(words)
        os._exit(code)
    finally:
        os._exit(99)


def ended(process: int, seconds: float) -> int | None:
    """The exit code of a process that ends within some seconds, negative after a signal; None if it still runs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def kept(path: Path, folder: Path) -> bool:
    """Whether a file is part of the result, not of the way to it.

    SIGKILL leaves parts of files, which have hidden names.
    """
    return path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)


def tensors(folder: Path) -> dict[str, Any]:
    files = [path for path in sorted(folder.rglob("*.safetensors")) if kept(path, folder)]
    return {str(path.relative_to(folder)): load_file(path) for path in files}


def content(folder: Path) -> dict[str, Any]:
    """All that a command left, but the time that it took: results and predictions of runs, tensors, other files."""
    found: dict[str, Any] = {"tensors": tensors(folder)}
    found |= {f"file {path.relative_to(folder)}": True for path in sorted(folder.rglob("*")) if kept(path, folder)}
    for path in sorted(folder.rglob("results.sqlite")):
        with Run.read(path.parent) as run:
            assert run.finished or "train" in path.parent.name
            for name in run.settings():
                columns = {key: column.tolist() for key, column in run.predictions(name).items()}
                found[f"{path.parent.name} {name}"] = (plain(run.fields(name)), run.metrics()[name], columns)
    for path in sorted(folder.rglob("*")):
        if kept(path, folder) and (path.suffix in (".csv", ".txt") or path.name in ("config.json", "baked.json")):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def plain(fields: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (fields or {}).items() if key not in FREE}


def differing(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Where two folders differ."""
    found = [key for key in {*mine, *theirs} if key != "tensors" and not same(mine.get(key), theirs.get(key))]
    for name in {*mine["tensors"], *theirs["tensors"]}:
        left, right = mine["tensors"].get(name, {}), theirs["tensors"].get(name, {})
        if left.keys() != right.keys() or not all(torch.equal(left[key], right[key]) for key in right):
            found.append(name)
    return sorted(found)


@pytest.mark.slow
def test_random_kills(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    # The figures have their own tests, and processes of their own.
    monkeypatch.setattr(attrim.report.drawing, "WORTH", 10**6)
    monkeypatch.setattr(attrim.report.drawing.Drawing, "finish", lambda *_: [])
    torch.set_num_threads(1)
    generator, errors = random.Random(SEED), tmp_path / "errors.txt"
    chosen = commands(data)
    whole: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    for name, words in chosen.items():
        for place in ("warm", "whole"):  # the first one imports what the others find
            folder = tmp_path / place / name
            begun = time.monotonic()
            if place == "warm":
                assert main([*words, "--output", str(folder)]) == 0, capsys.readouterr().err
            else:
                assert ended(forked([*words, "--output", str(folder)], errors), ONCE) == 0, errors.read_text()
            seconds[name] = time.monotonic() - begun
        whole[name] = content(tmp_path / "whole" / name)
        assert differing(content(tmp_path / "warm" / name), whole[name]) == []
        shutil.rmtree(tmp_path / "warm" / name)
    kills: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    while kills.total() < KILLS:
        name = min(chosen, key=lambda name: kills[name])
        folder = tmp_path / "killed" / name
        words = [*chosen[name], "--output", str(folder)]
        while True:
            process = forked(words, errors)
            number = generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            code = ended(process, generator.uniform(0, 1.1 * seconds[name]))
            if code is None:
                os.kill(process, number)
                code = ended(process, ONCE)
            if code == 0:
                break
            assert code in (-number, 128 + number), (name, code, errors.read_text())
            kills[name] += 1
        runs[name] += 1
        assert differing(content(folder), whole[name]) == [], f"{name} after {kills[name]} kills"
        shutil.rmtree(folder)
    with capsys.disabled():
        shown = ", ".join(f"{name} {kills[name]}" for name in chosen)
        print(f"\nkills: {kills.total()} with seed {SEED} ({shown}) in {runs.total()} runs, 0 differing results")
