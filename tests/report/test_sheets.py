"""Tables as CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from attrim.core.charts import Column, Table
from attrim.errors import AttrimError
from attrim.report.sheets import write_tables

TABLE = Table(
    "heads", "A title", columns=[Column("edit"), Column("zeros", "percent", 1), Column("rows", "count")],
    rows=[["threshold:0.1,top=2", 1 / 3, 12345], [None, float("nan"), 0]],
)  # fmt: skip


def test_tables_are_written_under_their_names_with_their_numbers(tmp_path: Path) -> None:
    (path,) = write_tables([TABLE], tmp_path / "tables")
    assert path == tmp_path / "tables" / "heads.csv"
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["edit", "zeros", "rows"], ["threshold:0.1,top=2", "0.333333", "12345"], ["", "", "0"],
        ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AttrimError):
        write_tables([TABLE], tmp_path / "file" / "tables")
