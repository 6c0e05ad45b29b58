"""Tables as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.charts import Table
from ..runs.files import replace_file, storage


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write every table to ``folder`` under its own name; returns the files."""
    written = []
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow([column.name for column in table.columns])
            writer.writerows([[_cell(cell) for cell in row] for row in table.rows])
            path = folder / f"{table.name}.csv"
            replace_file(path, text.getvalue().encode())
            written.append(path)
    return written


def _cell(cell: Any) -> Any:
    """Numbers with six digits, which is more than they mean; nothing where there is none."""
    return f"{cell:.6g}" if isinstance(cell, float) else cell
