"""Earlier runs of the sparsity study, to draw several models or tasks in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ArtefactError
from ...evaluate import UNEDITED
from ...measure import Stats
from ...results import Result
from ...runs import Run


@dataclass(frozen=True)
class Earlier:
    """One earlier run: what to call it, its stats of the weights, and its results by setting."""

    label: str
    stats: Stats
    results: dict[str, Result]


def read_runs(folders: Sequence[Path | str]) -> list[Earlier]:
    """Read the runs; refuses folders that hold no run of this study."""
    return [read_run(folder) for folder in folders]


def read_run(folder: Path | str) -> Earlier:
    """Read one run."""
    with Run.read(folder) as run:
        if run.config.get("study") != "sparsity":
            raise ArtefactError(f"{folder} holds no run of the sparsity study; give a folder that it wrote.")
        stats = Stats.load(run.folder / "stats" / "weights")
        results = {name: result for name in run.settings() if (result := Result.load(run, name)) is not None}
        return Earlier(label(run.config), stats, results if UNEDITED in results else {})


def distinct(runs: Sequence[Earlier]) -> list[Earlier]:
    """The runs with numbers behind labels that occur more than once: legends and tables are made by label."""
    labels = [run.label for run in runs]
    return [
        replace(run, label=f"{run.label} ({labels[: place + 1].count(run.label)})")
        if labels.count(run.label) > 1
        else run
        for place, run in enumerate(runs)
    ]


def label(config: dict[str, Any]) -> str:
    """The name of a run's model and task, for legends."""
    return f"{Path(str(config.get('model', 'model'))).name}, {config['task']['name']}"
