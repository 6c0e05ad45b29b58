"""A small constant study on sentences whose feeling one letter tells."""

from __future__ import annotations

from pathlib import Path

from attrim.commands import Constant
from attrim.tasks import Task, load_task


def command(glue: Path, **fields) -> Constant:
    shared = {"model": "tiny-bert", "task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs"}
    quick = {"max_length": 24, "epochs": 2, "learning_rate": 1e-3, "seeds": (0, 1), "formats": ("png",)}
    return Constant(**{**shared, **quick, "order_epochs": 1, "budgets": ("0", "1/2", "all"), **fields})


def tasks(glue: Path, length: int) -> list[Task]:
    options = {"data": str(glue), "layout": "grid", "max_length": length}
    return [load_task("glue/sst2", split=split, **options) for split in ("train", "validation")]


def rows(outcome) -> dict[tuple[str, str, int], list[float]]:
    return {(row["family"], row["order"], row["heads"]): row["scores"] for row in outcome.data["rows"]}
