"""``attrim evaluate``: what edits do to a model's score."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from .base import OnData, Outcome

if TYPE_CHECKING:
    from ..edits import Edit
    from ..evaluate import Result
    from ..runs import Run
    from ..select import Select
    from ..tasks import Task


@dataclass(kw_only=True)
class Evaluate(OnData):
    """Evaluate a model on a task, unedited and once for every --edit, with the change and its interval."""

    edit: UseAppendAction[tuple[str, ...]] = ()
    """One row of the table (repeatable): threshold:0.001, or several in order: 'threshold:0.001 then gate:0.5'."""

    def run(self) -> Outcome:
        """Load everything, evaluate every setting, and keep them in a run folder when ``output`` is given."""
        from ..runs import Run

        settings = parse_settings(self.edit, self.select())
        task = self.load_task()
        model, tokenizer = self.load_model(task.kind), self.load_tokenizer()
        if self.output is None:
            results = evaluate_each(model, task, tokenizer, settings, progress=self.progress)
            notes = []
        else:
            with Run.open(self.output, self._identity(task, settings), name="evaluate") as run:
                results = evaluate_each(model, task, tokenizer, settings, run=run, progress=self.progress)
                run.finish()
            notes = [f"Results are in {run.folder}"]
        data = {
            "model": self.model,
            "task": task.options(),
            "results": {name: result.to_json() for name, result in results.items()},
        }
        title = f"{self.model} on {self.task}, {count(results)} examples"
        return Outcome(data, [results_table(results, title), CAPTION, *notes])

    def _identity(self, task: Task, settings: Mapping[str, Sequence[Edit]]) -> dict[str, Any]:
        """Everything that the results depend on."""
        return {
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "task": task.options(),
            "data": task.fingerprint(),
            "edits": list(settings),
            "select": self.select().to_json(),
        }


CAPTION = "Change: against the unedited model, with 95 % paired bootstrap interval. Zeros: share of attention weights."


def parse_settings(texts: Sequence[str], select: Select | None = None) -> dict[str, list[Edit]]:
    """Read every text as edits joined by ``then``; ``select`` is for those that select nothing themselves."""
    from ..edits import parse_edit
    from ..select import Select

    settings: dict[str, list[Edit]] = {}
    for text in texts:
        edits = [parse_edit(part) for part in text.split(" then ")]
        settings[text] = [
            dataclasses.replace(edit, select=select) if select is not None and edit.select == Select() else edit
            for edit in edits
        ]
    return settings


def evaluate_each(
    model: Any,
    task: Task,
    tokenizer: Any,
    settings: Mapping[str, Sequence[Edit]],
    run: Run | None = None,
    progress: bool = False,
) -> dict[str, Result]:
    """Evaluate the unedited model and every setting, with a bar that advances by settings."""
    from rich.console import Console
    from rich.progress import Progress

    from ..evaluate import UNEDITED, evaluate_settings

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
        work = bar.add_task("evaluating unedited", total=1 + len(settings))
        results = evaluate_settings(model, task, tokenizer, {}, run=run)
        for name, edits in settings.items():
            bar.update(work, advance=1, description=f"evaluating {name}")
            unedited = results[UNEDITED]
            results |= evaluate_settings(model, task, tokenizer, {name: edits}, baseline=unedited, run=run)
    return results


def count(results: Mapping[str, Result]) -> int:
    """The number of examples behind the metrics."""
    return int(next(iter(results.values())).to_json()["examples"])


def results_table(results: Mapping[str, Result], title: str) -> Any:
    """A table with one row for each setting."""
    from rich.table import Table

    first, *others = next(iter(results.values())).metrics
    distances = list(dict.fromkeys(name for result in results.values() for name in result.distances))
    table = Table("setting", "zeros", first, "change", *others, *distances, title=title)
    for name, result in results.items():
        table.add_row(
            name,
            f"{100 * result.zero_share:.1f} %",
            f"{result.metrics[first]:.2f}",
            str(result.changes[first]) if first in result.changes else "",
            *(f"{result.metrics[other]:.2f}" for other in others),
            *(f"{result.distances[key]:.4f}" if key in result.distances else "" for key in distances),
        )
    return table
