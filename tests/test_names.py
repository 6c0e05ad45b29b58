"""A name means one thing: no two classes of the package share it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import attrim

SOURCES = Path(attrim.__file__).parent
# A command may have the name of the study or verb that it is about.
NOT_COMPARED = ("commands",)


def test_no_two_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in NOT_COMPARED
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert names["Threshold"] == 1
    assert [name for name, times in names.items() if times > 1] == []
