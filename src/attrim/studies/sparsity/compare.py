"""Earlier runs of the sparsity study, to draw several models or tasks in one figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core.registry import TASKS
from ...errors import ArtefactError
from ...evaluation import UNEDITED
from ...measurement import Stats
from ...runs.files import replace_file, storage
from ...runs.result import Result
from ...runs.run import Run
from .sweep import Setting

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Earlier:
    """One run: what to call it, its stats of the weights, what was tried, and the results by setting."""

    label: str
    stats: Stats
    results: dict[str, Result] = field(default_factory=dict)
    settings: Sequence[Setting] = ()
    model: str = "model"
    task: str = ""

    @property
    def metric(self) -> str:
        """The task's first metric."""
        return next(iter(self.results[UNEDITED].metrics))

    @property
    def smaller_is_better(self) -> bool:
        """Whether a smaller score is a better one."""
        return self.metric in TASKS[self.task].smaller_is_better

    @property
    def score_label(self) -> str:
        """What stands at an axis of scores."""
        return f"{self.metric}, smaller is better" if self.smaller_is_better else f"{self.metric} (%)"

    def group(self, name: str) -> list[Setting]:
        """The settings of a group that have a result."""
        return [setting for setting in self.settings if setting.group == name and setting.name in self.results]


def read_runs(folders: Sequence[Path | str]) -> list[Earlier]:
    """Read the runs; refuses folders that hold no run of this study."""
    return [read_run(folder) for folder in folders]


def read_run(folder: Path | str) -> Earlier:
    """Read one run."""
    with Run.read(folder) as run:
        if run.config.get("study") != "sparsity":
            raise ArtefactError(f"{folder} holds no run of the sparsity study; give a folder that it wrote.")
        results = {name: result for name in run.settings() if (result := Result.load(run, name)) is not None}
        stats = Stats.load(run.folder / "stats" / "weights")
        return of_run(run, stats, results if UNEDITED in results else {}, stored_settings(run))


def of_run(run: Run, stats: Stats, results: dict[str, Result], settings: Sequence[Setting]) -> Earlier:
    """A run with what was found in it, named after its model and task."""
    model, task = Path(str(run.config.get("model", "model"))).name, str(run.config["task"]["name"])
    return Earlier(f"{model}, {task}", stats, results, settings, model, task)


def store_settings(run: Run, settings: Sequence[Setting]) -> None:
    """Keep which line of a figure each setting belongs to, beside those of earlier sweeps of the same run."""
    known = {(setting.group, setting.name): setting for setting in (*stored_settings(run), *settings)}
    rows = [
        {"name": setting.name, "group": setting.group, "value": setting.value, "label": setting.label}
        for setting in known.values()
    ]
    with storage(run.folder):
        replace_file(run.folder / SETTINGS, json.dumps(rows, indent=1).encode())


def stored_settings(run: Run) -> list[Setting]:
    """What :func:`store_settings` kept; their edits are not."""
    path = run.folder / SETTINGS
    if not path.exists():
        return []
    with storage(run.folder):
        return [Setting(**row, edits=()) for row in json.loads(path.read_text(encoding="utf-8"))]


def distinct(runs: Sequence[Earlier]) -> list[Earlier]:
    """The runs with numbers behind names that occur more than once: legends and tables are made by name."""
    labels = [run.label for run in runs]
    named = []
    for place, run in enumerate(runs):
        number = f" ({labels[: place + 1].count(run.label)})" if labels.count(run.label) > 1 else ""
        named.append(replace(run, label=f"{run.label}{number}", model=f"{run.model}{number}"))
    return named
