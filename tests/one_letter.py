"""Sentences whose feeling one letter tells, in the files of SST-2."""

from __future__ import annotations

from pathlib import Path


def write_sst2(folder: Path, train: int, dev: int) -> Path:
    """Write so many sentences to ``folder`` and return it."""
    folder.mkdir()
    for name, size in {"train": train, "dev": dev}.items():
        rows = "".join(f"{'zzzz' if i % 2 else 'aaaa'} {'b' * (i % 7)}{i}\t{i % 2}\n" for i in range(size))
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    return folder
