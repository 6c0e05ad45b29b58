"""What the constant study found: averages, orders of heads, and what a probe loses with each budget of them."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.charts import (
    Axis,
    Bars,
    Chart,
    Column,
    Curve,
    Drop,
    Group,
    HeadMatrix,
    Matrix,
    Pattern,
    Point,
    Reference,
    Series,
    Table,
    file_name,
)
from ...core.checked import Cell
from ...core.site import Select
from ...core.wording import counted
from ...runs.result import Result, same_answers
from ...scores import RankCorrelation, Scores, rank_correlation
from ..findings import Findings
from .averages import FOLDER as AVERAGES
from .averages import AverageAttention
from .drops import BudgetRow, sentences
from .ordering import ORDERS
from .probing import Epochs
from .study import ConstantHeads


@dataclass(frozen=True, eq=False, kw_only=True)
class ConstantFindings(Findings):
    """What the study found; what a step did not come to is empty.

    Attributes
    ----------
    metric : the first metric of the task, which all scores are of.
    averages : of step 1.
    orders : of step 2, the scores of the heads by name of the order.
    rows : of step 3, a row for each set of heads that became constant, the unedited model first.
    results : of step 3, name of the setting to a result for each seed.
    epochs : of step 3, name of the result to the metrics after each epoch.
    """

    study: ConstantHeads
    metric: str
    smaller_is_better: bool = False
    averages: AverageAttention
    orders: dict[str, Scores] = field(default_factory=dict)
    rows: tuple[BudgetRow, ...] = ()
    results: dict[str, tuple[Result, ...]] = field(default_factory=dict)
    epochs: dict[str, Epochs] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether probes were trained; ``until`` may stop the study before."""
        return bool(self.rows)

    @property
    def correlation(self) -> RankCorrelation | None:
        """How well the orders agree; None for a single one."""
        return rank_correlation(self.orders) if len(self.orders) > 1 else None

    @property
    def heads(self) -> int:
        """How many heads could be made constant: all of the model, or those that were selected."""
        return sum(len(record.heads) for record in self.averages.mean.records.values())

    @property
    def selected(self) -> bool:
        """Whether only some heads of the model were selected."""
        return self.averages.stats.origin.selection != Select()

    def tables(self) -> list[Table]:
        """The scores of every budget; in files only, the place of every head in the orders and the epochs."""
        found = [self._results_table()] if self.rows else []
        found += [self._orders_table()] if self.orders else []
        return found + ([self._epochs_table()] if any(self.epochs.values()) else [])

    def _results_table(self) -> Table:
        number = Column(self.metric, "number")
        texts = ("family", "order", "budget"), ("seeds", "drop, % of the baseline")
        columns = [*map(Column, texts[0]), Column("heads", "count"), number, *map(Column, texts[1])]
        rows: list[list[Cell]] = [
            [
                row.setting.family,
                row.setting.order,
                row.setting.label,
                len(row.setting.heads),
                row.score,
                ", ".join(f"{score:.2f}" for score in row.scores),
                "" if row.drop is None else str(row.drop),
            ]
            for row in self.rows
        ]
        title = f"{self.model} on {self.task}, {counted(len(self.rows[0].scores), 'seed')}"
        answers = {
            " ".join(filter(None, (row.setting.family, row.setting.order, row.setting.label))): self.results[
                row.setting.name
            ]
            for row in self.rows
        }
        return Table("results", title, columns=columns, rows=rows, caption=same_answers(answers))

    def _orders_table(self) -> Table:
        """A row for each head, with its score and its place (from 1) in every order."""
        columns = [Column("site"), Column("role"), Column("layer", "count"), Column("head", "count")]
        places = {}
        for order, scores in self.orders.items():
            columns += [Column(order, "general", 6), Column(f"place in {order}", "count")]
            places[order] = {head: place for place, head in enumerate(scores.order(), start=1)}
        rows: list[list[Cell]] = []
        one = next(iter(self.orders.values()))
        for site in one.sites:
            for number, head in enumerate(one.scored(site)):
                rows.append([site.name, site.role, site.layer, head])
                for order, scores in self.orders.items():
                    rows[-1] += [float(scores.values[site.name][number]), places[order][site.name, head]]
        title = f"{self.model} on {self.task}: heads, and their places in the orders (1 is replaced first)"
        return Table("orders", title, columns=columns, rows=rows, detail=True)

    def _epochs_table(self) -> Table:
        metrics = list(dict.fromkeys(name for epochs in self.epochs.values() for each in epochs for name in each))
        texts = [Column("family"), Column("order"), Column("budget")]
        counts = [Column("heads", "count"), Column("seed", "count"), Column("epoch", "count")]
        rows = [
            [
                row.setting.family,
                row.setting.order,
                row.setting.label,
                len(row.setting.heads),
                seed,
                number,
                *(values.get(metric) for metric in metrics),
            ]
            for row in self.rows
            for seed, result in zip(self.study.seeds, self.results[row.setting.name], strict=True)
            for number, values in enumerate(self.epochs[result.name], start=1)
        ]
        columns = [*texts, *counts, *(Column(metric, "number") for metric in metrics)]
        title = f"{self.model} on {self.task}: the probes after each epoch"
        return Table("epochs", title, columns=columns, rows=rows, detail=True)

    def charts(self) -> list[Chart]:
        """Every chart that the findings allow."""
        return list(self._charts())

    def _charts(self) -> Iterator[Chart]:
        if self.rows:
            axis = Axis(self.metric if self.smaller_is_better else f"{self.metric} (%)")  # perplexity is not a share
            yield self._curve(axis)
            families = bars(self.rows)
            if len(families) > 1:
                yield self._bars(families, axis)
        for name, scores in self.orders.items():
            ranks = scores.ranks().numpy()
            label, last = "place in the order (1 is replaced first)", float(np.nanmax(ranks))
            yield HeadMatrix.of(file_name("order", name), ranks, scores.sites, label, low=1.0, high=last)
        if self.correlation is not None:
            yield _correlation_chart(self.correlation)

    def _curve(self, axis: Axis) -> Curve:
        """The score against how many heads are constant, from the worst seed to the best (figure 2 of the paper)."""
        total, found = self.heads, curves(self.rows, self.heads)
        series = [
            Series.of(
                name,
                [Point(heads, float(np.mean(seeds)), min(seeds), max(seeds)) for heads, seeds in budgets.items()],
            )
            for name, budgets in found.items()
        ]
        baseline = self.rows[0].score
        return Curve(
            "score-against-heads",
            series=series,
            x=Axis(f"constant heads (of {total}{' selected' * self.selected})", "whole", -0.05 * total, 1.05 * total),
            y=axis,
            right=Drop(baseline, rise=self.smaller_is_better) if baseline else None,
            apart=min(0.01, 0.06 / len(series)) * total,
        )

    def _bars(self, families: dict[str, dict[str, Sequence[float]]], axis: Axis) -> Bars:
        """What heads are replaced by, and what that costs: bars of the mean over seeds, every seed as a dot."""
        labels = list(dict.fromkeys(label for budgets in families.values() for label in budgets))
        groups = [
            Group(
                label,
                [float(np.mean(budgets[label])) if label in budgets else np.nan for budgets in families.values()],
                points=[budgets.get(label, ()) for budgets in families.values()],
            )
            for label in labels
        ]
        baseline = Reference(self.rows[0].score, "none")
        return Bars("families", groups=groups, labels=list(families), y=axis, references=[baseline],
                    legend="constant heads")  # fmt: skip

    def sentences(self) -> list[str]:
        """How sure the averages are, what the numbers say about the paper's claims, and how well the orders agree."""
        said = [_facts(self.averages.summary())]
        if not self.rows:
            said += [self._order_sentence(name) for name in self.orders]
        if self.rows:
            said += sentences(self.rows, self.metric, "selected" if self.selected else "")
        pairs = self.correlation.rows() if self.correlation is not None else []
        said += [
            f"{one} and {other}: rank correlation rho {rho:+.2f}, tau {tau:+.2f}" for one, other, rho, tau in pairs
        ]
        if self.orders:
            said.append(f"To make half of the heads constant for good: {self._bake_command()}")
        return said

    def _order_sentence(self, name: str) -> str:
        """All heads of an order, as edits take them."""
        scores = self.orders[name]
        clear = len({site.layer for site in scores.sites}) == len(scores.sites)
        heads = " ".join(f"{where}/{head}" for where, head in scores.order(by="layer" if clear else "site"))
        kind = "layer" if clear else "site"
        return f"Order {name} ({kind}/head, the one that is replaced first at the front): {heads}"

    def _bake_command(self) -> str:
        """What makes a budget of the first order permanent."""
        order = self.folder / ORDERS / f"{next(iter(self.orders))}.json"
        edit = f"constant:{self.folder / AVERAGES},heads=@{order}:1/2"
        return f"attrim bake {shlex.quote(self.model)} --edit {shlex.quote(edit)} --output FOLDER"

    def data(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "metric": self.metric,
            "averages": self.averages.summary(),
            "orders": {name: scores.to_json() for name, scores in self.orders.items()},
            "correlation": [list(row) for row in self.correlation.rows()] if self.correlation is not None else [],
            "rows": [row.to_json() for row in self.rows],
        }


def _facts(facts: dict[str, float]) -> str:
    text = f"Average attention: {100 * facts['unseen_share']:.1f} % of the cells were never seen"
    if "half_correlation" in facts:
        text += (
            f"; two halves of the data correlate by {facts['half_correlation']:.4f} "
            f"(lowest head {facts['lowest_half_correlation']:.4f})"
        )
    return f"{text}."


def _correlation_chart(correlation: RankCorrelation) -> Pattern:
    """Spearman's rho above the diagonal and Kendall's tau below it."""
    values = np.triu(correlation.spearman, 1) + np.tril(correlation.kendall, -1)
    np.fill_diagonal(values, np.nan)
    names = correlation.names
    return Pattern("rank-correlation", matrices=[Matrix(values)], queries=names, keys=names, scale="diverging",
                   low=-1.0, high=1.0, label="rank correlation\n(ρ above, τ below)", x_label="", y_label="",
                   numbers=True)  # fmt: skip


def curves(rows: Sequence[BudgetRow], total: int) -> dict[str, dict[int, Sequence[float]]]:
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


def bars(rows: Sequence[BudgetRow]) -> dict[str, dict[str, Sequence[float]]]:
    """The scores of every family by budget, with the order that all of them have."""
    first = next((row.setting.order for row in rows if row.setting.order), "")
    found: dict[str, dict[str, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        if row.setting.heads and row.setting.order in ("", first):
            found[row.setting.family][row.setting.label] = row.scores
    return found
