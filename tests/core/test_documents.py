"""JSON and YAML files: values, or one sentence, whatever the file holds."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.cli import main
from attrim.core import documents
from attrim.core.documents import MissingFile, Unreadable, parse_json, parse_yaml, read_json
from attrim.errors import ArtefactError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_json_comes_back(values: Any) -> None:
    assert parse_json(json.dumps(values).encode()) == values


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:0123456789.eE-+nultrfasNI\\ud ', max_size=40).map(str.encode))
def test_whatever_it_is_it_is_values_or_unreadable(content: bytes) -> None:
    for parse in (parse_json, parse_yaml):
        with suppress(Unreadable):
            parse(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "nested more than 64 deep"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        (b'{"a":' * 100_000, "nested more than 64 deep"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"NaN", "NaN is not a number in JSON"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"[1e999]", "too large"),
        (b"1" * 5_000, "integer string"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' occurs twice"),
        (rb'["\ud800"]', "not Unicode"),
        (b"", "at line 1"),
    ],
)
def test_json_that_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        parse_json(content)
    assert parse_json(b"[" * 64 + b"]" * 64)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingFile, match="missing; do this"):
        read_json(tmp_path / "none.json", "do this")
    with pytest.raises(ArtefactError, match=r"is a folder.*do this"):
        read_json(tmp_path, "do this")
    with pytest.raises(ArtefactError, match="not a plain file"):
        read_json(Path("/dev/zero"), "do this")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtefactError, match="not a plain file"):
        read_json(tmp_path / "pipe", "do this")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_json(tmp_path / "loop", "do this")
    monkeypatch.setattr(documents.read_bytes, "__defaults__", (10,))
    (tmp_path / "large.json").write_text("[1, 2, 3, 4, 5]")
    with pytest.raises(ArtefactError, match="more than 0 MiB"):
        read_json(tmp_path / "large.json", "do this")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 100,000 values"),
        ("a: &a [*a]", "nested more than 64 deep"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("a: " * 3 + "\x00", "special characters"),
        ("a: 1\nb: 2\na: 3", "'a' occurs twice"),
        ("? [a, b]\n: c", "in place of a key"),
        ('a: "\\ud800"', "not Unicode"),
        ("x: " + "y" * 2**20, "more than 1 MiB"),
    ],
)
def test_yaml_that_is_refused(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one printed 254 MB."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    started = time.monotonic()
    assert main(["evaluate", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said) < 1_000
    assert time.monotonic() - started < 10


def test_yaml_values_stay_texts_and_aliases_may_be_used() -> None:
    assert parse_yaml(b"a: &x [1e-3, 0123]\nb: *x\nc: {d: true}") == {
        "a": ["1e-3", "0123"], "b": ["1e-3", "0123"], "c": {"d": "true"},
    }  # fmt: skip
    assert parse_yaml(b"") is None
