"""The demo: a small version of the measurements of Ji et al. 2021 (https://arxiv.org/abs/2106.01335).

It has the controls that tell whether the score says anything about attention at all.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, Suppress, UseAppendAction, arg

from ..base import Study, register
from ..bench import Bench

if TYPE_CHECKING:
    from ...runs.result import Result
    from ...tasks.base import Task
    from .findings import DemoFindings

PARAGRAPHS = 120
BARS = ("0.001", "0.005", "0.01", "0.02", "0.05", "0.1")
CONTROLS = {"gate:0": "attention off", "uniform": "uniform", "random-drop:0.8": "random drop of 80 %"}
METRIC = "top-1"
TOLERANCE = 2.0  # points of the metric: a change counts as harmless when its interval rules out a larger loss


@dataclass(frozen=True)
class DemoBench(Bench):
    """A bench that needs no argument: the model of the extra ``demo`` and the text that attrim ships."""

    model: Positional[Annotated[Any, arg(metavar="MODEL", constructor=str)]] = "minilm"
    """Hub name, local folder, .gguf file, or built-in name (attrim ls models)."""
    _: KW_ONLY
    task: Suppress[Any] = "retrieval"
    data: str | None = "built-in"
    """File or folder to read instead of the text that attrim ships (SQuAD format)."""
    option: UseAppendAction[tuple[str, ...]] = (f"paragraphs={PARAGRAPHS}",)
    """Further option of the task as name=value."""
    limit: int | None = None
    """Ask this many of the questions (default: all)."""
    seed: int = 123
    """Chooses the questions when there is a limit."""
    output: Path | None = Path("runs")
    """Folder of runs; a demo that was interrupted resumes there."""

    def make_task(self, **changes: Any) -> Task:
        """The task with all its questions, unless there is a limit."""
        return super().make_task(**{"limit": self.limit, **changes})


@register("demo")
@dataclass(frozen=True)
class Demo(Study):
    """Measure and edit a real model offline in a few minutes, and write figures to a run folder."""

    bench: ClassVar[type[Bench]] = DemoBench

    @classmethod
    def findings(cls) -> type[DemoFindings]:
        """See :meth:`Study.findings`."""
        from .findings import DemoFindings

        return DemoFindings

    def work(self, bench: Bench) -> DemoFindings:
        """Measure the paragraphs, threshold the attention at several levels, and compare with controls."""
        from ...core.text import parse_chain
        from ...stats import Histogram, Mean, Moments
        from ...tasks.base import load_task
        from ..findings import Setting
        from .findings import DemoFindings

        questions = bench.loaded_task
        shared = {name: getattr(questions, name) for name in ("data", "seed", "max_length", "batch_size")}
        text = load_task("squad-paragraphs", **shared)
        stats = bench.measure([Histogram(), Mean(), Moments()], "paragraphs", task=text)
        names = [*(f"threshold:{bar}" for bar in BARS), *CONTROLS]
        settings = [Setting(name, edits=tuple(parse_chain(name, bench.select()))) for name in names]
        results: dict[str, Result] = bench.evaluate(settings)
        return DemoFindings(
            folder=bench.run_folder,
            study=self,
            model=bench.name,
            task=bench.task_name,
            stats=stats,
            results=results,
        )
