"""``attrim measure``: statistics of a model's attention over a data set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import UseAppendAction

from ..errors import DataError
from .base import OnData, Outcome

if TYPE_CHECKING:
    from ..edits import Edit
    from ..measurement import Stats
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
    """Edit that is switched on while measuring; several in order: 'threshold:0.1 then gate:0.5'."""

    def run(self) -> Outcome:
        """Load everything, measure, and write stats and figures when ``output`` is given."""
        from ..core.registry import STATS
        from ..core.text import parse, parse_one_chain
        from ..measurement import Checkpoint, measure
        from ..models.digests import tokenizer_digest

        edits = parse_one_chain(self.edit)
        watching = [parse(STATS, text) for text in self.stats]
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
            written = [str(path) for path in draw(stats, self.output / "figures")]
            notes = [
                "",
                f"Stats and figures are in {self.output}:",
                *(path for path in written if path.endswith("png")),
            ]
        data = {"model": self.model, "stats": summary(stats), "output": str(self.output or ""), "figures": written}
        return Outcome(data, [*tables(stats, self.model), *notes])

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


def summary(stats: Stats) -> dict[str, Any]:
    """The numbers that are small enough to print: shares of small weights, and every moment of every head."""
    from ..stats import Histogram, Moments
    from .tables import shares

    found: dict[str, Any] = {}
    for name, stat in stats.items():
        found[name] = {}
        if isinstance(stat, (Histogram, Moments)):
            found[name]["sites"] = [site.name for site in stat.sites]
        if isinstance(stat, Histogram):
            found[name] |= {"weights": int(stat.total.sum()), "share": shares(stat)}
        if isinstance(stat, Moments):
            found[name] |= {moment: getattr(stat, moment)().tolist() for moment in MOMENTS}
    return found


MOMENTS = ("maximum", "minimum", "mean", "std", "entropy", "tokens_to_majority")


def tables(stats: Stats, model: str) -> list[Any]:
    """What a person wants to see of the stats; of those with no table it says how to keep them."""
    from ..stats import Histogram, Moments
    from .tables import heads_table, shares_table

    shown: list[Any] = []
    for name, stat in stats.items():
        if isinstance(stat, Histogram):
            shown.append(shares_table(stat, f"{model}: how small the attention weights are (share of weights)"))
        elif isinstance(stat, Moments):
            shown.append(heads_table(stat.entropy(), stat.sites, "Entropy of the rows (nats)", "{:.2f}"))
            shown.append(heads_table(stat.tokens_to_majority(), stat.sites, "Tokens to majority", "{:.1f}"))
        else:
            shown.append(f"{name} has no table (--output FOLDER writes it to disk).")
    return shown


def draw(stats: Stats, folder: Path) -> list[Path]:
    """Write the figures of every histogram."""
    from ..plots import distribution, head_histograms, head_map, save
    from ..stats import Histogram

    written: list[Path] = []
    for name, stat in stats.items():
        if isinstance(stat, Histogram):
            label = "share of weights ≤ 0.001"
            figures = {
                "distribution": distribution(stat),
                "sparsity-of-heads": head_map(stat.sparsity(1e-3), stat.sites, label),
                "histogram-of-heads": head_histograms(stat),
            }
            suffix = name.removeprefix("Histogram")
            written += [path for title, figure in figures.items() for path in save(figure, folder / f"{title}{suffix}")]
    return written
