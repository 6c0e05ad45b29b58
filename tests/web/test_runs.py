"""Runs in the app: found, named, searched for what they found, compared, and followed while they go on."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import forks
from attrim.errors import ArtefactError
from attrim.report.page.payload import payload
from attrim.runs.locks import is_locked
from attrim.runs.run import Run
from attrim.studies.findings import findings
from attrim.web.catalogue import Catalogue
from served import client


@pytest.fixture
def asked(runs: Path) -> TestClient:
    """A client of the two runs."""
    return client(catalogue=Catalogue([runs]))


def listed(asked: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked.get("/api/runs").json()["runs"]
    return found


def test_runs_are_listed_with_what_they_are_about(asked: TestClient, runs: Path, lively: Path) -> None:
    found = listed(asked)
    assert {run["name"] for run in found} == {path.name for path in runs.iterdir()}
    for run in found:
        assert (run["study"], run["model"], run["task"]) == ("heads", str(lively), "glue/sst2")
        assert run["state"] == "complete"
        assert run["findings"]
        assert run["settings"] > 0
        assert run["begun"] <= run["changed"] <= time.time()
        assert str(runs) not in json.dumps(run)


def test_a_run_is_shown_as_the_report_shows_it(asked: TestClient, runs: Path) -> None:
    for run in listed(asked):
        answer = asked.get("/api/payload", params={"run": run["id"]})
        assert answer.status_code == 200, answer.text
        assert answer.json() == json.loads(json.dumps(payload([findings(runs / run["name"])])))


def test_runs_are_compared(asked: TestClient) -> None:
    ids = [run["id"] for run in listed(asked)]
    answer = asked.get("/api/payload", params={"run": ids}).json()
    assert len(answer["runs"]) == 2
    assert answer["differences"] is not None


def test_a_run_that_is_not_there(asked: TestClient) -> None:
    for address in ("/api/runs/0123456789abcdef/progress", "/api/payload?run=0123456789abcdef", "/api/payload?run=.."):
        answer = asked.get(address)
        assert answer.status_code == 404
        assert answer.json()["error"].startswith("There is no such run")
    assert asked.get("/api/payload").status_code == 422
    assert asked.get("/api/payload", params={"run": ["0" * 16] * 9}).status_code == 422


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="There is no folder"):
        Catalogue([tmp_path / "nowhere"])


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    """Another process has the run open and stores results; this one sees them, and when it ends."""
    code = (
        "import sys; from attrim.runs.run import Run\n"
        f"run = Run.open({str(tmp_path)!r}, {{'study': 'sparsity', 'model': 'm', 'task': {{'name': 't'}}}}, name='s')\n"
        "print('open', flush=True)\n"
        "for line in sys.stdin:\n"
        "    run.store(line.strip(), {'accuracy': 51.5}); print('stored', flush=True)\n"
        "run.finish(); run.close()\n"
    )
    asked = client(catalogue=Catalogue([tmp_path]))
    with forks.Process("-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        (run,) = listed(asked)
        assert (run["state"], run["settings"]) == ("going on", 0)
        other.stdin.write("threshold:0.1\n")
        other.stdin.flush()
        other.stdout.readline()
        progress = asked.get(f"/api/runs/{run['id']}/progress").json()
        assert progress["run"]["settings"] == 1
        assert progress["run"]["state"] == "going on"
        (result,) = progress["results"]
        assert (result["name"], result["metrics"]) == ("threshold:0.1", {"accuracy": 51.5})
        assert is_locked(tmp_path / run["name"])  # asking did not take the lock away
        other.stdin.close()
        assert other.wait(60) == 0
    (run,) = listed(asked)
    assert run["state"] == "complete"


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    with Run.open(tmp_path, {"study": "sparsity", "model": "m"}) as run:
        run.store("unedited", {"accuracy": float("nan"), "f1": 1.0})
        assert is_locked(run.folder)
        assert is_locked(run.folder)  # its own lock is still there
    (found,) = listed(client(catalogue=Catalogue([tmp_path])))
    assert found["state"] == "stopped"
    asked = client(catalogue=Catalogue([tmp_path]))
    progress = asked.get(f"/api/runs/{found['id']}/progress")
    assert progress.json()["results"][0]["metrics"] == {"accuracy": None, "f1": 1.0}
    answer = asked.get("/api/payload", params={"run": found["id"]})
    assert answer.status_code == 422
    assert "holds no findings" in answer.json()["error"]


HOSTILE = [
    "<script>alert(1)</script>",
    "a\u202eb",
    "'; DROP TABLE settings; --",
    "x" * 200,
    "quote\"'&<>",
    " ",
    "😀",
    "%2e%2e",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_runs_are_texts(tmp_path: Path, name: str) -> None:
    with Run.open(tmp_path / "run", {"study": name, "model": name, "task": {"name": name}}) as run:
        run.store(name, {name: 1.0})
    folder = tmp_path / (name.replace("/", "_"))
    shutil.move(run.folder, folder)
    asked = client(catalogue=Catalogue([tmp_path]))
    (found,) = listed(asked)
    assert (found["study"], found["model"], found["task"]) == (name, name, name)
    assert found["name"] == folder.name
    progress = asked.get(f"/api/runs/{found['id']}/progress").json()
    assert progress["results"][0]["name"] == name


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        lambda folder: (folder / "config.json").write_text("[1, 2]"),
        lambda folder: (folder / "config.json").write_text('{"study": {"a": [1]}, "model": 5, "task": []}'),
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
        lambda folder: (folder / "results.sqlite").write_bytes(b"no database at all" * 100),
        lambda folder: (folder / "results.sqlite").write_bytes(b""),
        lambda folder: (folder / "findings.json").write_text("{}"),
        lambda folder: (folder / "findings.json").write_text('{"format": 1, "study": "__import__"}'),
    ],
)
def test_damaged_runs_are_sentences(tmp_path: Path, runs: Path, damage: Any) -> None:
    folder = tmp_path / "runs" / "one"
    shutil.copytree(next(runs.iterdir()), folder)
    damage(folder)
    asked = client(catalogue=Catalogue([tmp_path / "runs"]))
    (run,) = listed(asked)
    for address in (f"/api/runs/{run['id']}/progress", f"/api/payload?run={run['id']}"):
        answer = asked.get(address)
        assert answer.status_code in (200, 422), answer.text
        assert "Traceback" not in answer.text


def test_links_are_not_followed(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(next(runs.iterdir()))
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    assert listed(client(catalogue=Catalogue([tmp_path / "runs"]))) == []
    assert len(listed(client(catalogue=Catalogue([next(runs.iterdir())])))) == 1  # a run that was named itself


def test_looking_changes_nothing(tmp_path: Path, runs: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    asked = client(catalogue=Catalogue([folder]))
    for run in listed(asked):
        asked.get(f"/api/runs/{run['id']}/progress")
        asked.get("/api/payload", params={"run": run["id"]})
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_runs_inside_of_runs_are_its_parts(tmp_path: Path) -> None:
    with Run.open(tmp_path, {"study": "prune"}, name="outer") as outer:
        for number, done in enumerate((True, False)):
            with Run.open(outer.folder / "trainings", {"study": "train", "seed": number}) as inner:
                if done:
                    inner.finish()
    (run,) = listed(client(catalogue=Catalogue([tmp_path])))
    assert run["parts"] == [1, 2]
    with sqlite3.connect(outer.folder / "results.sqlite") as database:
        assert database.execute("SELECT count(*) FROM settings").fetchone() == (0,)
