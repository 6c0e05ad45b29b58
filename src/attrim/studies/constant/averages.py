"""Step 1 of the constant study: the average attention over the training data, and how sure it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ...attention.discover import find_sites
from ...core import record
from ...errors import ArtefactError
from ...models.digests import comparable_digests, tokenizer_digest
from ...runs.files import remove_folder
from ...stats.base import SiteRecord
from ...stats.bundle import Stats, load_stat
from ...stats.mean import Mean, count_summary, split_half
from ..bench import Bench

PARTS = ("averages-even", "averages-odd")
FOLDER = "averages"
CORRELATIONS = f"{FOLDER}/correlations.json"
Correlations = dict[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class AverageAttention:
    """The average attention of a model on a task.

    Attributes
    ----------
    stats : a ``Mean`` over all training data, on all slots of a text; 0 in cells that no text has. The run keeps it in
        its folder ``averages``, which edits read: ``constant:RUN/averages``.
    correlations : site name to the correlation of each head between two halves of the batches; empty for a single batch
        and for averages from outside.
    """

    stats: Stats
    correlations: Correlations

    @property
    def mean(self) -> Mean:
        """The averages themselves."""
        return self.stats[Mean]

    def summary(self) -> dict[str, float]:
        """The lowest and the mean correlation between halves, and the share of cells that no text has."""
        counts = count_summary(self.mean).values()
        facts = {"unseen_share": sum(each.unseen for each in counts) / sum(each.cells for each in counts)}
        values = [value for row in self.correlations.values() for value in row if value == value]
        if values:
            facts |= {"half_correlation": sum(values) / len(values), "lowest_half_correlation": min(values)}
        return facts


def average(bench: Bench, given: Path | None = None) -> AverageAttention:
    """The averages from the run; or from the folder ``given``, or measured now, and kept in the run."""
    run, slots = bench.require_run(), bench.training_task().max_length
    folder = run.folder / FOLDER
    known = Stats.stored(folder, [Mean()])
    if known is None:
        known, correlations = _measured(bench) if given is None else (_given(bench, given, slots), {})
        for own in known[Mean].records.values():
            known[Mean].grow(own, slots, slots)  # by itself it only grows to the longest text
        run.write(CORRELATIONS, record.dump(correlations))
        known.save(folder)  # last: what has an index is complete
        for part in PARTS:
            if (half := run.folder / "stats" / part).exists():
                remove_folder(half)
    found = record.load(Correlations, run.read_json(CORRELATIONS), f"correlations of {folder}")
    return AverageAttention(known, found)


def _measured(bench: Bench) -> tuple[Stats, Correlations]:
    """The averages over the training data, and how well its halves agree.

    The two halves of the batches are measured apart, which costs nothing: ``Mean`` merges exactly.
    """
    task, model, tokenizer = bench.training_task(), bench.loaded_model, bench.loaded_tokenizer
    halves = []
    for start, part in enumerate(PARTS):
        batches: Iterator[Any] = islice(task.feed(model, tokenizer), start, None, len(PARTS))
        first = next(batches, None)
        if first is not None:  # a single batch has no second half
            halves.append(bench.measure(Mean(), part, batches=chain([first], batches)))
    correlations: Correlations = {}
    if len(halves) > 1:
        rows = split_half(halves[0][Mean], halves[1][Mean])
        correlations = {name: tuple(row.tolist()) for name, row in rows.items()}
    whole = halves[0]
    # Not the merge of stats, which refuses two parts of the same texts: training data may hold each text twice.
    for half in halves[1:]:
        whole[Mean].merge(half[Mean])
        whole.origin = dataclasses.replace(whole.origin, data=whole.origin.data + half.origin.data)
    whole.origin = dataclasses.replace(whole.origin, tokenizer=tokenizer_digest(tokenizer))
    return whole, correlations


def _given(bench: Bench, folder: Path, slots: int) -> Stats:
    """The averages of a folder for the selected heads of this model, which it was measured on with any head or none."""
    mean, origin = load_stat(folder, Mean, "average attention", "mean"), Stats.origin_of(folder)
    model = bench.loaded_model
    remedy = f"so --averages {folder} does not fit this model: measure them on it"
    origin.require_same_source(comparable_digests(model), tokenizer_digest(bench.loaded_tokenizer), remedy)
    fitting = Mean()
    for site, heads in bench.select().resolve(find_sites(model)).items():
        own = next((mean.records[name] for name in site.aliases if name in mean.records), None)
        missing = heads if own is None else [head for head in heads if head not in own.heads]
        if own is None or missing:
            raise ArtefactError(
                f"The averages in {folder} lack head {missing[0]} of site {site.name!r}; measure all heads of it."
            )
        longest = max(own.tensors["sums"].shape[1:])
        if longest > slots:
            raise ArtefactError(
                f"The averages in {folder} are of texts with {longest} slots, not {slots}; measure with --max-length "
                f"{slots} and the same layout, or give --max-length {longest}."
            )
        rows = [own.heads.index(head) for head in heads]
        tensors = {
            name: tensor[rows] if tensor.ndim and len(tensor) == len(own.heads) else tensor.clone()
            for name, tensor in own.tensors.items()
        }
        fitting.records[site.name] = SiteRecord(site, tuple(heads), tensors)
    return Stats([fitting], dataclasses.replace(origin, selection=bench.select()))
