"""What the demo found: tables, four charts, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.charts import Axis, Chart, Curve, Point, Reference, Series, Table
from ...evaluation import UNEDITED
from ...runs.result import Result, results_table
from ...stats import Histogram, Moments
from ...stats.bundle import Stats
from ...stats.display import head_table
from ..findings import Findings
from .study import BARS, CONTROLS, METRIC, TOLERANCE

BAR = 1e-2  # the threshold that the picture of all heads shows


@dataclass(frozen=True, eq=False, kw_only=True)
class DemoFindings(Findings):
    """What the demo found: stats of the paragraphs, and a result for each setting."""

    stats: Stats
    results: dict[str, Result]

    def tables(self) -> list[Table]:
        """How small the weights are, in all heads and in each, tokens to majority, and results."""
        histogram, moments = self.stats[Histogram], self.stats[Moments]
        small, majority = f"Weights not above {BAR:g}, every head (%)", "Tokens to majority, every head"
        names = {setting: f"control: {label}" for setting, label in CONTROLS.items()}
        return [
            *histogram.tables(),
            head_table("sparsity", small, 100 * histogram.sparsity(BAR), histogram.sites, digits=0),
            head_table("tokens-to-majority", majority, moments.tokens_to_majority(), moments.sites, digits=1),
            results_table(self.results, "Question to paragraph, edited", names),
        ]

    def charts(self) -> list[Chart]:
        """How the weights are distributed, and what thresholds cost."""
        histogram = self.stats[Histogram]
        thresholds = [self._point(f"threshold:{bar}", bar) for bar in BARS]
        return [
            histogram.distribution_chart(),
            histogram.sparsity_chart("sparsity-of-heads", BAR),
            histogram.heads_chart(),
            Curve(
                "score-against-sparsity",
                series=[Series.of("threshold", thresholds)],
                x=Axis("zero share of attention weights", low=-0.04, high=1.04),
                y=Axis("top-1 retrieval (%)"),
                controls=[self._point(setting, label) for setting, label in CONTROLS.items()],
                references=[Reference(self.results[UNEDITED].metrics[METRIC], "unedited")],
                annotate=True,
            ),
        ]

    def sentences(self) -> list[str]:
        """The most that can be zeroed before a real loss is possible."""
        return [sentence(self.results)]

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`."""
        histogram = self.stats[Histogram]
        rows = zip(histogram.sites, histogram.sparsity(BAR), strict=True)
        return {
            "shares": histogram.shares(),
            "sparsity": {site.name: row.tolist() for site, row in rows},
            "results": {name: result.to_json() for name, result in self.results.items()},
            "found": sentence(self.results),
        }

    def _point(self, setting: str, label: str) -> Point:
        """A setting as a point of the chart; its interval is that of the change, moved to the score."""
        result, unedited = self.results[setting], self.results[UNEDITED].metrics[METRIC]
        change = result.changes[METRIC]
        return Point(result.zero_share, result.metrics[METRIC], unedited + change.low, unedited + change.high, label)


def sentence(results: Mapping[str, Result]) -> str:
    """Say what was found, from the numbers alone: the most that can be zeroed before a real loss is possible."""
    questions = len(results[UNEDITED].columns["rank"])
    random, off = (results[name].changes[METRIC] for name in ("random-drop:0.8", "gate:0"))
    controls = f"dropping 80 % at random changes it by {random} and switching attention off by {off}"
    thresholds = {bar: results[f"threshold:{bar}"] for bar in BARS}
    harmless = {bar: result for bar, result in thresholds.items() if result.changes[METRIC].low >= -TOLERANCE}
    if not harmless:
        return (
            f"On {questions} questions a loss of more than {TOLERANCE:g} points of {METRIC} cannot be ruled out for "
            f"any threshold that was tried; {controls}."
        )
    bar, best = max(harmless.items(), key=lambda pair: pair[1].zero_share)
    return (
        f"On {questions} questions, zeroing the {100 * best.zero_share:.0f} % of attention weights that are not above "
        f"{bar} changes {METRIC} by {best.changes[METRIC]} points, and the embeddings keep a mean cosine of "
        f"{best.distances['cosine']:.2f} with the unedited ones; {controls}."
    )
