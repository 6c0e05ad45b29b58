"""The examples of docs/quantize.md print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quantize.md"


@pytest.fixture(autouse=True)
def _printing():
    yield
    torch.set_printoptions(profile="default")


def test_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # the page is ours
        assert printed.getvalue() == shown, code
