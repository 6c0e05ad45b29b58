"""``attrim score``: a number for every head of a model, and the order that comes of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.wording import counted
from ..errors import ParameterError
from ..studies.bench import Bench
from .base import Command, Outcome, register

if TYPE_CHECKING:
    from ..core.charts import Table
    from ..scores.base import Scores

SHOWN = 10
"""Heads at each end of the order that are printed."""


@register("score")
@dataclass(frozen=True, kw_only=True)
class ScoreHeads(Command, Bench):
    """Score the heads of a model on the data of a task, and write the order to files that edits and studies read."""

    score: str = "gradient-attention"
    """Name of the score (attrim ls scores), with options as in lrp:rules=safe,scope=example,unit=site."""
    output: Path | None = None
    """Folder to write the scores, the order (JSON and CSV) and a figure to."""

    def run(self) -> Outcome:
        """Score the heads, and write everything when ``output`` is given."""
        from ..core.registry import SCORES
        from ..core.text import parse
        from ..edits.offset import Offset
        from ..evaluation import Prepared
        from ..measurement import measure
        from ..report.terminal import show
        from ..scores.base import Score, share, units_of
        from ..stats.mean import Mean
        from ..studies.heads.scoring import influence, score_task

        score: Score = parse(SCORES, self.score)
        if "task" in score.needs:
            raise ParameterError(
                f"The score {score.registered_name!r} trains a probe; use 'attrim constant --until order'."
            )
        model, task = self.loaded_model, self.loaded_task
        prepared = Prepared(model, task, self.loaded_tokenizer, count_zeros=False)
        chosen, idle = influence(prepared, self.select())
        constants = None
        if "constants" in score.needs:
            batches = task.feed(model, self.loaded_tokenizer)
            constants = Offset(measure(model, batches, Mean(), progress=self.progress)[Mean])
        # Heads without influence must not dilute the mean of a site or block.
        alone = score_task(prepared, dataclasses.replace(score, unit="head"), constants).only(chosen)
        shared = share(alone.values, units_of(alone.sites, score.unit or "head"))
        scores = dataclasses.replace(alone, values=shared, options=score.options())
        one = scores if scores.scope == "dataset" else scores.over_examples()
        notes = list(self._notes(scores, idle))
        written = [] if self.output is None else self._write(scores, one, self.output)
        if written:
            notes += [f"Everything is in {self.output}:", *(f"  {path}" for path in written)]
        data: dict[str, Any] = {
            "model": self.name,
            "task": task.options(),
            "scores": one.to_json(),
            "order": one.order(),
            "idle": list(idle),
            "files": [str(path) for path in written],
        }
        return Outcome(data, [show(self._table(scores, one)), *notes])

    def _table(self, scores: Scores, one: Scores) -> Table:
        """The ends of the order."""
        from ..core.charts import Column, Table

        sites = {site.name: site for site in one.sites}
        groups = one.units()
        kept = len(groups) <= 2 * SHOWN
        places = range(len(groups)) if kept else [*range(SHOWN), *range(len(groups) - SHOWN, len(groups))]
        rows = []
        for place in places:
            name, head = groups[place][0]
            value = float(one.values[name][one.scored(sites[name]).index(head)])
            names = dict.fromkeys(name for name, _ in groups[place])
            which = str(head) if len(groups[place]) == 1 else counted(len(groups[place]), "head")
            rows.append([place + 1, "\n".join(names), sites[name].role, sites[name].layer, which, value])
        columns = [Column("place", "count"), Column("site"), Column("role"), Column("layer", "count")]
        columns += [Column("head"), Column(one.name, "general", 4)]
        options = ", ".join(f"{key} {str(value).lower()}" for key, value in scores.options.items())
        title = (
            f"{self.name} on {self.task_name}: {counted(len(groups), one.options['unit'])}, the least important first"
        )
        caption = f"Options: {options}." if options else ""
        if scores.scope == "example":
            caption += f" Shown: the {scores.options.get('reduction', 'mean')} over {self._examples(scores)}."
        return Table("scores", title, columns=columns, rows=rows, caption=caption.strip(),
                     sections=[] if kept else [SHOWN])  # fmt: skip

    @staticmethod
    def _examples(scores: Scores) -> str:
        return counted(len(next(iter(scores.values.values()))), "example")

    @staticmethod
    def _notes(scores: Scores, idle: tuple[str, ...]) -> Any:
        if "lowest_total" in scores.facts:
            low, high = scores.facts["lowest_total"], scores.facts["highest_total"]
            yield f"Relevance that arrives at the input, of 1: {low:.6f} to {high:.6f} over the examples."
        if idle:
            yield f"Without influence on the answers, and not scored: {', '.join(idle)}."

    def _write(self, scores: Scores, one: Scores, folder: Path) -> list[Path]:
        """Scores as JSON and safetensors, the order as JSON and CSV, and a picture."""
        from ..core.charts import HeadMatrix
        from ..core.paths import home_path
        from ..report.drawing import save_all
        from ..scores.orders import write_order

        folder = home_path(folder)
        scores.save(folder)
        values = one.table().numpy()
        signed = bool((one.table().nan_to_num() < 0).any())
        chart = HeadMatrix.of("scores", values, one.sites, one.name, diverging=signed)
        files = [*sorted(folder.glob("scores*.json")), *sorted(folder.glob("scores-*.safetensors"))]
        files += write_order(folder / "order", one)
        return files + save_all([chart], folder, ("png",), progress=self.progress)
