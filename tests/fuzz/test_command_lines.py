"""Command lines of every command end with exit code 0 or 2, and with at most one sentence on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from attrim.commands import commands
from attrim.commands.parsing import parse
from attrim.errors import AttrimError, DataError
from attrim.studies.demo import Demo
from fuzz.cases import FLAGS, command_line, configuration, fitting
from fuzz.scale import fuzzed, tried
from fuzz.trial import command_line as run

SMALL = {
    "sites": [],
    "measure": ["--task", "text", "--text", "some words", "more of them"],
    "evaluate": ["--task", "retrieval", "--data", "built-in", "--option", "paragraphs=4", "--limit", "4"],
    "bake": ["--rounds", "0", "--even-if-slower"],
    "export": ["--text", "word", "--select-layers", "0", "--select-heads", "0"],
}
"""What makes a command run on little; the last of two flags counts."""


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
def test_command_lines(random: Random) -> None:
    """Of all commands, with a model that does not exist: they end while flags, edits and data are read."""
    words = command_line(random)
    assert (run(words, 10), words) == ("", words)


@fuzzed("commands")
def test_commands_that_run(random: Random) -> None:
    """On a tiny model and a few texts, so that edits and stats meet a model."""
    words = command_line(random, tuple(SMALL), "tiny-bert")
    words += SMALL.get(words[0] if words else "", [])
    assert (run(words, 60), words) == ("", words)


@fuzzed("yaml", 0.9)
def test_yaml(random: Random) -> None:
    name = random.choice(["bake", "constant", "evaluate", "export", "measure", "sites", "sparsity", "train"])
    content = configuration(random, name)
    Path("c.yaml").write_bytes(content)
    words = [name, "nowhere", "--config", "c.yaml", *(["--output", "out"] if "output" in FLAGS[name] else [])]
    assert (run(words, 10), name, content) == ("", name, content)


@fuzzed("yaml", 0.1)
def test_yaml_means_what_flags_mean(random: Random) -> None:
    key = random.choice(["limit", "seed", "batch_size", "max_length", "device", "revision", "dtype"])
    text = fitting(random, FLAGS["evaluate"][key].hint)
    Path("one.yaml").write_text(yaml.dump({key: text}), encoding="utf-8", errors="surrogatepass")

    def read(*more: str) -> Any:
        try:
            return getattr(parse(["evaluate", "nowhere", "--task", "x", *more], commands()), key)
        except AttrimError:
            return "refused"

    assert read(f"--{key.replace('_', '-')}={text}") == read("--config", "one.yaml"), (key, text)


@pytest.mark.parametrize("name", ["", *FLAGS])
@pytest.mark.parametrize("more", [[], ["--json"], ["\0"]])
def test_help(name: str, more: list[str]) -> None:
    tried["command lines"] += 1
    assert run([name, "--help", *more] if name else ["--help", *more], 30) == ""
