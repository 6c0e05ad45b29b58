"""What the sparsity study measures, each part in one pass over the data and kept in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...errors import ArtefactError
from ...measure import Stats, measure
from ...runs import Run
from ...select import Select
from ...stats import Histogram, Moments, Sample, Stat
from ...stats.features import Features
from ...stats.majority import Majority
from ...stats.rowcurves import RowCurves
from ...stats.rowdistance import RowDistance
from ...stats.tokensparsity import TokenSparsity
from ...stats.values import Values
from ...tasks import Task
from .sweep import Sweep

Part = Literal["weights", "tokens", "distances", "hidden", "matrices"]
CURVE = tuple(10.0 ** (power / 2) for power in range(-16, 0))  # half decades, for the curves of single tokens
PROBES = {"query": 10.0, "key": 10.0, "value": 5.0, "scores": 20.0, "output": 5.0}  # moment to the end of its axis


def measure_part(
    run: Run,
    part: Part,
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    sweep: Sweep,
    row_bar: float,
    heads: Sequence[tuple[int, int]],
    progress: bool,
) -> Stats:
    """The stats of a part from the run, or measured now and kept there."""
    select = sweep.select
    folder = run.folder / "stats" / part
    if part != "tokens":
        return _measure_once(folder, _stats(part, sweep, row_bar), model, task, tokenizer, select, progress)
    # Tokens of every head together, and of each chosen head alone: one stat each, for a stat has one selection.
    wanted = {folder: select} | {folder / f"{layer}-{head}": Select(heads=[(layer, head)]) for layer, head in heads}
    found = []
    for where, chosen in wanted.items():
        stat = TokenSparsity((*CURVE, row_bar))
        found.append(_measure_once(where, [stat], model, task, tokenizer, chosen, progress)["TokenSparsity"])
    return Stats(found)


def _stats(part: Part, sweep: Sweep, row_bar: float) -> list[Stat]:
    if part == "weights":
        return [Histogram(rows=True, bar=row_bar), Moments(), Majority(), Features(), RowCurves()]
    if part == "distances":
        return [RowDistance(sweep.few_bits())]
    if part == "matrices":
        return [Sample(1)]
    # The probes of the paper: hidden states, then queries, keys, values, scores and the outputs of the heads.
    probes = (Values(moment, -end, end) for moment, end in PROBES.items())  # type: ignore[arg-type]
    return [Values("layer_input"), Values("layer_output"), *probes]


def _measure_once(
    folder: Path,
    stats: Sequence[Stat],
    model: nn.Module,
    task: Task,
    tokenizer: Any,
    select: Select,
    progress: bool,
) -> Stats:
    """What an earlier pass left in ``folder`` if it had the same options, or a new pass; the run says the rest."""
    known = _stored(folder, stats)
    if known is not None:
        return known
    batches = task.feed(model, tokenizer)
    for stat in stats:
        if isinstance(stat, TokenSparsity):
            batches = stat.follow(batches)
    measured = measure(model, batches, list(stats), select, progress)
    measured.save(folder)
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
    options: Mapping[str, Any] = stat.options()  # type: ignore[attr-defined]
    return options
