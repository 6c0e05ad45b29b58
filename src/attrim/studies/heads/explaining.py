"""Maps of the examples: how good they are with more and more heads left out, and pictures of some of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.charts import Chart, RelevanceStrip, Table
from ...maps.examples import Examples, examine, explain_examples
from ...maps.explainer import Explainer, MapOptions
from ...maps.quality import Examiner, QualityOptions
from ..bench import Bench
from .study import Heads

IMAGES = "images"


@dataclass(frozen=True, eq=False)
class ExplainedMaps:
    """What was found about the maps.

    Attributes
    ----------
    summary : means and intervals of every level, as JSON values.
    table : the same to read.
    curves : deletion, insertion and pointing.
    strips : the examples that are shown; paths of images are relative to the run's folder.
    """

    summary: dict[str, Any]
    table: Table
    curves: tuple[Chart, ...] = ()
    strips: tuple[Chart, ...] = ()

    def shown(self, folder: Path) -> list[Chart]:
        """The strips with their images where the run is now."""
        return [
            dataclasses.replace(strip, image=str(folder / strip.image))
            if isinstance(strip, RelevanceStrip) and strip.image
            else strip
            for strip in self.strips
        ]


def explain(bench: Bench, study: Heads) -> ExplainedMaps:
    """Measure the maps of all examples, batch by batch, and show some; batches that the run has are read."""
    model, task, folder = bench.loaded_model, bench.loaded_task, bench.run_folder
    task.check(model)
    explainer = Explainer(model, MapOptions(target=study.answer, mask_in=study.mask_in))
    examples = Examples(task, model, bench.loaded_tokenizer, labels=study.target == "label")
    examiner = Examiner(explainer, study.levels, QualityOptions.of(bench.loaded_tokenizer, seed=bench.seed))
    levels = "-".join(f"{level:g}" for level in study.levels)
    name = f"maps/{study.target}/{study.mask_in}/{levels}"
    quality = examine(examiner, examples, bench.require_run(), name, bench.progress)
    strips = explain_examples(
        explainer, examples, study.examples, study.levels, folder / IMAGES, progress=bench.progress
    )
    return ExplainedMaps(
        summary=quality.summary(),
        table=quality.table(),
        curves=tuple(quality.charts()),
        strips=tuple(
            dataclasses.replace(strip, image=f"{IMAGES}/{Path(strip.image).name}") if strip.image else strip
            for strip in strips
        ),
    )
