"""Remove heads in the order of their scores, step by step, and evaluate what is left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attention.context import attach
from ...core.charts import file_name
from ...core.modes import device_of, evaluation_mode
from ...core.progress import progress_bar
from ...core.site import Select, Site, blocks_of
from ...core.wording import percent
from ...edits.base import Edit
from ...edits.gate import Gate
from ...evaluation import UNEDITED, Prepared
from ...runs.result import Result
from ...scores.base import Scope, Scores, Unit
from ...scores.orders import write_order
from ...scores.target import answers_of, logits_of, places_of, unlabelled
from ...tasks.base import Task
from ..bench import Bench
from .areas import Comparison, Difference, PruningCurve, PruningStep, curve_name
from .scoring import Candidate, Scoring, candidates, labelled_batches
from .study import Heads

Direction = Literal["largest", "smallest"]
Counting = Literal["round", "visualbert", "lxmert"]
ORDERS = "orders"
"""The folder of a run with the orders of the scope dataset."""
WITHIN = Fraction(1, 100)
"""The share of the unpruned score that a budget may cost to be called the largest one that costs little."""


# Which heads


def pruned_count(step: float, total: int, counting: Counting = "round") -> int:
    """How many of ``total`` units a step removes.

    Parameters
    ----------
    counting : ``round`` removes ``round(step * total)``. The released code has two other rules: for VisualBERT the
        number that is removed is rounded down, for LXMERT the number that is kept.
    """
    if counting == "visualbert":
        return int(step * total)
    if counting == "lxmert":
        return total - int((1 - step) * total)
    return round(Fraction(str(step)) * total)  # through the text: 0.7 of 10 is 7, and the float is a little less


def first_units(values: Tensor, count: int, direction: Direction) -> Tensor:
    """Bool ``[N, U]``: the ``count`` units of each row with the largest or the smallest values; equal ones in order."""
    places = torch.argsort(values, dim=1, descending=direction == "largest", stable=True)
    return torch.zeros(values.shape, dtype=torch.bool).scatter(1, places[:, :count], value=True)


@dataclass(frozen=True)
class Units:
    """What is removed at once: some heads each, in the order of the model."""

    sites: tuple[Site, ...]
    members: tuple[tuple[tuple[str, int], ...], ...]

    @classmethod
    def of(cls, chosen: Mapping[Site, Sequence[int]], unit: Unit) -> Units:
        """The units of the chosen heads."""
        blocks = blocks_of(list(chosen))
        groups: dict[object, list[tuple[str, int]]] = {}
        for site, heads in chosen.items():
            for head in heads:
                key = {"head": (site.name, head), "site": site.name, "block": blocks[site]}[unit]
                groups.setdefault(key, []).append((site.name, head))
        return cls(tuple(chosen), tuple(tuple(group) for group in groups.values()))

    def __len__(self) -> int:
        return len(self.members)

    def values(self, scores: Scores) -> Tensor:
        """Float64 ``[N, U]``, N = 1 for one order: the mean over the heads of each unit, large for important ones."""
        columns = {
            (site.name, head): scores.values[site.name][..., place]
            for site in scores.sites
            for place, head in enumerate(scores.scored(site))
        }
        means = [torch.stack([columns[head] for head in group], -1).mean(-1) for group in self.members]
        values = torch.stack(means, -1) * (1 if scores.large_is_important else -1)
        return values if values.ndim == 2 else values[None]

    def shared(self, scores: Scores, unit: Unit) -> Scores:
        """The scores with the mean of its unit for every head, for an order that can be written to a file."""
        sign = 1 if scores.large_is_important else -1
        means = {head: mean for group, mean in zip(self.members, self.values(scores)[0], strict=True) for head in group}
        values = {
            site.name: sign * torch.stack([means[site.name, head] for head in scores.scored(site)])
            for site in scores.sites
        }
        return dataclasses.replace(scores, values=values, options={**scores.options, "unit": unit})

    def gate(self, removed: Tensor) -> Gate:
        """Switches off the units of each example, bool ``[N, U]``, or of all alike, ``[1, U]``."""
        heads = {site.name: site.heads for site in self.sites}
        factors = {name: torch.ones(len(removed), count) for name, count in heads.items()}
        for group, off in zip(self.members, removed.unbind(1), strict=True):
            for name, head in group:
                factors[name][:, head] = (~off).float()
        rows = {name: each if len(removed) > 1 else each[0] for name, each in factors.items()}
        return Gate(rows, at="output", select=Select(names=list(rows)))


# What comes of it


@dataclass(frozen=True)
class FirstOrder:
    """What gradient x attention predicts for the explained logit, minus its sum over removed heads, and what happens.

    Attributes
    ----------
    predicted, measured : mean change of the logit over the examples.
    correlation : between both, over the examples; None where one of them does not vary.
    """

    score: str
    direction: str
    share: float
    removed: int
    predicted: float
    measured: float
    correlation: float | None


@dataclass(frozen=True)
class Budget:
    """The largest step of a data-set order that costs little, smallest scores first.

    Attributes
    ----------
    order : the file with the order, in the run's folder.
    heads : how many heads it removes; 0 where even the first step costs more.
    """

    score: str
    order: str
    heads: int
    share: float
    result: float


@dataclass(frozen=True, eq=False)
class Pruned:
    """All that pruning found.

    Attributes
    ----------
    metric : the first one of the task.
    units : how many there are to remove.
    counting : the rule for how many each step removes.
    unpruned : the result without any pruning.
    right : the share of examples that the unpruned model answers rightly; None where the task does not tell.
    scores : by scope and label; of the scope example, their means.
    """

    metric: str
    smaller_is_better: bool
    units: int
    counting: Counting
    unpruned: PruningStep
    right: float | None
    curves: tuple[PruningCurve, ...]
    differences: tuple[Difference, ...]
    first_order: tuple[FirstOrder, ...]
    budgets: tuple[Budget, ...]
    scores: dict[str, Scores]


# The work


def prune(bench: Bench, study: Heads, scoring: Scoring) -> Pruned:
    """Evaluate every step of every order; the run keeps each as soon as it is done."""
    return _Pruning(bench, study, scoring).work()


@dataclass(frozen=True)
class _Sequence:
    """One order, and the way through it."""

    scope: Scope
    candidate: Candidate
    direction: Direction
    seed: int | None

    @property
    def name(self) -> str:
        return curve_name(self.scope, self.candidate.label, "" if self.candidate.drawn else self.direction, self.seed)


class _Pruning:
    """The driver: makes the settings one by one, evaluates those that the run does not have, and compares them."""

    def __init__(self, bench: Bench, study: Heads, scoring: Scoring) -> None:
        self.bench, self.study, self.scoring = bench, study, scoring
        self.run, self.prepared = bench.require_run(), scoring.evaluated
        self.task: Task = self.prepared.task
        self.metric = next(iter(self.task.metrics))
        self.units = Units.of(scoring.chosen, study.unit)
        self.counting: Counting = "round"
        if study.as_coded:
            two_streams = any(">" in site.role for site in scoring.sites)
            self.counting = "lxmert" if two_streams else "visualbert"
        self.counts = {step: pruned_count(step, len(self.units), self.counting) for step in study.steps}

    def work(self) -> Pruned:
        sequences = self._sequences()
        unpruned = Result.load(self.run, UNEDITED) or self._evaluated(UNEDITED, None)
        results: dict[str, dict[float, Result]] = {}
        first_order: list[FirstOrder] = []
        with progress_bar(len(sequences) * len(self.counts), enabled=self.bench.progress) as bar:
            for sequence in sequences:
                results[sequence.name] = {}
                for step, result in self._results(sequence, unpruned, bar.describe):
                    results[sequence.name][step] = result
                    bar.advance()
                if sequence.scope == "example" and sequence.candidate.first_order and not self.study.rescore:
                    first_order += self._first_order(sequence, bar.describe)
        hits = self.task.hits(unpruned.columns)
        compared = Comparison(self.task, results, hits)
        curves = tuple(
            compared.curve(sequence.scope, sequence.candidate.label, sequence.direction, sequence.seed, sequence.name,
                           self.counts)
            for sequence in sequences
        )  # fmt: skip
        scores = self._scores()
        return Pruned(
            metric=self.metric,
            smaller_is_better=self.metric in self.task.smaller_is_better,
            units=len(self.units),
            counting=self.counting,
            unpruned=curves[0].steps[0],
            right=None if hits is None else float(np.mean(hits)),
            curves=curves,
            differences=compared.differences(curves),
            first_order=tuple(first_order),
            budgets=self._budgets(curves, scores),
            scores=scores,
        )

    def _sequences(self) -> list[_Sequence]:
        found = []
        for scope in self.study.scopes:
            for one in candidates(self.study):
                if scope not in one.scopes:
                    continue
                # A random order that is read backwards is another random order, so one way serves both.
                ways = self.study.directions[:1] if one.drawn else self.study.directions
                seeds: tuple[int | None, ...] = self.study.seeds if one.drawn else (None,)
                found += [_Sequence(scope, one, way, seed) for seed in seeds for way in ways]
        return found

    def _results(
        self, sequence: _Sequence, unpruned: Result, announce: Callable[[str], None]
    ) -> Iterator[tuple[float, Result]]:
        """The result of every step; equal numbers of heads are evaluated once."""
        removed: Tensor | None = None
        before: Result = unpruned
        count = 0
        for step, wanted in self.counts.items():
            if wanted != count:
                announce(f"pruning {sequence.name}, {percent(step)}")
                name = self._setting(sequence, wanted)
                stored = Result.load(self.run, name)
                if stored is None or self._rescored(sequence):  # the next step needs to know what is removed by then
                    values = self.units.values(self._current(sequence, removed, count))
                    if removed is not None and self._rescored(sequence):  # what is gone stays gone
                        ends = math.inf if sequence.direction == "largest" else -math.inf
                        values = values.masked_fill(removed, ends)
                    removed = first_units(values, wanted, sequence.direction)
                before = stored or self._evaluated(name, removed)
                count = wanted
            yield step, before

    def _evaluated(self, name: str, removed: Tensor | None) -> Result:
        """A result, stored; curves are compared with each other later, all at once."""
        edits = [] if removed is None else [self.units.gate(removed)]
        return self.prepared.point(name, edits).store(self.run, name)

    def _rescored(self, sequence: _Sequence) -> bool:
        """Whether the scores change while heads are removed; random numbers and orders of files do not."""
        return self.study.rescore and not sequence.candidate.drawn and sequence.candidate.score is not None

    def _setting(self, sequence: _Sequence, count: int) -> str:
        way = sequence.direction if sequence.candidate.drawn else ""
        again = "rescored" if self._rescored(sequence) else ""
        return "/".join(filter(None, ("prune", self.study.unit, again, sequence.name, way, str(count))))

    def _current(self, sequence: _Sequence, removed: Tensor | None, count: int) -> Scores:
        """The scores that the next step goes by."""
        seed = sequence.seed or 0
        if removed is None or not self._rescored(sequence):
            return self.scoring.of(sequence.candidate, sequence.scope, seed)
        name = file_name("rescored", self.study.unit, sequence.name.replace("/", "-"), count)
        gate = self.units.gate(removed)
        return self.scoring.kept(name, lambda: self.scoring.compute(sequence.candidate, sequence.scope, seed, gate))

    def _first_order(self, sequence: _Sequence, announce: Callable[[str], None]) -> Iterator[FirstOrder]:
        """What the sum of the scores predicts for the explained logit, and what really happens to it."""
        scores = self.scoring.of(sequence.candidate, "example")
        values = self.units.values(scores)
        # The sum over the heads of a unit, of which the values are means.
        values = values * torch.tensor([float(len(group)) for group in self.units.members])
        target = sequence.candidate.score.target if sequence.candidate.score is not None else None
        order = self.units.values(scores)
        answers: list[Tensor] = []
        unpruned = explained_logits(self.prepared, target, answers)
        for step, count in self.counts.items():
            if count == 0:
                continue
            announce(f"explained logits of {sequence.name}, {percent(step)}")
            removed = first_units(order, count, sequence.direction)
            name = f"logit/{self.study.unit}/{sequence.name}/{count}"
            if self.run.fields(name) is None:
                after = explained_logits(self.prepared, target, answers, self.units.gate(removed))
                self.run.store(name, {"change": float(np.mean(after - unpruned))}, {"change": after - unpruned})
            measured = self.run.predictions(name)["change"]
            predicted = -(values * removed).sum(1).numpy()
            varies = np.ptp(predicted) > 0 and np.ptp(measured) > 0
            correlation = float(np.corrcoef(predicted, measured)[0, 1]) if varies else None
            means = float(predicted.mean()), float(measured.mean())
            yield FirstOrder(sequence.candidate.label, sequence.direction, step, count, *means, correlation)

    def _scores(self) -> dict[str, Scores]:
        """The scores of every order, and of the scope example their means; orders are written to files."""
        found = {}
        for scope in self.study.scopes:
            for one in candidates(self.study):
                if scope not in one.scopes:
                    continue
                seed = self.study.seeds[0] if one.drawn else 0
                scores = self.scoring.of(one, scope, seed)
                if scope == "example":
                    if not one.drawn:
                        found[f"example/{one.label}"] = scores.over_examples()
                    continue
                found[f"dataset/{one.label}"] = scores
                write_order(self._order_file(one.label), self.units.shared(scores, self.study.unit))
        return found

    def _order_file(self, label: str) -> Path:
        return self.bench.run_folder / ORDERS / file_name("order", self.study.unit, label)

    def _budgets(self, curves: Sequence[PruningCurve], scores: Mapping[str, Scores]) -> tuple[Budget, ...]:
        found = []
        for curve in curves:
            if curve.scope != "dataset" or curve.direction != "smallest":
                continue
            last = curve.steps[0]
            for step in curve.steps:  # a later one that is better by chance does not count
                if not self._costs_little(step.score, curve.steps[0].score):
                    break
                last = step
            order = self.units.shared(scores[f"dataset/{curve.score}"], self.study.unit).order()
            heads = self._heads_of(order, last.removed)
            name = f"{ORDERS}/{self._order_file(curve.score).name}.json"
            found.append(Budget(curve.score, name, heads, last.share, last.score))
        return tuple(found)

    def _costs_little(self, score: float, unpruned: float) -> bool:
        most = float(WITHIN) * abs(unpruned)
        return score <= unpruned + most if self.metric in self.task.smaller_is_better else score >= unpruned - most

    def _heads_of(self, order: Sequence[tuple[str, int]], count: int) -> int:
        """How many heads the first ``count`` units of an order have."""
        unit_of = {head: number for number, group in enumerate(self.units.members) for head in group}
        first = list(dict.fromkeys(unit_of[head] for head in order))[:count]
        return sum(len(self.units.members[number]) for number in first)


def explained_logits(
    prepared: Prepared, target: object, answers: list[Tensor], gate: Edit | None = None
) -> NDArray[np.float64]:
    """The explained logit ``[N]`` of each example, summed over its rows.

    Parameters
    ----------
    answers : of each batch, the answers ``[B, P]`` that are explained; filled where it is empty.
    """
    model, device = prepared.model, device_of(prepared.model)
    index: list[NDArray[np.int64]] = []
    numbers = []
    with evaluation_mode(model):
        for place, batch in enumerate(labelled_batches(prepared, target == "label", index, gate)):
            inputs = {name: tensor.to(device) for name, tensor in batch.items()}
            if gate is None:
                with attach(model):
                    places = places_of(model, model(**unlabelled(inputs)), inputs)
            else:
                places = places_of(model, model(**unlabelled(inputs)), inputs)
            if place == len(answers):
                answers.append(answers_of(places, target))  # type: ignore[arg-type]
            numbers.append(logits_of(places, answers[place]).double().cpu().numpy())
    rows = np.concatenate(index)
    total = np.zeros(int(rows.max()) + 1)
    np.add.at(total, rows, np.concatenate(numbers))
    return total
