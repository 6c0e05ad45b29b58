"""What the sparsity study found, as tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...core.charts import Chart, Column, Table
from ...core.wording import counted
from ...errors import ArtefactError
from ...evaluation import UNEDITED
from ...runs.result import Interval, Result, paired_bootstrap, results_table
from ...stats import Histogram, Sample
from ...stats.bundle import Stats
from ...stats.display import layer_mean, token_label
from ...stats.distance import RowDistance
from ...stats.spread import Extremes, Majority
from ...stats.token_sparsity import TokenSparsity, TokenTable
from ...tasks.base import Task
from ..findings import Findings, Setting, findings
from .claims import Claim, Renormalising, claims, group_of, renormalising
from .settings import RENORMALIZED, THRESHOLD
from .study import Sparsity


@dataclass(frozen=True, eq=False, kw_only=True)
class SparsityFindings(Findings):
    """What the study found.

    Attributes
    ----------
    smaller_is_better : whether a smaller score is a better one.
    stats : of each part that was measured; ``"weights"`` always is, and ``"tokens/0-2"`` is of head 2 of layer 0 alone.
    settings : what was tried, in the order of the table.
    results : a result for each setting, ``"unedited"`` first; empty for a task without a metric.
    renormalised : of thresholds that were tried both ways, how much larger the metric is renormalised than as in the
        paper, by the name of the renormalised setting.
    tokens : texts of the tokens that tables and charts show, by their numbers.
    compared : folders of earlier runs that are drawn beside this one.
    """

    study: Sparsity
    smaller_is_better: bool = False
    stats: dict[str, Stats]
    settings: tuple[Setting, ...] = ()
    results: dict[str, Result] = field(default_factory=dict)
    renormalised: dict[str, Interval] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    compared: tuple[Path, ...] = ()

    @property
    def histogram(self) -> Histogram:
        """The histogram of the weights, with facts about rows."""
        return self.stats["weights"][Histogram]

    @property
    def metric(self) -> str:
        """The task's first metric."""
        return next(iter(self.results[UNEDITED].metrics))

    @property
    def score_label(self) -> str:
        """What stands at an axis of scores."""
        return f"{self.metric}, smaller is better" if self.smaller_is_better else f"{self.metric} (%)"

    def group(self, name: str) -> list[Setting]:
        """The settings of a group that have a result."""
        return [setting for setting in group_of(self.settings, name) if setting.name in self.results]

    @property
    def vocabulary(self) -> Vocabulary:
        """What stands for the tokenizer where charts and tables need the texts of tokens."""
        return Vocabulary(self.tokens)

    @property
    def claims(self) -> list[Claim]:
        """The paper's claims, judged."""
        return claims(self.settings, self.results, self.metric, self.smaller_is_better) if self.results else []

    @property
    def renormalising(self) -> Renormalising | None:
        """Whether rows should be renormalised after a threshold, where both forms were tried."""
        if not self.results:
            return None
        return renormalising(self.settings, self.results, self.renormalised, self.metric, self.smaller_is_better)

    def layers(self) -> dict[str, list[float]]:
        """Facts about query rows, one number a site, the mean over its heads."""
        majority = self.stats["weights"][Majority]
        columns = {
            "tokens to majority": majority.mean("tokens"),
            "share of the row": majority.mean("share"),
            "median bin": self.histogram.median_bin(),
            "diversity (bins)": self.histogram.diversity(),
        }
        return {name: layer_mean(values).tolist() for name, values in columns.items()}

    def distances(self) -> dict[str, dict[str, float]]:
        """For each quantising method, the mean Jensen-Shannon distance and row sum over all heads."""
        if "distances" not in self.stats:
            return {}
        stat = self.stats["distances"][RowDistance]
        distance, sums = (table.nanmean((0, 1)).tolist() for table in (stat.distance(), stat.row_sum()))
        return {edit: {"distance": distance[n], "row_sum": sums[n]} for n, edit in enumerate(stat.edits)}

    @cached_property
    def beside(self) -> tuple[list[Self], list[str]]:
        """The findings of the earlier runs that can be read, and a sentence about each that cannot."""
        found, missing = [], []
        for folder in self.compared:
            try:
                other = findings(folder)
            except ArtefactError as error:
                missing.append(f"The figures leave out the run in {folder}, for it cannot be read: {error}")
            else:
                assert isinstance(other, type(self))  # the study refuses others
                found.append(other)
        return found, missing

    def tables(self) -> list[Table]:
        """Shares of small weights, facts about rows, distances and results; single heads and tokens for files."""
        title = f"{self.model}: how small the attention weights are"
        shown = [*(replace(table, title=title) for table in self.histogram.tables()), self._rows_table()]
        if "distances" in self.stats:
            shown.append(self._distances_table())
        if self.results:
            names = {item.name: _display(item) for item in self.settings}
            examples = len(next(iter(self.results[UNEDITED].columns.values())))
            shown.append(
                results_table(self.results, f"{self.model} on {self.task}, {counted(examples, 'example')}", names)
            )
        return [*shown, self._heads_table(), *self._tokens_tables()]

    def charts(self) -> Sequence[Chart]:
        """See :mod:`~attrim.studies.sparsity.figures`."""
        from .figures import figures

        return figures(self)

    def sentences(self) -> list[str]:
        """The claims with their verdicts, and whether the model needs renormalising."""
        said = [claim.sentence for claim in self.claims]
        forms = self.renormalising
        return [*said, *([] if forms is None else [forms.sentence]), *self.beside[1]]

    def data(self) -> dict[str, Any]:
        """See :meth:`Findings.data`."""
        forms = self.renormalising
        return {
            "shares": self.histogram.shares(),
            "layers": self.layers(),
            "distances": self.distances(),
            "settings": {item.name: {"group": item.group, "value": item.value} for item in self.settings},
            "results": {name: result.to_json() for name, result in self.results.items()},
            "claims": [claim.to_json() for claim in self.claims],
            "renormalising": None if forms is None else forms.to_json(),
        }

    def _rows_table(self) -> Table:
        facts = self.layers()
        columns = [Column("role"), Column("layer"), *(Column(name, "general", 3) for name in facts)]
        rows = [
            [site.role, site.layer, *(values[place] for values in facts.values())]
            for place, site in enumerate(self.histogram.sites)
        ]
        return Table("layers", "Query rows, mean over the heads of each layer", columns=columns, rows=rows)

    def _distances_table(self) -> Table:
        columns = [Column("edit"), Column("JS distance", "number", 4), Column("row sum", "number", 3)]
        rows = [[edit, facts["distance"], facts["row_sum"]] for edit, facts in self.distances().items()]
        title = "Quantised against original rows, mean over rows and heads"
        return Table("distances", title, columns=columns, rows=rows)

    def _heads_table(self) -> Table:
        """A row for each head: how the extremes of examples and the facts about rows vary."""
        weights, histogram = self.stats["weights"], self.histogram
        extremes, majority = weights[Extremes], weights[Majority]
        measures = {"mean": extremes.mean, "std": extremes.std, "lowest": extremes.lowest, "highest": extremes.highest}
        facts = {f"{how} of {fact}": read(fact) for fact in extremes.facts for how, read in measures.items()}
        facts |= {f"share not above {histogram.bar:g}": histogram.sparsity(histogram.bar)}
        facts |= {"tokens to majority": majority.mean("tokens"), "rows without majority": majority.missing()}
        facts |= {"median bin": histogram.median_bin(), "diversity": histogram.diversity()}
        numbers = np.stack([np.asarray(table, dtype=float) for table in facts.values()], -1)  # [sites, heads, facts]
        columns = [Column("role"), Column("layer"), Column("head"), *(Column(name, "general", 6) for name in facts)]
        rows = [
            [site.role, site.layer, head, *numbers[place, head]]
            for place, site in enumerate(histogram.sites)
            for head in range(site.heads)
            if np.isfinite(numbers[place, head]).any()  # watched
        ]
        return Table("heads", columns=columns, rows=rows, detail=True)

    def _tokens_tables(self) -> Iterator[Table]:
        """The most frequent tokens, and the tokens of every kept example, the sparsest first."""
        if "tokens" not in self.stats:
            return
        stat = self.stats["tokens"][TokenSparsity]
        frequent = sorted(stat.most_frequent(), key=lambda item: -item[2][-1])
        yield Table(
            "tokens",
            columns=[Column("token"), Column("rows"), Column(f"share not above {stat.bars[-1]:g}", "number", 6)],
            rows=[[self.tokens[str(token)], rows, shares[-1]] for token, rows, shares in frequent],
            detail=True,
        )
        header = [*map(Column, ("place", "token", "weights", "not above the bar")), Column("share", "number", 6)]
        kept = self.stats["tokens"][TokenTable].texts() if "TokenTable" in self.stats["tokens"] else []
        for name, rows in kept:
            ordered = sorted(rows, key=lambda row: (-row.sparsity, row.place))
            cells = [[row.place, self.tokens[str(row.token)], row.weights, row.small, row.sparsity] for row in ordered]
            yield Table(name, columns=header, rows=cells, detail=True)


@dataclass(frozen=True)
class Vocabulary:
    """The part of a tokenizer that charts and tables need, for the tokens that they show."""

    texts: dict[str, str]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""
        return "".join(self.texts[str(token)] for token in tokens)


def compare_forms(settings: Sequence[Setting], results: dict[str, Result], task: Task) -> dict[str, Interval]:
    """How much larger the first metric is renormalised than as in the paper, of every bar that was tried both ways."""
    plain = {setting.value: results[setting.name] for setting in group_of(settings, THRESHOLD)}
    metric = next(iter(task.metrics.values()), None)
    return {
        other.name: paired_bootstrap(metric, plain[other.value].columns, results[other.name].columns)
        for other in group_of(settings, RENORMALIZED)
        if metric is not None and other.value in plain
    }


def token_names(stats: dict[str, Stats], tokenizer: Any) -> dict[str, str]:
    """The texts of all tokens that tables and charts show, by their numbers."""
    numbers: set[int] = set()
    for part, found in stats.items():
        if part.partition("/")[0] == "tokens":
            numbers |= {token for token, _, _ in found[TokenSparsity].most_frequent()}
        if "Sample" in found:
            numbers |= found[Sample].tokens_kept()
        if "TokenTable" in found:
            numbers |= {row.token for _, rows in found[TokenTable].texts() for row in rows}
    return {str(number): token_label(tokenizer, number) for number in sorted(numbers)}


def _display(setting: Setting) -> str:
    """What the table calls a setting; the long names of methods need the room."""
    return f"control: {setting.label}" if setting.label else setting.name.removeprefix("quantize:")
