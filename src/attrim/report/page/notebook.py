"""Notebook cells: stats, scores, orders, findings and runs as views, each in a frame with everything inside."""

from __future__ import annotations

import html as markup
from functools import singledispatch
from typing import Any

import numpy as np

from ...core.charts import Column, HeadMatrix, Table
from ...runs.run import Run
from ...scores.base import Order, Scores
from ...stats.base import Stat
from ...stats.bundle import Stats
from ...stats.mean import Mean
from ...studies.findings import FILE, Findings, findings
from .average_patterns import FULL, patterns_of
from .payload import charts_payload, head_numbers, payload, plain_chart, scores_matrix
from .single_file import page

HEIGHT = 640
"""Pixels of a frame before its page says how high it is."""


def html(shown: object) -> str:
    """The HTML of a notebook's output; several of them may stand in one notebook."""
    return frame(page(view(shown)))


def frame(text: str) -> str:
    """A page inside of another one."""
    return (
        f'<iframe srcdoc="{markup.escape(text)}" title="attrim" width="100%" height="{HEIGHT}" '
        'style="border:0;width:100%" loading="lazy"></iframe>'
    )


@singledispatch
def view(shown: Any) -> dict[str, Any]:
    """What the page of an object shows, as JSON values; what comes from elsewhere has them in ``payload``."""
    if isinstance(getattr(shown, "payload", None), dict):
        return dict(shown.payload)
    raise TypeError(f"A {type(shown).__name__} has no view.")


@view.register(Stats)
def _stats(shown: Stats, title: str = "") -> dict[str, Any]:
    charts = [chart for chart in shown.charts() if not chart.name.startswith("average-patterns")]
    heads = [plain_chart(matrix) for matrix in head_numbers(charts)]
    means = [stat for stat in shown.values() if isinstance(stat, Mean) and stat.sites]
    patterns = [pattern for mean in means for pattern in patterns_of(mean)]
    rest = [chart for chart in charts if not isinstance(chart, HeadMatrix)]
    return charts_payload(
        [*shown.tables(), *rest],
        title or repr(shown),
        heads=heads,
        patterns=[pattern.payload(FULL // len(patterns)) for pattern in patterns],
    )


@view.register(Stat)
def _stat(shown: Stat) -> dict[str, Any]:
    return _stats(Stats([shown]), type(shown).__name__)


@view.register(Scores)
def _scores(shown: Scores) -> dict[str, Any]:
    dataset = shown if shown.scope == "dataset" else shown.over_examples()
    title = f"Scores of heads: {shown.name or 'given'}"
    return charts_payload([_order_table(dataset)], title, heads=[plain_chart(scores_matrix(dataset, dataset.name))])


@view.register(Order)
def _order(shown: Order) -> dict[str, Any]:
    scores = shown.scores
    ranks = HeadMatrix.of("order", scores.ranks().numpy(), scores.sites, "place in the order (1 is removed first)")
    return charts_payload(
        [_order_table(scores)], f"Order of heads: {scores.name or 'given'}", heads=[plain_chart(ranks)]
    )


def _order_table(scores: Scores) -> Table:
    """Every head with its score, the least important one first."""
    sites = {site.name: site for site in scores.sites}
    rows = [
        [
            place,
            sites[name].role,
            sites[name].layer,
            head,
            float(scores.values[name][scores.scored(sites[name]).index(head)]),
        ]
        for place, (name, head) in enumerate(scores.order(), 1)
    ]
    columns = [Column("place", "count"), Column("role"), Column("layer", "count"), Column("head", "count")]
    columns.append(Column("score", "general", 4))
    return Table("order", "Heads, the least important first", columns=columns, rows=rows)


@view.register(Findings)
def _findings(shown: Findings) -> dict[str, Any]:
    return payload([shown])


@view.register(Run)
def _run(shown: Run) -> dict[str, Any]:
    if (shown.folder / FILE).exists():
        return payload([findings(shown.folder)])
    metrics = shown.metrics()
    names = list(dict.fromkeys(name for row in metrics.values() for name in row))
    rows = [[setting, *(row.get(name, np.nan) for name in names)] for setting, row in metrics.items()]
    columns = [Column("setting"), *(Column(name, "general", 5) for name in names)]
    keys = [[key, str(value)] for key, value in shown.config.items()]
    state = "finished" if shown.finished else "not finished"
    tables = [Table("results", "Settings and their metrics", columns=columns, rows=rows)]
    tables.append(Table("configuration", "Configuration", columns=[Column("key"), Column("value")], rows=keys))
    return charts_payload(tables, f"Run {shown.folder.name} ({state})")
