"""The examples of the docs pages print what the pages show."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(autouse=True)
def _printing():
    yield
    torch.set_printoptions(profile="default")


@pytest.mark.parametrize(("page", "examples"), [("edits.md", 9), ("quantize.md", 3), ("bake.md", 1)])
def test_examples(page: str, examples: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) >= examples
    names: dict[str, object] = {}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # the page is ours
        assert printed.getvalue() == shown, code
