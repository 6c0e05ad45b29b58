"""A small constant study on sentences whose feeling one letter tells."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attrim.studies.bench import TrainingBench
from attrim.studies.constant import ConstantHeads
from attrim.studies.constant.findings import ConstantFindings

QUICK = {"epochs": 2, "learning_rate": 1e-3, "seeds": (0, 1), "order_epochs": 1, "budgets": ("0", "1/2", "all")}


def study(**fields) -> ConstantHeads:
    return ConstantHeads(**{**QUICK, "max_length": 24, **fields})


def bench(glue: Path, **fields) -> TrainingBench:
    shared = {"model": "tiny-bert", "task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs"}
    return TrainingBench(**{**shared, **fields})


def run(glue: Path, **fields) -> ConstantFindings:
    """The findings of a study whose fields, and those of its bench, are given in one."""
    own = {item.name for item in dataclasses.fields(ConstantHeads)}
    asked = {name: value for name, value in fields.items() if name in own}
    given = {name: value for name, value in fields.items() if name not in own}
    found = study(**asked).run(bench(glue, **given))
    assert isinstance(found, ConstantFindings)
    return found


def rows(found: ConstantFindings) -> dict[tuple[str, str, int], list[float]]:
    return {(row["family"], row["order"], row["heads"]): row["scores"] for row in found.data()["rows"]}


def chart_names(found: ConstantFindings) -> set[str]:
    return {chart.name for chart in found.charts()}
