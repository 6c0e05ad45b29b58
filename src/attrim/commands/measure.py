"""``attrim measure``: statistics of a model's attention over a data set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from ..errors import DataError
from .base import OnData, Outcome, named_values

if TYPE_CHECKING:
    from ..edits import Edit
    from ..measurement import Stats
    from ..stats import Stat
    from ..tasks import Task


@dataclass(kw_only=True)
class Measure(OnData):
    """Gather statistics of a model's attention in one pass over a data set, in bounded memory."""

    task: str = "text"
    """Name of the task that gives the texts (attrim ls tasks)."""
    text: tuple[str, ...] = ()
    """Texts to measure, written out here instead of read from a file."""
    stats: tuple[str, ...] = ("histogram", "moments")
    """Names of the stats (attrim ls stats), with options as in histogram:rows=true."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """Edit that is switched on while measuring (repeatable; applied in order)."""

    def run(self) -> Outcome:
        """Load everything, measure, and write stats and figures when ``output`` is given."""
        from ..edits import parse_edit
        from ..measurement import Checkpoint, measure
        from ..models.digests import tokenizer_digest

        edits = [parse_edit(text) for text in self.edit]
        watching = [parse_stat(text) for text in self.stats]
        task = self.load_task()
        model, tokenizer = task.load_model(self.model, **self.model_options()), self.load_tokenizer()
        self.check_stats(self.edit, model, tokenizer)
        checkpoint = None
        if self.output is not None:
            checkpoint = Checkpoint(self.output / "unfinished", identity=self._identity(task, edits))
        batches = task.feed(model, tokenizer)
        stats = measure(model, batches, watching, self.select(), self.progress, edits, checkpoint=checkpoint)
        stats.origin = dataclasses.replace(stats.origin, tokenizer=tokenizer_digest(tokenizer))
        notes, written = [], []
        if self.output is not None and checkpoint is not None:
            stats.save(self.output)
            checkpoint.remove()
            written = [str(path) for path in draw(stats, self.output / "figures", tokenizer)]
            notes = [
                "",
                f"Stats and figures are in {self.output}:",
                *(path for path in written if path.endswith("png")),
            ]
        data = {
            "model": self.model,
            "stats": {name: stat.summary() for name, stat in stats.items()},
            "output": str(self.output or ""),
            "figures": written,
        }
        return Outcome(data, [*tables(stats, self.model, tokenizer), *notes])

    def _identity(self, task: Task, edits: list[Edit]) -> dict[str, Any]:
        """What the numbers depend on beside what the stats know themselves."""
        from .evaluate import tensors_digest

        return {
            "model": self.model,
            "dtype": self.dtype,
            "task": task.options(),
            "data": task.fingerprint(),
            "tensors": tensors_digest(edits) if edits else None,
        }

    def load_task(self) -> Task:
        """The task, or the texts that were given instead of one."""
        if not self.text:
            return super().load_task()
        if self.data is not None:
            raise DataError("Both --text and --data say what to measure; give one of them.")
        from ..tasks.texts import Given

        length = Given.max_length if self.max_length is None else self.max_length
        return Given(texts=self.text, max_length=length, batch_size=self.batch_size)


def parse_stat(text: str) -> Stat:
    """The stat that a text such as ``histogram:rows=true`` describes."""
    from ..stats.base import STATS

    name, _, options = text.partition(":")
    kind = STATS[name]
    values = named_values([option for option in options.split(",") if option], f"stat {name}", kind)
    return kind(**values)


def tables(stats: Stats, model: str, tokenizer: Any) -> list[Any]:
    """What a person wants to see of the stats, the first table with the model's name."""
    from ..report.terminal import render_table

    found = [table for stat in stats.values() for table in stat.tables(tokenizer)]
    return [render_table(dataclasses.replace(table, title=f"{model}: {table.title}" if not number else table.title))
            for number, table in enumerate(found)]  # fmt: skip


def draw(stats: Stats, folder: Path, tokenizer: Any) -> list[Path]:
    """Write the charts of every stat; those of a second stat of one kind have its number in their names."""
    from ..report.paper import save

    written: list[Path] = []
    for name, stat in stats.items():
        suffix = name.removeprefix(type(stat).__name__)
        for chart in stat.charts(tokenizer):
            written += save(dataclasses.replace(chart, name=f"{chart.name}{suffix}"), folder)
    return written
