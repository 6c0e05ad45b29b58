"""What the tests of studies share."""

from __future__ import annotations

from pathlib import Path

import pytest

from one_letter import write_sst2


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_sst2(tmp_path / "glue", train=48, dev=16)
