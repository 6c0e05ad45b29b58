"""Figures are drawn once, by processes beside this one, and errors come back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attrim.core.charts import Axis, Chart, Curve, Series
from attrim.errors import ArtefactError, ParameterError
from attrim.report import drawing
from attrim.report.drawing import RECORD, Drawing, save_all

pytestmark = pytest.mark.usefixtures("rendered")


def curve(name: str, top: float = 2.0) -> Chart:
    return Curve(name, x=Axis("x"), y=Axis("y"), series=[Series("one", [1.0, 2.0, 3.0], [0.0, 1.0, top])])


def times(files: list[Path]) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("worth", [1, 100], ids=["processes", "here"])
def test_only_what_is_missing_or_changed_is_drawn(worth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "WORTH", worth)
    charts = [curve("a"), curve("b"), curve("c")]
    files = save_all(charts, tmp_path, ("png", "svg"))
    assert [file.name for file in files] == ["a.png", "a.svg", "b.png", "b.svg", "c.png", "c.svg"]
    first = times(files)
    assert times(save_all(charts, tmp_path, ("png", "svg"))) == first
    (tmp_path / "b.svg").unlink()
    again = times(save_all([curve("a"), curve("b"), curve("c", 5.0)], tmp_path, ("png", "svg")))
    assert {name for name, time in again.items() if time != first[name]} == {"b.svg", "c.png", "c.svg"}
    other = times(save_all([curve("a")], tmp_path, ("png", "pdf")))
    assert other["a.png"] == first["a.png"]
    assert all(time > first["a.png"] for time in times(save_all([curve("a")], tmp_path, redraw=True)).values())


def test_a_changed_chart_in_one_format_leaves_no_old_picture_in_another(tmp_path: Path) -> None:
    save_all([curve("a")], tmp_path, ("png", "svg"))
    old = (tmp_path / "a.svg").read_bytes()
    save_all([curve("a", 7.0)], tmp_path, ("png",))
    save_all([curve("a", 7.0)], tmp_path, ("png", "svg"))
    assert (tmp_path / "a.svg").read_bytes() != old


def test_processes_draw_what_this_one_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charts = [curve(name) for name in "abcdef"]
    save_all(charts[:1], tmp_path / "here")
    drawn: list[str] = []
    monkeypatch.setattr("attrim.report.paper.save", lambda chart, *_: drawn.append(chart.name))
    save_all(charts, tmp_path / "beside")
    assert drawn == []
    for suffix in ("png", "svg"):
        assert (tmp_path / "beside" / f"a.{suffix}").read_bytes() == (tmp_path / "here" / f"a.{suffix}").read_bytes()


def test_files_of_the_current_folder_do_not_pass_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matplotlib.py").write_text("open('ran', 'w')")
    monkeypatch.syspath_prepend("")
    save_all([curve(name) for name in "abcdef"], tmp_path / "figures", ("png",))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("record", ["", "[]", "{", '{"a.png": 3}', "[" * 100_000])
def test_a_damaged_record_is_no_record(record: str, tmp_path: Path) -> None:
    (before,) = times(save_all([curve("a")], tmp_path, ("png",))).values()
    (tmp_path / RECORD).write_text(record)
    (after,) = times(save_all([curve("a")], tmp_path, ("png",))).values()
    assert after > before
    assert list(json.loads((tmp_path / RECORD).read_text())) == ["a.png"]


def test_errors_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="without a name"):
        save_all([curve("")], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be written"):
        save_all([curve(name) for name in "abcdef"], tmp_path / "file")


def test_processes_end_with_the_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tables"), Drawing([curve(n) for n in "abcdef"], tmp_path, ("pdf",)) as work:
        raise ValueError("tables")
    assert len(work._workers) == (2 if (os.cpu_count() or 1) > 1 else 0)
    assert all(worker.poll() is not None for worker in work._workers)


def test_without_processes_figures_are_drawn_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert all(file.is_file() for file in save_all([curve(name) for name in "abcdef"], tmp_path, ("png",)))
