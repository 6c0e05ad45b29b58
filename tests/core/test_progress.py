"""Progress where there is no terminal."""

from __future__ import annotations

import time

import pytest

from attrim.core import progress
from attrim.core.progress import progress_bar, track


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.2)


def test_long_work_says_what_it_does_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in track(["one", "two", "three"], "evaluating {}".format):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "attrim: evaluating one (1 of 3, 0 s)"
    assert 2 <= len(lines) <= 4
    assert "evaluating three (3 of 3" in lines[-1]


def test_one_long_piece_of_work_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(None, "measuring"):
        time.sleep(0.5)
    assert capsys.readouterr().err.count("attrim: measuring (") >= 2


def test_short_work_and_work_that_is_told_to_be_quiet_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(track(range(3), str))
    for _ in track(range(3), str, enabled=False):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), progress_bar(2, "measuring"):
        raise ValueError("broken")
    time.sleep(0.2)
    assert capsys.readouterr().err == ""
    assert progress._Lines.open == []


def test_of_two_the_inner_one_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2, "outer"), progress_bar(3, "inner"):
        time.sleep(0.15)
    assert capsys.readouterr().err.splitlines() == ["attrim: inner (1 of 3, 0 s)"]
