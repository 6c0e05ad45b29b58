"""``attrim evaluate``: what edits do to a model's score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from ..core.wording import counted
from ..errors import ParameterError
from ..studies.bench import Bench
from .base import Command, Outcome, register

if TYPE_CHECKING:
    from ..studies.findings import Setting


@register("evaluate")
@dataclass(frozen=True, kw_only=True)
class Evaluate(Command, Bench):
    """Evaluate a model on a task, unedited and once for every --edit, with the change and its interval."""

    output: Path | None = None
    """Folder of runs, to keep the results in; work that was interrupted resumes there."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """One row of the table: threshold:0.001, or several in order: 'threshold:0.001 then gate:0.5'."""

    def run(self) -> Outcome:
        """Load everything, evaluate every setting, and keep them in a run folder when ``output`` is given."""
        from ..core.site import Select
        from ..core.text import parse_chain
        from ..report.terminal import show
        from ..runs.result import results_table
        from ..studies.findings import Setting

        if not self.edit and self.select() != Select():
            raise ParameterError("--select-... says which heads edits change, and there is no --edit; leave it out.")
        settings = [Setting(text, edits=tuple(parse_chain(text, self.select()))) for text in self.edit]
        self.check_stats(self.edit)
        if self.output is None:
            results = self.evaluate(settings)
            notes = []
        else:
            with self.begin("evaluate", _tensors(settings)) as bench:
                results = bench.evaluate(settings)
                bench.require_run().finish()
            notes = [f"Results are in {bench.run_folder}"]
        about = {item.name: [note for edit in item.edits if (note := edit.note())] for item in settings}
        about = {name: texts for name, texts in about.items() if texts}
        data: dict[str, Any] = {
            "model": self.name,
            "task": self.loaded_task.options(),
            "results": {name: result.to_json() for name, result in results.items()},
            "notes": about,
        }
        examples = data["results"]["unedited"]["examples"]
        table = results_table(results, f"{self.name} on {self.task_name}, {counted(examples, 'example')}")
        said = [f"{name}: {'; '.join(texts)}" for name, texts in about.items()]
        return Outcome(data, [show(table), *said, *notes])


def _tensors(settings: Sequence[Setting]) -> dict[str, Any]:
    """A hash of each setting whose edits hold tensors, such as averages of a folder, which its text only names."""
    from ..edits.saving import fingerprint, holds_tensors

    return {"tensors": {item.name: fingerprint(item.edits) for item in settings if holds_tensors(item.edits)}}
