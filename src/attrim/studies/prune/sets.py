"""The data that models are evaluated on: the held-out part of the task's own, and further sets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import record
from ...core.registry import TASKS
from ...core.text import parse_options
from ...errors import ParameterError
from ...tasks.base import Task
from ..bench import TrainingBench
from .study import Prune

OWN = "held-out"
"""The name of the data that belongs to the training data."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Examples to evaluate on.

    Attributes
    ----------
    key : begins the names of results, so that another set under the same name has results of its own.
    """

    name: str
    task: Task
    key: str


def data_sets(bench: TrainingBench, study: Prune) -> list[DataSet]:
    """The held-out data, and the further sets of ``evaluate_data``."""
    found = [DataSet(OWN, bench.validation_task(), OWN)]
    names: list[str] = []
    for entry in study.evaluate_data:
        name, equals, place = entry.partition("=")
        if not equals or "/" in name:  # a path alone
            name, place = Path(entry).stem, entry
        if name in (OWN, *names):
            raise ParameterError(f"Data to evaluate on needs names of its own, not {name!r}; give NAME=PATH.")
        names.append(name)
        task = bench.validation_task(data=place, **_options(bench, study, name))
        found.append(DataSet(name, task, f"{name}-{task_key(task)}"))
    for entry in study.evaluate_option:
        owner = _owner(entry)
        if (owner and owner not in names) or not names:
            raise ParameterError(f"--evaluate-option {entry} is for no set of --evaluate-data.")
    return found


def averaged_task(bench: TrainingBench, study: Prune, elsewhere: bool = False) -> Task:
    """The training data, or the other data, that attention is averaged over."""
    task = bench.training_task()
    if not elsewhere:
        limits = [limit for limit in (study.average_examples, task.limit) if limit is not None]
        return dataclasses.replace(task, limit=min(limits, default=None))
    changes = {"limit": study.average_examples, **_parsed(bench, study.average_option)}
    if study.average_data is not None:
        changes["data"] = study.average_data
    return dataclasses.replace(task, **changes)


def task_key(task: Task) -> str:
    """A short name for the examples of a task and how they are read."""
    text = json.dumps([record.dump(task.options()), task.fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _owner(entry: str) -> str:
    """The set that an option is for; empty where it is for all."""
    owner, colon, rest = entry.partition(":")
    return owner if colon and "=" not in owner and "=" in rest else ""


def _options(bench: TrainingBench, study: Prune, name: str) -> Mapping[str, Any]:
    own = [entry for entry in study.evaluate_option if _owner(entry) in ("", name)]
    return _parsed(bench, tuple(entry.removeprefix(f"{name}:") for entry in own))


def _parsed(bench: TrainingBench, options: tuple[str, ...]) -> dict[str, Any]:
    kind = TASKS[bench.task_name]
    return parse_options(options, kind, f"task {bench.task_name}")
