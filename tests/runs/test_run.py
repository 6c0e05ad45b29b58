"""Runs: kept, recognised, resumed after a real kill, and nothing lost when storage fails."""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attrim.runs.run
import forks
from attrim.errors import ArtefactError
from attrim.runs.files import replace_folder
from attrim.runs.run import Run, config_hash
from attrim.stats.bundle import Stats

CONFIG = {"model": "tiny-bert", "task": {"name": "glue/sst2", "limit": 5}, "seed": 1}


def fill(run: Run, setting: str, value: float = 50.0) -> None:
    columns = {"prediction": np.arange(4), "score": np.array([0.5, np.nan, -1.0, 2.0])}
    run.store(setting, {"accuracy": value, "undefined": float("nan")}, columns, {"edits": [setting]})


def test_what_is_stored_comes_back(tmp_path):
    with Run.open(tmp_path, CONFIG, name="evaluate tiny/bert") as run:
        fill(run, "zeta", 12.5)
        fill(run, "alpha")
        run.save_arrays("a/b", {"x": torch.arange(6).reshape(2, 3).T})
        run.save_arrays("a b", {"x": torch.zeros(1)})
        folder = run.folder
    assert folder.name == f"evaluate-tiny-bert-{config_hash(CONFIG)[:12]}"
    with Run.read(folder) as run:
        assert run.config == CONFIG
        assert run.settings() == ["zeta", "alpha"]
        assert run.fields("zeta") == {"edits": ["zeta"]}
        assert run.fields("none") is None
        assert run.metrics()["zeta"]["accuracy"] == 12.5
        assert np.isnan(run.metrics()["zeta"]["undefined"])
        columns = run.predictions("zeta")
        assert columns["prediction"].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(columns["score"], [0.5, np.nan, -1.0, 2.0])
        assert run.load_arrays("a/b")["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert run.load_arrays("a b")["x"].tolist() == [0.0]
    versions = json.loads((folder / "versions.json").read_text())
    assert versions[0]["torch"] == torch.__version__
    assert len(versions) == 1
    assert not list(folder.rglob("*.part"))


def test_storing_again_replaces_everything(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        fill(run, "one")
        run.store("one", {"f1": 3.0}, {"prediction": np.array([7])})
        assert run.metrics() == {"one": {"f1": 3.0}}
        assert {name: column.tolist() for name, column in run.predictions("one").items()} == {"prediction": [7]}


def test_a_finished_run_is_recognised(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        assert not run.finished
        run.finish()
    with (
        Run.open(tmp_path, dict(reversed(CONFIG.items()))) as again,
        Run.open(tmp_path, {**CONFIG, "seed": 2}) as other,
    ):
        assert again.finished
        assert not other.finished
        assert again.folder != other.folder
    with Run.open(again.folder, CONFIG) as direct:
        assert direct.finished
    with pytest.raises(ArtefactError, match=r"another configuration \(it differs in seed\)"):
        Run.open(again.folder, {**CONFIG, "seed": 2})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_the_hash_survives_json_and_order(config):
    shuffled = dict(reversed(list(config.items())))
    assert config_hash(json.loads(json.dumps(shuffled))) == config_hash(config)
    assert config_hash({**config, "more": 1}) != config_hash({**config, "more": 2})


SWEEP = """
import os, sys, time
from attrim.edits.threshold import Threshold
from attrim.evaluation import evaluate_settings
from attrim.models.loading import load_tokenizer
from attrim.runs.run import Run
from attrim.tasks import load_task

folder, data, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
task = load_task("glue/sst2", data=data, batch_size=8)
settings = {f"threshold {bar}": [Threshold(bar)] for bar in (0.01, 0.02, 0.05, 0.1)}

def announce(name):
    print(name, flush=True)
    time.sleep(pause)

with Run.open(folder, {"task": task.options(), "settings": list(settings)}) as run:
    model = task.load_model("tiny-bert")
    evaluate_settings(model, task, load_tokenizer("tiny-bert"), settings, run=run, announce=announce)
    run.finish()
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """Run the sweep in this process and return the settings that it evaluated."""
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)

    def run(runs: Path, data: Path) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(script), str(runs), str(data), "0"])
        runpy.run_path(str(script))
        return capsys.readouterr().out.splitlines()

    return run


def content(runs: Path):
    [folder] = runs.iterdir()
    with Run.read(folder) as run:
        assert run.finished
        metrics = run.metrics()
        return metrics, {name: {k: v.tolist() for k, v in run.predictions(name).items()} for name in metrics}


def test_a_killed_run_resumes_with_the_same_results(tmp_path, sweep):
    """SIGKILL in the middle of the third of five settings; the rerun does the rest, and only the rest."""
    data, killed, whole = (tmp_path / name for name in ("data", "killed", "whole"))
    data.mkdir()
    rows = "".join(f"{'word ' * (1 + i % 5)}{i}\t{i % 2}\n" for i in range(30))
    (data / "dev.tsv").write_text("sentence\tlabel\n" + rows)
    with forks.Process("-c", SWEEP, str(killed), str(data), "0.3", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        started = [process.stdout.readline().strip() for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    [folder] = killed.iterdir()
    with Run.read(folder) as run:
        assert not run.finished
        assert run.settings() == started[:2]
    every = sweep(whole, data)
    assert len(every) == 5
    assert sweep(killed, data) == every[2:]
    assert content(killed) == content(whole)
    assert sweep(killed, data) == []


def test_a_kill_while_writing_leaves_whole_settings(tmp_path):
    """A process that does nothing but store is killed: every setting is there wholly or not at all."""
    script = """
import sys, numpy as np
from attrim.runs.run import Run
run = Run.open(sys.argv[1], {"a": 1})
for number in range(10_000):
    run.store(str(number), {"metric": number}, {"value": np.full(20_000, number)})
    print(number, flush=True)
"""
    with forks.Process("-c", script, str(tmp_path), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(0.013)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Run.open(tmp_path, {"a": 1}) as run:
        stored = run.settings()
        assert stored[:3] == ["0", "1", "2"]
        for name in stored:
            assert run.metrics()[name] == {"metric": float(name)}
            assert run.predictions(name)["value"].tolist() == [int(name)] * 20_000


def test_a_full_disk_loses_nothing(tmp_path):
    """Files cannot grow beyond a limit that the system enforces: one sentence, and the old results are still there."""
    with Run.open(tmp_path, CONFIG) as run:
        fill(run, "kept")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(ArtefactError, match=r"no room left .*everything stored before is kept") as caught:
                run.save_arrays("big", {"x": torch.zeros(100_000)})
            assert "\n" not in str(caught.value)
            with pytest.raises(ArtefactError):
                run.store("big", {"metric": 1.0}, {"value": np.arange(200_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert run.settings() == ["kept"]
        fill(run, "after")
    with Run.open(tmp_path, CONFIG) as run:
        assert run.settings() == ["kept", "after"]
        assert not list(run.folder.rglob("*.part"))


def test_a_full_database(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        fill(run, "kept")
        run._connection().execute("PRAGMA max_page_count = 20")
        with pytest.raises(ArtefactError, match="no room left"):
            run.store("big", {"metric": 1.0}, {"value": np.arange(200_000)})
        assert run.settings() == ["kept"]


def test_damage_is_named_and_nothing_is_deleted(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        for number in range(50):
            fill(run, str(number))
        run.save_arrays("x", {"x": torch.zeros(3)})
        folder = run.folder
    database = folder / "results.sqlite"
    damaged = database.read_bytes()[:100] + b"\xff" * 4000 + database.read_bytes()[4100:]
    database.write_bytes(damaged)
    with pytest.raises(ArtefactError, match=r"database in .* is damaged .*nothing was changed"):
        Run.open(tmp_path, CONFIG)
    assert database.read_bytes() == damaged
    database.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(ArtefactError, match="is damaged"):
        Run.open(tmp_path, CONFIG)
    database.unlink()
    with Run.open(tmp_path, CONFIG) as run:
        next(iter((folder / "arrays").iterdir())).write_bytes(b"short")
        with pytest.raises(ArtefactError, match="missing or damaged"):
            run.load_arrays("x")
        with pytest.raises(ArtefactError, match="missing or damaged"):
            run.load_arrays("never stored")
    (folder / "config.json").write_text("{oops")
    with pytest.raises(ArtefactError, match=r"config\.json is damaged"):
        Run.open(tmp_path, CONFIG)


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtefactError, match="cannot be written"):
        Run.open(tmp_path / "file", CONFIG)
    with pytest.raises(ArtefactError, match=r"cannot be written|cannot be read or written"):
        Run.open("/proc/attrim", CONFIG)
    with pytest.raises(ArtefactError, match="holds no run"):
        Run.read(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ArtefactError, match="holds no run"):
        Run.read(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]
    with pytest.raises(ArtefactError, match="must be JSON values"):
        Run.open(tmp_path, {"model": object()})


def test_a_writer_in_the_way_is_named(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        run._connection().execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(run.folder / "results.sqlite", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ArtefactError, match="Another process is writing"):
            fill(run, "one")
        other.execute("ROLLBACK")
        other.close()
        fill(run, "one")
        assert run.settings() == ["one"]


def change_row(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "results.sqlite") as database:
        assert database.execute(statement).rowcount == 1
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE metrics SET value = 99.0 WHERE setting = 'one' AND metric = 'accuracy'",
        "UPDATE metrics SET metric = 'f1' WHERE setting = 'one' AND metric = 'accuracy'",
        "UPDATE metrics SET value = 'much' WHERE setting = 'one' AND metric = 'accuracy'",
        "UPDATE predictions SET value = -value WHERE setting = 'one' AND name = 'prediction' AND example = 1",
        "UPDATE predictions SET value = 1.0 WHERE setting = 'one' AND name = 'prediction' AND example = 1",
        "UPDATE predictions SET value = x'00' WHERE setting = 'one' AND name = 'prediction' AND example = 1",
        "DELETE FROM predictions WHERE setting = 'one' AND name = 'prediction' AND example = 3",
        """UPDATE settings SET fields = '{"edits": ["two"]}' WHERE name = 'one'""",
        "UPDATE settings SET fields = 3 WHERE name = 'one'",
        "UPDATE settings SET place = 5 WHERE name = 'one'",
        "UPDATE settings SET digest = 'x' WHERE name = 'one'",
    ],
)
def test_a_row_that_was_changed_is_refused_by_name(tmp_path, statement):
    """Changed numbers in the database were shown as if they had been measured."""
    with Run.open(tmp_path, CONFIG) as run:
        fill(run, "one", 56.25)
        fill(run, "two")
        folder = run.folder
    change_row(folder, statement)
    with Run.read(folder) as run:
        for read in (run.fields, run.predictions, lambda _: run.metrics()):
            with pytest.raises(ArtefactError, match=r"'one' in .* has changed since|database of .* cannot be read"):
                read("one")
        assert run.fields("two") == {"edits": ["two"]}


def test_arrays_that_were_changed_are_refused(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        path = run.save_arrays("x", {"x": torch.arange(4.0)})
        content = bytearray(path.read_bytes())
        content[-1] ^= 0x80  # the sign of a number
        path.write_bytes(content)
        with pytest.raises(ArtefactError, match=r"'x' in .* is missing or damaged \(.* has changed since"):
            run.load_arrays("x")
        run.save_arrays("x", {"x": torch.zeros(2)})
        assert len(list((run.folder / "arrays").iterdir())) == 1
        change_row(run.folder, "UPDATE arrays SET file = '../config.json' WHERE name = 'x'")
        with pytest.raises(ArtefactError, match=r"'x' in .* is missing or damaged"):
            run.load_arrays("x")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"[]", "is not an object"),
        ("config.json", b"[" * 100_000, "nested"),
        ("config.json", b"\xff", "UTF-8"),
        ("config.json", b'{"model": "other"}', "another configuration|changed since the run began"),
        ("versions.json", b"3", "is not a list"),
        ("versions.json", b'[{"torch": 3}]', "is not a text"),
        ("versions.json", b"[" * 100_000, "nested"),
    ],
)
def test_files_of_a_run_that_are_damaged(tmp_path, name, content, words):
    with Run.open(tmp_path, CONFIG) as run:
        folder = run.folder
    (folder / name).write_bytes(content)
    with pytest.raises(ArtefactError, match=words):
        Run.open(tmp_path, CONFIG)
    if name == "config.json":
        with pytest.raises(ArtefactError, match=words):
            Run.read(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ArtefactError, match="is a folder"):
        Run.open(tmp_path, CONFIG)


def test_a_run_of_an_older_attrim(tmp_path):
    with Run.open(tmp_path, CONFIG) as run:
        folder = run.folder
        run._connection().execute("PRAGMA user_version = 0")
    with pytest.raises(ArtefactError, match=r"have format 0, not 2, so another attrim wrote them; move the folder"):
        Run.read(folder)


HOLD = """
import sys
from attrim.runs.run import Run
with Run.open(sys.argv[1], {"a": 1}):
    print("open", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_in_one_run(tmp_path):
    """The second one is told so; readers are not in the way, and the lock ends with a process that is killed."""
    command = ("-c", HOLD, str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forks.Process(*command, **pipes) as process:
        assert process.stdout.readline() == "open\n"
        [folder] = tmp_path.iterdir()
        with pytest.raises(ArtefactError, match=rf"Another process is writing to {folder}; wait .* another folder"):
            Run.open(tmp_path, {"a": 1})
        with Run.open(tmp_path, {"a": 2}), Run.read(folder) as run:
            assert run.settings() == []
        assert forks.run(*command, env={**os.environ, "RANK": "1"}).returncode == 0
        process.kill()
    with Run.open(tmp_path, {"a": 1}) as first, Run.open(tmp_path, {"a": 1}) as second:
        fill(first, "one")
        fill(second, "two")
        assert first.settings() == second.settings() == ["one", "two"]
    assert forks.run(*command).stdout == "open\n"


def test_two_processes_save_to_one_folder(tmp_path):
    """Stats of two processes: always one or the other, never a mixture or a missing file."""
    script = """
import sys, torch
from attrim.stats import Mean
from attrim.stats.bundle import Stats, save_stats
stat = Mean()
stat.update(torch.full((1, 1, 2, 2), float(sys.argv[2])))
for _ in range(60):
    save_stats([stat], sys.argv[1])

"""
    running = [forks.Process("-c", script, str(tmp_path / "stats"), value) for value in ("0.5", "0.25")]
    assert [process.wait() for process in running] == [0, 0]
    Stats.load(tmp_path / "stats")
    assert len(list((tmp_path / "stats").iterdir())) == 2


def test_folders_that_are_replaced_have_parts_of_their_own(tmp_path):
    target = tmp_path / "folder"

    def other(part: Path) -> None:
        (part / "file").write_text("other")

    def write(part: Path) -> None:
        (part / "file").write_text("mine")
        replace_folder(target, other)  # as another process may
        assert (part / "file").read_text() == "mine"

    (tmp_path / ".attrim-0.part" / "folder").mkdir(parents=True)  # of a process that was killed
    replace_folder(target, write)
    assert (target / "file").read_text() == "mine"
    with pytest.raises(ZeroDivisionError):
        replace_folder(target, lambda part: 1 / 0)
    assert (target / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_tables_that_were_half_made_are_made_again(tmp_path, monkeypatch):
    """A kill between two tables once left a run that no command could resume."""
    whole = attrim.runs.run._SCHEMA
    with monkeypatch.context() as patch:
        patch.setattr(attrim.runs.run, "_SCHEMA", whole.replace("PRAGMA user", "SELECT missing; PRAGMA user"))
        with pytest.raises(ArtefactError):
            Run.open(tmp_path, {"a": 1})
    with Run.open(tmp_path, {"a": 1}) as run:
        assert run.settings() == []
