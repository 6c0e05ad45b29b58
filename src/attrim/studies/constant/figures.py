"""The figures of the constant study."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ...core.site import Site
from ...plots import save
from ...plots.budgets import score_against_heads
from ...plots.families import family_bars
from ...plots.orders import correlation_matrix, order_map
from ...runs.run import Run
from ...scores import Scores, rank_correlation
from .drops import Row


def draw(
    run: Run,
    rows: Sequence[Row],
    orders: Mapping[str, Scores],
    sites: Sequence[Site],
    metric: str,
    formats: Sequence[str],
    smaller_is_better: bool = False,
) -> list[Path]:
    """Write every figure that the findings allow to the run's folder; returns the files."""
    written: list[Path] = []
    for name, figure in _every(rows, orders, sites, metric, smaller_is_better):
        written += save(figure, run.folder / "figures" / name, formats)
    return written


def _every(
    rows: Sequence[Row], orders: Mapping[str, Scores], sites: Sequence[Site], metric: str, smaller_is_better: bool
) -> Iterator[tuple[str, Figure]]:
    total = sum(site.heads for site in sites)
    axis = metric if smaller_is_better else f"{metric} (%)"  # perplexity and loss are no shares
    curve = score_against_heads(curves(rows, total), total, axis, smaller_is_better=smaller_is_better)
    yield "score-against-heads", curve
    families = bars(rows)
    if len(families) > 1:
        yield "families", family_bars(families, axis, rows[0].score)
    for name, scores in orders.items():
        yield f"order-{name}", order_map(scores.ranks(), sites)
    if len(orders) > 1:
        agreement = rank_correlation(orders)
        yield "rank-correlation", correlation_matrix(agreement.names, agreement.spearman, agreement.kendall)


def curves(rows: Sequence[Row], total: int) -> dict[str, dict[int, Sequence[float]]]:
    """A curve for each family and order; each has the baseline, and all heads, where the order does not matter."""
    baseline: dict[int, Sequence[float]] = {0: rows[0].scores}
    last = {row.setting.family: row.scores for row in rows if len(row.setting.heads) == total}
    found: dict[tuple[str, str], dict[int, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        if row.setting.heads and len(row.setting.heads) < total:
            found[row.setting.family, row.setting.order][len(row.setting.heads)] = row.scores
    for family in last:
        if not any(known == family for known, _ in found):
            found[family, ""] = {}
    whole = {
        pair: {**baseline, **points, **({total: last[pair[0]]} if pair[0] in last else {})}
        for pair, points in found.items()
    }
    return {", ".join(part for part in pair if part): points for pair, points in whole.items()} or {"": baseline}


def bars(rows: Sequence[Row]) -> dict[str, dict[str, Sequence[float]]]:
    """The scores of every family by budget, with the order that all of them have."""
    first = next((row.setting.order for row in rows if row.setting.order), "")
    found: dict[str, dict[str, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        if row.setting.heads and row.setting.order in ("", first):
            found[row.setting.family][row.setting.label] = row.scores
    return found
