"""What the sparsity study measures, each part in one pass over the data and kept in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...core.site import Select
from ...errors import ArtefactError, ParameterError
from ...measurement import Checkpoint, Stats, measure
from ...runs.run import Run
from ...stats import Histogram, Moments, Sample, Stat
from ...stats.distance import RowDistance
from ...stats.rowfacts import RowCurves
from ...stats.spread import Extremes, Majority
from ...stats.token_sparsity import TokenSparsity, TokenTable
from ...stats.values import Values
from ...tasks import Task
from .sweep import Sweep

Part = Literal["weights", "tokens", "distances", "hidden", "matrices"]
CURVE = tuple(10.0 ** (power / 2) for power in range(-16, 0))  # half decades, for the curves of single tokens
PROBES = {"query": 10.0, "key": 10.0, "value": 5.0, "scores": 20.0, "output": 5.0}  # moment to the end of its axis


def check_row_bar(row_bar: float) -> None:
    """Refuse a bar that every attention weight is above, or that none is."""
    if not 0 <= row_bar < 1:
        raise ParameterError(f"The row bar must lie in [0, 1), not {row_bar}.")


@dataclass
class Measuring:
    """What is measured, on what, and where it is kept.

    Attributes
    ----------
    row_bar : row and token sparsity count the weights that are not above it.
    heads : pairs of layer and head that get their own stats of tokens.
    examples : how many examples get a table of their tokens.
    found : the stats of each part that was measured; ``"weights"`` must come first.
    """

    run: Run
    model: nn.Module
    task: Task
    tokenizer: Any
    sweep: Sweep
    row_bar: float
    heads: Sequence[tuple[int, int]]
    examples: int
    progress: bool
    found: dict[str, Stats] = field(default_factory=dict, init=False)

    @property
    def histogram(self) -> Histogram:
        """The histogram of the weights, with facts about rows."""
        histogram = self.found["weights"]["Histogram"]
        assert isinstance(histogram, Histogram)
        return histogram

    def part(self, part: Part) -> None:
        """Take the stats of a part from the run, or measure them now and keep them there."""
        folder = self.run.folder / "stats" / part
        if part == "tokens":
            self.found[part] = self._tokens(folder)
        else:
            self.found[part] = self._once(folder, self._stats(part), self.sweep.select)

    def _stats(self, part: Part) -> list[Stat]:
        if part == "weights":
            return [Histogram(rows=True, bar=self.row_bar), Moments(), Majority(), Extremes(), RowCurves()]
        if part == "distances":
            return [RowDistance(self.sweep.few_bits(self.histogram))]
        if part == "matrices":
            return [Sample(1)]
        # The probes of the paper: hidden states, then queries, keys, values, scores and the outputs of the heads.
        probes = (Values(moment, -end, end) for moment, end in PROBES.items())  # type: ignore[arg-type]
        return [Values("layer_input"), Values("layer_output"), *probes]

    def _tokens(self, folder: Path) -> Stats:
        """Tokens of every head together and of single examples, and of each chosen head: a stat has one selection."""
        every: list[Stat] = [TokenSparsity((*CURVE, self.row_bar))]
        if self.examples:
            every.append(TokenTable(self.examples, bar=self.row_bar))
        found = list(self._once(folder, every, self.sweep.select).values())
        for layer, head in self.heads:
            stat = TokenSparsity((*CURVE, self.row_bar))
            found += self._once(folder / f"{layer}-{head}", [stat], Select(heads=[(layer, head)])).values()
        return Stats(found)

    def _once(self, folder: Path, stats: Sequence[Stat], select: Select) -> Stats:
        """What an earlier pass left in ``folder`` if it had the same options, or a new pass; the run says the rest.

        A pass that was stopped goes on.
        """
        known = _stored(folder, stats)
        if known is not None:
            return known
        batches = self.task.feed(self.model, self.tokenizer)
        checkpoint = Checkpoint(folder / "unfinished")
        measured = measure(self.model, batches, list(stats), select, self.progress, checkpoint=checkpoint)
        measured.save(folder)
        checkpoint.remove()
        return measured


def _stored(folder: Path, stats: Sequence[Stat]) -> Stats | None:
    if not (folder / "stats.json").exists():
        return None
    try:
        known = Stats.load(folder)
    except ArtefactError:
        return None  # damaged: measuring again replaces it
    wanted = [(type(stat), _options(stat)) for stat in stats]
    return known if [(type(stat), _options(stat)) for stat in known.values()] == wanted else None


def _options(stat: Stat) -> Mapping[str, Any]:
    options: Mapping[str, Any] = stat.options()
    return options
