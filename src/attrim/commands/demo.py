"""``attrim demo``: everything once, offline, on a real model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .base import Command, Outcome


@dataclass(kw_only=True)
class Demo(Command):
    """Measure and edit a real model offline in a few minutes, and write figures to a run folder."""

    output: Path = Path("runs")
    """Folder of runs; a demo that was interrupted goes on."""
    limit: int | None = None
    """Ask this many of the shipped questions (default: all)."""
    seed: int = 123
    """Chooses the questions when there is a limit."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights and of the computation."""

    def run(self) -> Outcome:
        """Run the study and show what it found."""
        from ..studies.demo import BAR, CONTROLS, demo
        from .tables import CAPTION, heads_table, results_table, shares_table

        found = demo(
            self.output, limit=self.limit, seed=self.seed, device=self.device, dtype=self.dtype, progress=self.progress
        )
        histogram, moments = found.histogram, found.moments
        sparsity = histogram.sparsity(BAR)
        data = {
            "folder": str(found.folder),
            "shares": histogram.shares(),
            "sparsity": {site.name: row.tolist() for site, row in zip(histogram.sites, sparsity, strict=True)},
            "results": {name: result.to_json() for name, result in found.results.items()},
            "figures": [str(path) for path in found.figures],
            "found": found.sentence,
        }
        names = {setting: f"control: {label}" for setting, label in CONTROLS.items()}
        return Outcome(
            data,
            [
                shares_table(histogram, "How small the attention weights are (share of weights)"),
                heads_table(100 * sparsity, histogram.sites, f"Weights not above {BAR:g}, every head (%)"),
                heads_table(moments.tokens_to_majority(), moments.sites, "Tokens to majority, every head", 1),
                results_table(found.results, "Question to paragraph, edited", names),
                CAPTION,
                "",
                "Figures to open:",
                *(f"  {path}" for path in found.figures if path.suffix == ".png"),
                f"(each also as .svg; all results are in {found.folder})",
                "",
                found.sentence,
            ],
        )
