"""``attrim measure``: statistics of a model's attention over a data set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..errors import DataError
from ..studies.bench import Bench
from .base import Chain, Command, Outcome, register

if TYPE_CHECKING:
    from ..tasks.base import Task


@register("measure")
@dataclass(frozen=True, kw_only=True)
class Measure(Command, Bench):
    """Gather statistics of a model's attention in one pass over a data set, in bounded memory."""

    task: Annotated[Any, arg(constructor=str, help_behavior_hint="(default: text)")] = "text"
    """Name of the task that gives the texts (attrim ls tasks)."""
    output: Path | None = None
    """Folder to write stats and figures to; a pass that was stopped resumes there."""
    text: tuple[str, ...] = ()
    """Texts to measure, written out here instead of read from a file."""
    stats: tuple[str, ...] = ("histogram", "moments")
    """Names of the stats (attrim ls stats), with options as in histogram:rows=true."""
    edit: Chain = ()
    """Edits that are switched on while measuring: threshold:0.001, or several in order with then."""

    def run(self) -> Outcome:
        """Load everything, measure, and write stats and figures when ``output`` is given."""
        from ..core.registry import STATS
        from ..core.text import parse, parse_one_chain
        from ..edits.saving import fingerprint
        from ..measurement import Checkpoint, measure
        from ..models.digests import tokenizer_digest
        from ..report.drawing import save_all
        from ..report.terminal import show

        edits = parse_one_chain(self.edit)
        watching = [parse(STATS, text) for text in self.stats]
        model, tokenizer = self.loaded_model, self.loaded_tokenizer
        self.check_stats(self.edit)
        checkpoint = None
        if self.output is not None:
            identity = {**self.identity(), "edits": fingerprint(edits)}
            checkpoint = Checkpoint(self.output / "unfinished", identity=identity)
        batches = self.loaded_task.feed(model, tokenizer)
        stats = measure(model, batches, watching, self.select(), self.progress, edits, checkpoint=checkpoint)
        stats.origin = dataclasses.replace(stats.origin, tokenizer=tokenizer_digest(tokenizer))
        notes, written = [], []
        if self.output is not None and checkpoint is not None:
            stats.save(self.output)
            checkpoint.remove()
            charts = stats.charts(tokenizer)
            files = save_all(charts, self.output / "figures", ("png", "svg"), progress=self.progress)
            written = [str(path) for path in files]
            notes = [
                "",
                f"Stats and figures are in {self.output}:",
                *(path for path in written if path.endswith("png")),
            ]
        summary = {name: stat.summary() for name, stat in stats.items()}
        data = {"model": self.name, "stats": summary, "output": str(self.output or ""), "figures": written}
        return Outcome(data, [*map(show, stats.tables(tokenizer)), *notes])

    def load_model(self, **options: Any) -> Any:
        """Load the model with the head of ``kind``, or with the one it was saved with: nothing is scored."""
        return super().load_model(**options) if self.kind else self.unscored().load_model(**options)

    @cached_property
    def loaded_task(self) -> Task:
        """The task, or the texts that were given instead of one."""
        if not self.text:
            return self.make_task()
        if self.data is not None:
            raise DataError("Both --text and --data say what to measure; give one of them.")
        from ..tasks.texts import Given

        length = Given.max_length if self.max_length is None else self.max_length
        return Given(texts=self.text, max_length=length, batch_size=self.batch_size)
