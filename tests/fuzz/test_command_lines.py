"""Command lines of every command end with exit code 0 or 2, and with at most one sentence on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz.scale import fuzzed, tried
from fuzz.strategies import FIELDS, FLAGS, HEAVY, MEMBERS, NOISE, VALUES, command_line, mutated
from fuzz.trial import command_line as run
from hypothesis import given
from hypothesis import strategies as st

from attrim.commands import commands
from attrim.commands.parsing import parse
from attrim.errors import DataError
from attrim.studies.demo import Demo


@pytest.fixture(scope="module", autouse=True)
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where nothing is lost; and the demo, which needs no argument to run for minutes, ends when it would begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))

        def work(*_: Any) -> None:
            raise DataError("The demo is not run here.")

        patch.setattr(Demo, "work", work)
        yield


@fuzzed("command lines")
@given(command_line())
def test_command_lines(words: list[str]) -> None:
    """Of all commands, with a model that does not exist: they end while flags, edits and data are read."""
    tried["command lines"] += 1
    assert run(words, 5) == ""


@fuzzed("commands")
@given(command_line(("sites", "measure", "evaluate", "bake", "export"), "tiny-bert"))
def test_commands_that_run(words: list[str]) -> None:
    """On a tiny model and a few texts, so that edits and stats meet a model."""
    tried["commands"] += 1
    small = {
        "sites": [],
        "measure": ["--text", "some words", "more of them"],
        "evaluate": ["--task", "retrieval", "--data", "built-in", "--option", "paragraphs=4", "--limit", "4"],
        "bake": ["--rounds", "0", "--even-if-slower"],
        "export": ["--text", "word", "--select-layers", "0", "--select-heads", "0"],
    }
    assert run([*words, *small.get(words[0], [])] if words else words, 60) == ""


KEYS = {name: [key for key, flag in flags.items() if key not in HEAVY] for name, flags in FLAGS.items()}


@st.composite
def configuration(draw: Any) -> tuple[str, bytes]:
    """The name of a command and a YAML file for it, right or almost."""
    name = draw(st.sampled_from(sorted({*KEYS} - {"ls", "show", "demo"})))
    keys = st.one_of(st.sampled_from(KEYS[name]), mutated(st.sampled_from(KEYS[name])), FIELDS)
    scalars = st.one_of(VALUES, MEMBERS, st.integers(), st.floats(), st.booleans(), st.none(), NOISE)
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NOISE, inner, max_size=2), max_leaves=4
    )
    content: bytes = yaml.dump(draw(st.dictionaries(keys, values, max_size=4)), allow_unicode=True).encode(
        errors="surrogatepass"
    )
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = draw(st.integers(0, len(content)))
        piece = draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"&a ", b"*a", b"!!", b"[", b"{", b"? ", b"- ", b"\t"])))
        content = content[:place] + piece + content[place + draw(st.integers(0, 3)) :]
    return name, content


@fuzzed("yaml")
@given(configuration())
def test_yaml(case: tuple[str, bytes]) -> None:
    tried["yaml"] += 1
    name, content = case
    Path("c.yaml").write_bytes(content)
    words = [name, "nowhere", "--config", "c.yaml"]
    assert run([*words, "--output", "out"] if "output" in FLAGS[name] else words, 5) == ""


@fuzzed("yaml", 0.1)
@given(st.sampled_from(["limit", "seed", "batch_size", "max_length", "device", "revision", "dtype"]), VALUES)
def test_yaml_means_what_flags_mean(key: str, value: str) -> None:
    tried["yaml"] += 1
    words = ["evaluate", "nowhere", "--task", "x"]
    Path("one.yaml").write_text(yaml.dump({key: value}), encoding="utf-8", errors="surrogatepass")

    def read(more: list[str]) -> Any:
        try:
            return getattr(parse([*words, *more], commands()), key)
        except Exception as error:
            return type(error).__mro__[-3]

    flag = f"--{key.replace('_', '-')}={value}"
    assert read([flag]) == read(["--config", "one.yaml"])


@pytest.mark.parametrize("name", ["", *FLAGS])
@pytest.mark.parametrize("more", [[], ["--json"], ["\0"]])
def test_help(name: str, more: list[str]) -> None:
    tried["command lines"] += 1
    assert run([name, "--help", *more] if name else ["--help", *more], 30) == ""
