"""How well scores predict the rise of the loss when one head is changed: measured, not believed.

Heads are scored on one part of the data. On another, one head at a time is removed, replaced by its mean, given a
window or uniform attention, and the rise of the loss is measured. A score is worth as much as its ranks agree with
those of the rises.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attention.context import attach
from ...attention.prefix import Prefix
from ...core.call import Call
from ...core.modes import device_of, evaluation_mode
from ...core.progress import track
from ...core.registry import SCORES
from ...core.site import Select, Site
from ...edits.base import Edit
from ...edits.gate import Gate
from ...edits.mask import Mask
from ...edits.persite import at_heads, at_site
from ...edits.uniform import Uniform
from ...evaluation import Prepared, first_text
from ...runs.result import Interval
from ...scores.fisher import ChangeTap, change_tap
from ...scores.taps import Tapped, gradients
from ...scores.target import example_losses
from ...stats.base import Stat
from ...tasks.metrics import spearman
from ..bench import Bench
from .areas import LEVEL, RESAMPLES
from .scoring import Candidate, Scoring, candidates, labelled_batches
from .study import Change, Heads

TOGETHER = 24
"""Pairs that go through the data together, and are stored together."""
BY_CHANGE = ("fisher", "|gradient|", "gradient", "output change")
"""Predictions that depend on the change; all others have one number for each head."""
SIZE = "size"
"""Where the loss of some changes falls, as that of an over-confident model does, scores may still know how much."""
OTHERS = ("gradient-attention", "lrp", "confidence", "random")
"""The other scores that are always compared."""


@dataclass(frozen=True, eq=False)
class MeanOutput(Edit):
    """Replace the output of a head by a fixed vector, its mean over the data: what it adds is kept, what it says not.

    Parameters
    ----------
    means : site name to ``[H, D]``.
    """

    means: Mapping[str, Tensor]

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        """The means in place of outputs ``[B, H, Q, D]``."""
        means: Tensor = at_heads(at_site(self.means, call.site, "mean"), call, 0, "means")
        return means.to(output.device, output.dtype)[None, :, None].expand_as(output)


class Outputs(Stat):
    """Keeps what heads give in the last pass, ``[B, H, Q, D]`` by site name, and which tokens are real."""

    moment = "output"

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.real: dict[str, Tensor] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`."""
        self.tensors[call.site.name] = tensor
        self.real[call.site.name] = call.queries


@dataclass(frozen=True)
class Pair:
    """A head and a change of it.

    Attributes
    ----------
    rise : of the mean loss on the data that is evaluated.
    predicted : by score; without those that have no number for it.
    """

    site: str
    head: int
    change: Change
    rise: float = 0.0
    predicted: dict[str, float] = field(default_factory=dict)

    def name(self, study: Heads) -> str:
        """What a run keeps it under."""
        return f"change/{kept_name(self.change, study)}/{self.site}/{self.head}"


def kept_name(change: Change, study: Heads) -> str:
    """A change with all that it depends on."""
    return f"{change}-{study.window}" if change == "window" else change


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation of a score with the measured rises.

    Attributes
    ----------
    change : the one that it is over; empty for all of them together; :data:`SIZE` for all of them, with the size of the
        rises, whatever their sign.
    pairs : how many pairs it is over.
    correlation : with its bootstrap interval over the heads.
    """

    score: str
    change: str
    pairs: int
    correlation: Interval


@dataclass(frozen=True)
class Predicted:
    """How well every score predicts.

    Attributes
    ----------
    loss : the mean loss of the unchanged model.
    pairs : all that were measured.
    agreements : of every score, over all changes and over each.
    """

    loss: float
    pairs: tuple[Pair, ...]
    agreements: tuple[Agreement, ...]


def predict(bench: Bench, study: Heads, scoring: Scoring) -> Predicted:
    """Score, change one head at a time, and correlate; the run keeps what is measured as it goes."""
    run = bench.require_run()
    pairs = choose_pairs(scoring.chosen, study)
    changes = [change for change in study.changes if any(pair.change == change for pair in pairs)]
    edits = {change: change_edit(change, scoring, study.window) for change in changes}
    by_change = {
        change: _stored_predictions(bench, scoring, change, edits[change], study)
        for change in track(changes, "gradients for the change {}".format, bench.progress)
    }
    missing = [pair for pair in pairs if run.fields(pair.name(study)) is None]
    groups = [missing[start : start + TOGETHER] for start in range(0, len(missing), TOGETHER)]
    for group in track(groups, lambda _: "changing one head at a time", bench.progress):
        for pair, (rise, moved, loss) in zip(group, measure_rises(scoring.evaluated, group, edits), strict=True):
            run.store(pair.name(study), {"rise": rise, "output change": moved, "loss": loss})
    measured = run.metrics()
    others = {one.label: scoring.of(one, "dataset", study.seeds[0]) for one in other_scores(study)}
    found = []
    for pair in pairs:
        predicted = {"output change": measured[pair.name(study)]["output change"]}
        predicted |= {name: values[pair.site][pair.head] for name, values in by_change[pair.change].items()}
        for label, scores in others.items():
            site = next(site for site in scores.sites if site.name == pair.site)
            value = float(scores.values[site.name][scores.scored(site).index(pair.head)])
            predicted[label] = value if scores.large_is_important else -value
        order = [*(name for name in BY_CHANGE if name in predicted), *others]
        whole = {name: predicted[name] for name in order}
        found.append(Pair(pair.site, pair.head, pair.change, measured[pair.name(study)]["rise"], whole))
    loss = measured[pairs[0].name(study)]["loss"]
    return Predicted(loss, tuple(found), agreements(found, changes))


def choose_pairs(chosen: Mapping[Site, Sequence[int]], study: Heads) -> list[Pair]:
    """Pairs of heads and changes, about as many of each change, in the order of the model so that layers are shared."""
    generator = random.Random(0)
    found: list[tuple[int, Pair]] = []
    share = -(-study.pairs // len(study.changes))
    for change in study.changes:
        heads = [
            (place, Pair(site.name, head, change))
            for place, (site, own) in enumerate(chosen.items())
            for head in own
            if change != "window" or has_window(site)
        ]
        found += generator.sample(heads, min(share, len(heads)))
    return [pair for _, pair in sorted(found, key=lambda entry: entry[0])]


def has_window(site: Site) -> bool:
    """Whether queries and keys stand in one sequence whose order means something."""
    asked, answering = site.streams
    return asked == answering != "vision"


def other_scores(study: Heads) -> list[Candidate]:
    """Those that have one number for each head: the usual ones, and those of the study."""
    usual = [Candidate(name, SCORES[name]()) for name in OTHERS]
    own = [one for one in candidates(study) if "dataset" in one.scopes and one.label not in ("gradient", "fisher")]
    return list({one.label: one for one in (*own, *usual)}.values())


def change_edit(change: Change, scoring: Scoring, window: int) -> Edit:
    """The change of every head."""
    if change == "removed":
        return Gate(0.0, at="output")
    if change == "mean":
        return MeanOutput(mean_outputs(scoring.scored))
    if change == "uniform":
        return Uniform()
    longest = max(
        tensor.shape[1]
        for prepared in (scoring.scored, scoring.evaluated)
        for batch in prepared.batches
        for tensor in batch.inputs.values()
        if tensor.ndim >= 2
    )
    places = torch.arange(longest)
    return Mask(((places[:, None] - places).abs() > window)[None])


def mean_outputs(prepared: Prepared) -> dict[str, Tensor]:
    """The mean output of every head over the real tokens of the data, ``[H, D]`` by site name."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    outputs, device = Outputs(), device_of(prepared.model)
    with evaluation_mode(prepared.model), attach(prepared.model, stats=[outputs]):
        for batch in labelled_batches(prepared, labelled=False):
            prepared.model(**{name: tensor.to(device) for name, tensor in batch.items()})
            for name, tensor in outputs.tensors.items():
                real = outputs.real[name].expand(len(tensor), -1)
                total = (tensor.double() * real[:, None, :, None]).sum((0, 2))
                sums[name] = sums[name] + total if name in sums else total
                counts[name] = counts.get(name, 0) + int(real.sum())
    return {name: (total / max(counts[name], 1)).float() for name, total in sums.items()}


def _stored_predictions(
    bench: Bench, scoring: Scoring, change: Change, edit: Edit, study: Heads
) -> dict[str, dict[str, list[float]]]:
    """The predictions of :func:`predicted_rises` for every head, from the run or computed now and kept there."""
    run = bench.require_run()
    name = f"predicted/{kept_name(change, study)}"
    if run.fields(name) is None:
        select = Select(names=[site.name for site in scoring.chosen if change != "window" or has_window(site)])
        found = predicted_rises(scoring.scored, edit, select)
        plain = {score: {site: row.tolist() for site, row in rows.items()} for score, rows in found.items()}
        run.store(name, {}, fields=plain)
    fields: Any = run.fields(name)
    return fields


def predicted_rises(prepared: Prepared, edit: Edit, select: Select) -> dict[str, dict[str, Tensor]]:
    """What gradients say about a change of each head: score to site name to the means ``[H]`` over the examples.

    ``gradient`` is the first-order change of the loss, ``|gradient|`` the mean of its absolute value over the examples,
    ``fisher`` half the sum over tokens of squared products (:class:`~attrim.scores.fisher.Fisher`).
    """
    tapped = Tapped(prepared.model, labelled_batches(prepared, labelled=True), select)
    tap: ChangeTap = change_tap(edit)
    sums: dict[str, dict[str, Tensor]] = {"fisher": {}, "|gradient|": {}, "gradient": {}}
    examples = 0
    with tapped.attached(tap):
        for batch in tapped.batches():
            tap.clear()
            loss, places = example_losses(tapped.model, batch, "fisher", prepared.task)
            slopes = gradients(loss, tap.tensors)
            products = {
                name: torch.linalg.vecdot(slope, tap.differences[name].to(slope.dtype)).double()
                for name, slope in slopes.items()
            }
            first = tapped.filled({name: each.sum(-1) for name, each in products.items()}, len(places))
            second = tapped.filled({name: each.square().sum(-1) / 2 for name, each in products.items()}, len(places))
            weight = places[:, None].double().cpu()
            for name in first:
                parts = {"fisher": second[name] * weight, "|gradient|": first[name].abs(), "gradient": first[name]}
                for score, values in parts.items():
                    sums[score][name] = sums[score].get(name, 0) + values.sum(0)
            examples += len(places)
    return {score: {name: total / examples for name, total in rows.items()} for score, rows in sums.items()}


def measure_rises(
    prepared: Prepared, pairs: Sequence[Pair], edits: Mapping[Change, Edit]
) -> list[tuple[float, float, float]]:
    """Of every pair the rise of the mean loss, the mean distance that the head's output moves, and the unchanged loss.

    The layers before the changed one are computed once for all pairs.
    """
    model, device = prepared.model, device_of(prepared.model)
    prefix = Prefix(model, first_text(model, prepared.task, prepared.batches))
    selects = [Select(heads=[(pair.site, pair.head)]) for pair in pairs]
    changed = [dataclasses.replace(edits[pair.change], select=own) for pair, own in zip(pairs, selects, strict=True)]
    rises, moves, tokens = np.zeros(len(pairs)), np.zeros(len(pairs)), np.zeros(len(pairs))
    total, examples = 0.0, 0
    with evaluation_mode(model):
        for batch in labelled_batches(prepared, labelled=True):
            inputs = {name: tensor.to(device) for name, tensor in batch.items()}
            before = Outputs()
            with attach(model, stats=[before], strict=False), prefix.record():
                base, places = example_losses(model, inputs, "loss", prepared.task)
            total, examples = total + float(base.double()), examples + len(places)
            for number, (pair, edit, select) in enumerate(zip(pairs, changed, selects, strict=True)):
                after = Outputs()
                replayed = prefix.replay(prefix.unedited([edit]))
                with replayed, attach(model, [edit], [after], select, strict=False):
                    loss, _ = example_losses(model, inputs, "loss", prepared.task)
                rises[number] += float(loss.double() - base.double())
                moved = after.tensors[pair.site][:, 0] - before.tensors[pair.site][:, pair.head]
                real = before.real[pair.site].expand(len(moved), -1)
                moves[number] += float((moved.double().norm(dim=-1) * real).sum())
                tokens[number] += int(real.sum())
    shares = zip(rises / examples, moves / np.maximum(tokens, 1), strict=True)
    return [(float(rise), float(moved), total / examples) for rise, moved in shares]


def agreements(pairs: Sequence[Pair], changes: Sequence[str]) -> tuple[Agreement, ...]:
    """The rank correlation of every score, over all pairs and over those of each change."""
    found = []
    for score in pairs[0].predicted:
        for change in ("", SIZE, *(changes if len(changes) > 1 else ())):
            own = [pair for pair in pairs if change in ("", SIZE, pair.change)]
            predicted, rises = (np.array(values) for values in ([pair.predicted[score] for pair in own],
                                                                [pair.rise for pair in own]))  # fmt: skip
            if len(own) > 2:
                measured = np.abs(rises) if change == SIZE else rises
                heads = [(pair.site, pair.head) for pair in own]
                found.append(Agreement(score, change, len(own), rank_interval(predicted, measured, heads)))
    return tuple(found)


def rank_interval(
    predicted: NDArray[np.float64], measured: NDArray[np.float64], heads: Sequence[object] = ()
) -> Interval:
    """Spearman's correlation of numbers ``[P]``, with its bootstrap interval.

    Parameters
    ----------
    heads : of each pair. Heads are drawn, with all their pairs, because the changes of one head are not independent; by
        default every pair is of another head.
    """
    groups: dict[object, list[int]] = {}
    for place, head in enumerate(heads or range(len(measured))):
        groups.setdefault(head, []).append(place)
    members = [np.array(places) for places in groups.values()]
    generator = np.random.default_rng(0)
    by_length: dict[int, list[NDArray[np.intp]]] = {}  # one call for all of a length: ranks take most of the time
    for _ in range(RESAMPLES):
        index = np.concatenate([members[number] for number in generator.integers(len(members), size=len(members))])
        by_length.setdefault(len(index), []).append(index)
    drawn = np.concatenate([spearman(predicted[rows], measured[rows]) for rows in map(np.stack, by_length.values())])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(spearman(predicted, measured)), float(low), float(high), LEVEL)
