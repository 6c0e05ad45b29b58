"""Findings with every kind of chart, and texts that would do harm on a page that took them for HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attrim.core.charts import (
    Axis,
    Band,
    Bars,
    Bins,
    Chart,
    Column,
    Curve,
    Distribution,
    Drop,
    Group,
    HeadMatrix,
    ImageRegions,
    MapLevel,
    Matrix,
    Panels,
    Pattern,
    Point,
    Reference,
    RelevanceStrip,
    Section,
    Series,
    Table,
    TokenStrip,
    TrainingSteps,
    Words,
)
from attrim.core.site import Site
from attrim.stats.bundle import Stats
from attrim.stats.mean import Mean
from attrim.studies.demo import Demo
from attrim.studies.findings import Findings

HOSTILE = "</script><script>window.harmed = true</script>"
MARKUP = '<img src="x" onerror="window.harmed = true">\'"&amp;'
TURNED = "\u202eright to left\u202c"
"""A token with marks that turn round the direction of writing."""
TOKENS = ["what", "col", "##or", HOSTILE, MARKUP, TURNED, "?"]


@dataclass(frozen=True, eq=False, kw_only=True)
class EveryChart(Findings):
    """Findings whose charts and tables are given."""

    shown: Sequence[Chart] = ()
    read: Sequence[Table] = ()
    said: Sequence[str] = ()
    stats: Stats | None = None

    def charts(self) -> Sequence[Chart]:
        return self.shown

    def tables(self) -> Sequence[Table]:
        return self.read

    def sentences(self) -> Sequence[str]:
        return self.said


def averages(layers: int = 3, heads: int = 4, length: int = 10, seed: int = 0) -> Stats:
    """Averages of attention: every head of a layer has a pattern of its own."""
    mean = Mean()
    generator = torch.Generator().manual_seed(seed)
    for layer in range(layers):
        site = Site(f"encoder.{layer}", "encoder", layer, heads)
        scores = torch.rand(1, heads, length, length, generator=generator) * 4
        scores += 6 * torch.eye(length).roll(layer, 1) * torch.arange(heads)[:, None, None]
        mean.update(scores.softmax(-1), site=site)
    return Stats([mean])


def picture(folder: Path) -> str:
    """An image of 40 x 20 pixels."""
    from PIL import Image

    path = folder / "picture.png"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 40, 3), 200, dtype=np.uint8)).save(path)
    return str(path)


def every_chart(image: str = "") -> list[Chart]:
    """One chart of every kind."""
    numbers = np.array([0.1, 0.4, 0.9, 0.5, 0.2, 0.7, 0.3])
    steps = [0.0, 100.0, 200.0, 300.0]
    curve = Curve(
        "score-against-budget",
        "Score against budget",
        series=[
            Series.of(
                "ordered by score", [Point(0, 90, 88, 92, "0"), Point(50, 80, 77, 83, "half"), Point(100, 20, 15, 25)]
            ),
            Series.of("random", [Point(0, 90), Point(50, 60), Point(100, 20)]),
        ],
        x=Axis("heads removed (%)"),
        y=Axis("accuracy (%)", most=100.0),
        right=Drop(90.0),
        controls=[Point(100, 10, 8, 12, "attention off")],
        references=[Reference(90.0, "unedited")],
        annotate=True,
    )
    two = Curve(
        "two-axes",
        series=[Series("score", [16, 8, 4], [90, 89, 70]), Series("zeros", [16, 8, 4], [0, 0.1, 0.5], right=True)],
        x=Axis("bits", "steps"),
        y=Axis("score"),
        right=Axis("share of zeros"),
    )
    training = TrainingSteps(
        "training",
        "Training",
        series=[
            Series("mean of seeds", steps, [0.1, 0.4, 0.8, 0.9], bands=[Band([0, 0.3, 0.7, 0.8], [0.2, 0.5, 0.9, 1])])
        ],
        y=Axis("accuracy"),
        events=[Reference(150.0, "aligned")],
    )
    bars = Bars(
        "bars",
        "A few bars",
        groups=[Group("one", [1, 2], [0.5, 1.5], [1.5, 2.5]), Group("two", [2, 3])],
        labels=["a", MARKUP],
    )
    heads = Bars(
        "spread-of-heads",
        groups=[Group("", np.arange(12.0), np.arange(12.0) - 1, np.arange(12.0) + 1)],
        sections=[Section(str(layer), 4) for layer in range(3)],
        y=Axis("spread of a head"),
        mark="dot",
    )
    edges = np.geomspace(1e-4, 1, 9)
    distribution = Distribution(
        "distribution",
        "Weights",
        edges=edges,
        bins=[Bins("all", np.arange(8.0), filled=True)],
        x=Axis("weight", "log"),
        lines=[Series("cumulative", edges[1:], np.linspace(0, 1, 8))],
        right=Axis("share up to"),
    )
    small = [
        Distribution("", edges=edges, bins=[Bins("", np.roll(np.arange(8.0), at))], x=Axis(scale="log"))
        for at in range(12)
    ]
    grid = Panels(
        "histogram-of-heads", "Histogram of heads", charts=small, rows=["0", "1", "2"], columns=["0", "1", "2", "3"]
    )
    pair = Panels("two-panels", "Two panels", charts=[training, training], legend="seeds")
    matrix = HeadMatrix(
        "confidence",
        "Confidence",
        values=np.arange(12.0).reshape(3, 4) / 12,
        roles=["encoder"] * 3,
        layers=range(3),
        label="confidence",
    )
    change = HeadMatrix(
        "change",
        "Change",
        values=np.arange(12.0).reshape(3, 4) - 6,
        roles=["encoder"] * 3,
        layers=range(3),
        label="change",
        diverging=True,
    )
    square = numbers[:, None] * numbers[None]
    pattern = Pattern("pattern", "A pattern", matrices=[Matrix(square)], queries=TOKENS, keys=TOKENS)
    strip = TokenStrip("tokens", "Tokens of a text", tokens=TOKENS, values=numbers, label="share of zeros")
    boxes = [[0, 0, 10, 10], [20, 0, 40, 20]]
    regions = ImageRegions(
        "regions", "Regions", width=40, height=20, boxes=boxes, values=[0.2, 0.9], image=image, labels=["a cat", MARKUP]
    )
    levels = [
        MapLevel("all heads", "red", [numbers], np.array([0.5, 1.0])),
        MapLevel("90 % of heads out", "blue <i>", [numbers[::-1] / 2], np.array([0.5, 0.1])),
    ]
    relevance = RelevanceStrip(
        "example-0",
        "What colour is it?",
        levels=levels,
        explained="red",
        texts=[Words(TOKENS, "question")],
        image=image,
        width=40,
        height=20,
        boxes=boxes,
        relevant=[1],
        facts=["people answered: red"],
    )
    return [
        curve,
        two,
        training,
        bars,
        heads,
        distribution,
        grid,
        pair,
        matrix,
        change,
        pattern,
        strip,
        regions,
        relevance,
    ]


def every_table(best: float = 90.0) -> list[Table]:
    """A table of results, and one with a hostile cell."""
    rows = [
        ["unedited", best, "", True],
        ["threshold:0.1", best - 12.5, "-12.5 [-14, -11]", False],
        ["uniform", None, "", False],
    ]
    columns = [Column("setting"), Column("top-1", "number"), Column("change"), Column("kept")]
    return [
        Table("results", "Results", columns=columns, rows=rows, sections=[2], caption="Change: with its interval."),
        Table(
            "hostile",
            "Hostile tokens",
            columns=[Column("token"), Column("share", "percent", 1)],
            rows=[[HOSTILE, 0.5], [MARKUP, 0.25]],
        ),
    ]


def found(folder: Path, **fields: Any) -> EveryChart:
    """Findings with everything; the folder need not be there."""
    shared: dict[str, Any] = {
        "study": Demo(),
        "model": "tiny",
        "task": "retrieval",
        "shown": every_chart(picture(folder)),
        "read": every_table(),
        "said": ["Zeroing 86 % changes top-1 by +2.50 [-2.00, +6.51] points.", f"A sentence with {HOSTILE} in it."],
        "stats": averages(),
    }
    return EveryChart(folder=folder, **{**shared, **fields})
