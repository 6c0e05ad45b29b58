"""``attrim evaluate``: what edits do to a model's score."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from .base import OnData, Outcome

if TYPE_CHECKING:
    from ..edits import Edit
    from ..evaluation import Result
    from ..tasks import Task


@dataclass(kw_only=True)
class Evaluate(OnData):
    """Evaluate a model on a task, unedited and once for every --edit, with the change and its interval."""

    edit: UseAppendAction[tuple[str, ...]] = ()
    """One row of the table (repeatable): threshold:0.001, or several in order: 'threshold:0.001 then gate:0.5'."""

    def run(self) -> Outcome:
        """Load everything, evaluate every setting, and keep them in a run folder when ``output`` is given."""
        from ..runs.run import Run
        from ..studies.settings import evaluate_each, parse_settings
        from .tables import CAPTION, results_table

        settings = parse_settings(self.edit, self.select())
        task = self.load_task()
        model, tokenizer = task.load_model(self.model, **self.model_options()), self.load_tokenizer()
        self.check_stats(self.edit, model, tokenizer)
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
        """Everything that the results depend on but the settings, so that a run can get more of them later."""
        return {
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "task": task.options(),
            "data": task.fingerprint(),
            "select": self.select().to_json(),
            "tensors": {name: digest for name, edits in settings.items() if (digest := tensors_digest(edits))},
        }


def tensors_digest(edits: Sequence[Edit]) -> str | None:
    """A hash of the tensors that edits hold, such as averages read from a folder; None when they hold none."""
    from ..edits import save_edits

    with TemporaryDirectory() as folder:
        save_edits(edits, folder)
        files = sorted(Path(folder).glob("*.safetensors"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else None


def count(results: Mapping[str, Result]) -> int:
    """The number of examples behind the metrics."""
    return int(next(iter(results.values())).to_json()["examples"])
