"""A small prune study on sentences whose feeling one letter tells."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attrim.studies.bench import FinetuningBench
from attrim.studies.prune import Prune
from attrim.studies.prune.findings import PruneFindings

QUICK = {"steps": 2, "learning_rate": 5e-3, "seeds": (0,), "taus": (0.8,), "head_examples": 0}


def study(**fields) -> Prune:
    return Prune(**{**QUICK, **fields})


def bench(glue: Path, **fields) -> FinetuningBench:
    shared = {"model": "tiny-bert", "task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs"}
    return FinetuningBench(**{**shared, "quiet": True, **fields})


def run(glue: Path, **fields) -> PruneFindings:
    """The findings of a study whose fields, and those of its bench, are given in one."""
    own = {item.name for item in dataclasses.fields(Prune)}
    asked = {name: value for name, value in fields.items() if name in own}
    given = {name: value for name, value in fields.items() if name not in own}
    found = study(**asked).run(bench(glue, **given))
    assert isinstance(found, PruneFindings)
    return found
