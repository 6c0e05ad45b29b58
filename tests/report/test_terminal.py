"""Tables as text: in a narrow terminal too, every number stands on one line."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attrim.core.charts import Column, Table
from attrim.report.terminal import show

COLUMNS = [Column("scope"), Column("score"), Column("area", "number"), Column("95 % interval"), Column("minus random")]
ROWS = [
    ["example", "gradient-attention", 33.3, "31.98 to 34.90", "-23.41 [-24.81, -22.11]"],
    ["dataset", "lrp", 40.5, "38.76 to 42.35", "-16.19 [-17.42, -14.98]"],
]


def printed(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(show(table))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "parts"), [(120, 1), (80, 2), (58, 2)])
def test_a_table_that_is_too_wide_is_cut_into_several(width: int, parts: int) -> None:
    table = Table("areas", "areas", columns=COLUMNS, rows=ROWS, caption="a caption", sections=[1])
    lines = printed(table, width)
    assert max(map(len, lines)) <= width
    for cell in ("31.98 to 34.90", "-23.41 [-24.81, -22.11]", "-16.19 [-17.42, -14.98]", "40.50"):
        assert sum(cell in line for line in lines) == 1
    assert sum("gradient-attention" in line for line in lines) == parts
    assert sum(line.strip() == "areas" for line in lines) == sum("a caption" in line for line in lines) == 1


def test_sentences_and_what_fits_nowhere_are_folded() -> None:
    told = Table("t", columns=[Column("name"), Column("what it is")], rows=[["one", "words and words " * 10]])
    assert sum("name" in line for line in printed(told, 60)) == 1
    long = Table("t", columns=[Column("setting"), Column("area", "number")], rows=[["x" * 29, 1.0]])
    assert "".join(line.split("│")[1].strip() for line in printed(long, 20) if "│" in line) == "x" * 29
