"""How good maps are: whether they point at what is relevant, and whether the answer goes with what they call important.

Pointing game: the region with the most relevance is one of those that are known to be relevant (Zhang et al. 2016,
https://arxiv.org/abs/1608.00507). Deletion and insertion: the most relevant tokens, regions or patches are removed from
the input first, or inserted into an empty one first; the area under the curve of the answer is small, or large, where
the map is right (Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import record
from ..core.charts import Axis, Chart, Column, Curve, Reference, Series, Table
from ..errors import ArtefactError, DataError, ParameterError
from ..runs.result import Columns, Interval, paired_bootstrap
from ..runs.run import Run
from .explainer import Explainer, Maps
from .readout import Answered
from .removal import removable, without

Floats = NDArray[np.float64]
Measured = Literal["probability", "logit"]
STEPS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """What is measured about maps.

    Parameters
    ----------
    part : what points and is removed: ``regions``, ``patches``, ``source`` or ``tokens``; empty takes the first of
        these that the model has.
    measure : what of the explained answer is followed while the input changes.
    steps : shares of the part that are removed or inserted.
    blank : number of the token that stands for a removed one.
    special : numbers of tokens that are never removed.
    seed : of the random order that maps are compared with.
    """

    part: str = ""
    measure: Measured = "probability"
    steps: tuple[float, ...] = STEPS
    blank: int | None = None
    special: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.steps, self.steps[1:], strict=False))
        if len(self.steps) < 2 or not rising or (self.steps[0], self.steps[-1]) != (0, 1):
            raise ParameterError(f"steps must rise from 0 to 1, not {', '.join(map(str, self.steps))}.")

    @classmethod
    def of(cls, tokenizer: Any, **options: Any) -> QualityOptions:
        """Options with the tokens of a tokenizer: what stands for a removed one, and those that are never removed."""
        names = ("mask_token_id", "unk_token_id", "pad_token_id", "eos_token_id")
        blank = next((number for name in names if (number := getattr(tokenizer, name, None)) is not None), None)
        special = set(getattr(tokenizer, "all_special_ids", ())) - {getattr(tokenizer, "unk_token_id", None)}
        return cls(blank=blank, special=tuple(sorted(special)), **options)

    def part_of(self, maps: Maps) -> str:
        """The part that is meant."""
        if self.part:
            if self.part not in maps.relevance:
                raise ParameterError(f"The model has no part {self.part!r}, only {', '.join(maps.relevance)}.")
            return self.part
        return next(name for name in ("regions", "patches", "source", "tokens") if name in maps.relevance)


@dataclass(frozen=True, eq=False)
class Quality:
    """How good the maps of N examples are, at V levels of heads that are left out.

    Attributes
    ----------
    levels : shares of heads that are left out.
    index : int64 ``[N]``, which examples.
    hit : ``[V, N]``, 1 where the map points at something relevant, 0 where not or where the map is empty; NaN where it
        is not known what is relevant.
    chance : ``[N]``, share of relevant regions: how often a random one is; NaN where it is not known.
    empty : ``[V, N]``, 1 for maps that are zero everywhere or not numbers.
    deletion, insertion : ``[V, N, S]``, the answer after each step.
    random_deletion, random_insertion : ``[N, S]``, the same in a random order.
    predicted : int64 ``[V, N]``, what the model answers without the heads (of several places, the first that counts).
    steps : ``[S]``.
    part, measure : see :class:`QualityOptions`.
    """

    levels: tuple[float, ...]
    index: NDArray[np.int64]
    hit: Floats
    chance: Floats
    empty: Floats
    deletion: Floats
    insertion: Floats
    random_deletion: Floats
    random_insertion: Floats
    predicted: NDArray[np.int64]
    steps: Floats
    part: str
    measure: Measured = "probability"
    interval_level: float = field(default=0.95)

    @classmethod
    def join(cls, parts: Sequence[Quality]) -> Quality:
        """The quality of several batches, in the order of the examples."""
        if not parts:
            raise DataError("There are no examples whose maps could be measured; check the data or raise the limit.")
        first = parts[0]
        order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=axis).take(order, axis=axis)
            for name, axis in AXES.items()
        }
        return cls(levels=first.levels, steps=first.steps, part=first.part, measure=first.measure, **joined)

    def area(self, curve: Floats) -> Floats:
        """The area ``[...]`` under curves ``[..., S]``."""
        return np.asarray(np.trapezoid(curve, self.steps, axis=-1))

    def numbers(self) -> dict[str, Floats]:
        """The number of each example and level, ``[V, N]``: hit, deletion and insertion (areas) and empty."""
        return {
            "pointing": self.hit,
            "deletion": self.area(self.deletion),
            "insertion": self.area(self.insertion),
            "empty": self.empty,
        }

    def baselines(self) -> dict[str, Floats]:
        """What a map that says nothing would get for each example, ``[N]``: chance, and a random order."""
        return {
            "pointing": self.chance,
            "deletion": self.area(self.random_deletion),
            "insertion": self.area(self.random_insertion),
        }

    def interval(self, name: str, level: int | None = None) -> Interval | None:
        """The mean over the examples of one number, with its bootstrap interval; None where no example has it.

        Parameters
        ----------
        level : number of the level; None for the baseline.
        """
        values = self.baselines()[name] if level is None else self.numbers()[name][level]
        return mean_interval(values, self.interval_level)

    def change(self, name: str, level: int) -> Interval | None:
        """The mean difference of a level from the first one, with its paired bootstrap interval."""
        first, other = (self.numbers()[name][number] for number in (0, level))
        return mean_interval(other - first, self.interval_level)

    def table(self) -> Table:
        """One row for each level, and one for what a map that says nothing gets."""
        rows = []
        for number, level in enumerate(self.levels):
            cells = [_text(self.interval(name, number), name) for name in ("pointing", "deletion", "insertion")]
            rows.append([f"{100 * level:.0f} %", *cells, float(self.empty[number].mean())])
        random = [_text(self.interval(name), name) for name in ("pointing", "deletion", "insertion")]
        rows.append(["random", *random, None])
        known = int((~np.isnan(self.hit[0])).sum())
        return Table(
            "quality",
            f"Maps of {self.part}",
            columns=[
                Column("heads left out"),
                Column("pointing (%)"),
                Column(f"deletion ({self.measure})"),
                Column(f"insertion ({self.measure})"),
                Column("empty maps", "percent", 1),
            ],
            rows=rows,
            sections=[len(self.levels)],
            caption=f"Mean over {len(self.index)} examples with 95 % bootstrap interval; {known} with known relevant "
            f"{self.part}. Deletion: smaller is better; insertion: larger is better.",
        )

    def charts(self) -> list[Chart]:
        """Curves of deletion and insertion, and pointing by level."""
        charts: list[Chart] = []
        for name in ("deletion", "insertion"):
            curves, random = getattr(self, name), getattr(self, f"random_{name}")
            series = [
                Series(f"{100 * level:.0f} % left out", self.steps, curve.mean(0), look="ordered")
                for level, curve in zip(self.levels, curves, strict=True)
            ]
            series.append(Series("random order", self.steps, random.mean(0), look="total"))
            verb = "removed" if name == "deletion" else "inserted"
            x, y = Axis(f"share of {self.part} {verb}"), Axis(f"{self.measure} of the answer")
            charts.append(Curve(name, series=series, x=x, y=y, legend="heads"))
        intervals = [self.interval("pointing", number) for number in range(len(self.levels))]
        known = [(level, found) for level, found in zip(self.levels, intervals, strict=True) if found is not None]
        chance = self.interval("pointing")
        if known and chance is not None:
            x, y, low, high = 100 * np.array([[level, found.value, found.low, found.high] for level, found in known]).T
            charts.append(
                Curve(
                    "pointing",
                    series=[Series("", x, y, low, high)],
                    x=Axis("heads left out (%)"),
                    y=Axis("top region relevant (%)", least=0, most=100),
                    references=[Reference(100 * chance.value, "chance")],
                )
            )
        return charts

    def summary(self) -> dict[str, Any]:
        """Means and intervals of every level, as JSON values."""
        names = ("pointing", "deletion", "insertion")
        levels = [
            {"level": level, "empty": float(self.empty[number].mean()),
             **{name: _plain(self.interval(name, number)) for name in names}}
            for number, level in enumerate(self.levels)
        ]  # fmt: skip
        random = {name: _plain(self.interval(name)) for name in names}
        about = {"part": self.part, "measure": self.measure, "examples": len(self.index)}
        return {**about, "levels": levels, "random": random}

    def store(self, run: Run, setting: str) -> None:
        """Keep everything in a run."""
        arrays = {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in (*AXES, "steps")}
        fields = {"levels": list(self.levels), "part": self.part, "measure": self.measure}
        run.store(setting, {}, fields=fields, arrays=arrays)

    @classmethod
    def load(cls, run: Run, setting: str) -> Quality | None:
        """The inverse of :meth:`store`; None when the run does not have it yet."""
        fields = run.fields(setting)
        if fields is None:
            return None
        known: _QualityFields = record.load(_QualityFields, fields, f"quality of maps {setting!r} in {run.folder}")
        arrays = {name: tensor.numpy() for name, tensor in run.load_arrays(setting).items()}
        if set(arrays) != {*AXES, "steps"}:
            raise ArtefactError(f"The quality of maps {setting!r} in {run.folder} is not complete; begin it again.")
        return cls(levels=tuple(known.levels), part=known.part, measure=known.measure, **arrays)


AXES = {
    "index": 0,
    "hit": 1,
    "chance": 0,
    "empty": 1,
    "deletion": 1,
    "insertion": 1,
    "random_deletion": 0,
    "random_insertion": 0,
    "predicted": 1,
}
"""On which axis each field of :class:`Quality` has the examples."""


@dataclass(frozen=True)
class _QualityFields:
    """What :meth:`Quality.store` keeps beside arrays."""

    levels: list[float]
    part: str
    measure: Measured


class Examiner:
    """Measures maps batch by batch.

    Parameters
    ----------
    explainer : makes the maps.
    levels : shares of heads that are left out.
    """

    def __init__(
        self, explainer: Explainer, levels: Sequence[float] = (0.0,), options: QualityOptions | None = None
    ) -> None:
        self.explainer, self.levels, self.options = explainer, tuple(levels), options or QualityOptions()

    def __call__(
        self, batch: Mapping[str, Tensor], index: Sequence[int] | NDArray[np.int64], relevant: Tensor | None = None
    ) -> Quality:
        """The quality of the maps of a batch.

        Parameters
        ----------
        batch : dict of tensors for the model, and labels, where the target is the label.
        index : ``[B]``, numbers of the examples; they also decide the random order.
        relevant : ``[B, L]``, 1 for what is known to be relevant, of the part; anything else is not.
        """
        return self.measure(batch, self.explainer(batch, self.levels), index, relevant)

    def measure(
        self,
        batch: Mapping[str, Tensor],
        maps: Maps,
        index: Sequence[int] | NDArray[np.int64],
        relevant: Tensor | None = None,
    ) -> Quality:
        """The quality of maps that were made before."""
        name = self.options.part_of(maps)
        scores, real = maps.relevance[name], maps.real[name]
        hit, chance = pointing(scores, real, relevant)
        empty = maps.empty(name)
        free = removable(batch, name, real, self.options.special)
        drawn = torch.stack([_random(self.options.seed, int(number), scores.shape[-1]) for number in index])
        orders = torch.cat([scores.nan_to_num(nan=-1.0), drawn[None]])
        curves = [self._curves(batch, maps, name, order, free) for order in orders]
        deletion, insertion = (np.stack([curve[side] for curve in curves]) for side in (0, 1))
        first = maps.counted.int().argmax(1)
        predicted = maps.predicted.gather(2, first.expand(len(maps.levels), -1)[..., None])[..., 0]
        return Quality(
            levels=maps.levels,
            index=np.asarray(index, dtype=np.int64),
            hit=np.where(empty.numpy() & ~np.isnan(hit), 0.0, hit),
            chance=chance,
            empty=empty.double().numpy(),
            deletion=deletion[:-1],
            insertion=insertion[:-1],
            random_deletion=deletion[-1],
            random_insertion=insertion[-1],
            predicted=predicted.numpy(),
            steps=np.array(self.options.steps),
            part=name,
            measure=self.options.measure,
        )

    def _curves(
        self, batch: Mapping[str, Tensor], maps: Maps, name: str, scores: Tensor, free: Tensor
    ) -> tuple[Floats, Floats]:
        """The answer ``[B, S]`` when the highest scores ``[B, L]`` are removed first, and when they come back first."""
        ranks = scores.masked_fill(~free, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        number = free.sum(1, keepdim=True)
        columns: tuple[list[Tensor], list[Tensor]] = ([], [])
        for step in self.options.steps:
            chosen = (ranks < (step * number).round()) & free
            for column, gone in zip(columns, (chosen, free & ~chosen), strict=True):
                changed = batch
                if bool(gone.any()):
                    changed = without(batch, name, maps.parts[name], gone, self.options.blank)
                column.append(self._followed(self.explainer.answer(changed, maps.answers)))
        deletion, insertion = (torch.stack(column, dim=1).numpy() for column in columns)
        return deletion, insertion

    def _followed(self, found: Answered) -> Tensor:
        """What of the answer is followed, ``[B]``."""
        if self.options.measure == "logit":
            return found.number().double().cpu()
        if found.places.logits.shape[-1] == 1:
            raise ParameterError("The model has one output, which has no probability; give measure='logit'.")
        return found.probability().double().cpu()


def pointing(scores: Tensor, real: Tensor, relevant: Tensor | None) -> tuple[Floats, Floats]:
    """Whether the highest score is one of what is relevant, ``[V, B]``, and how often a random one is, ``[B]``.

    Parameters
    ----------
    scores : ``[V, B, L]``.
    real : bool ``[B, L]``.
    relevant : ``[B, L]``, 1 for what is relevant; NaN is the result where nothing is.
    """
    if relevant is None:
        return np.full(scores.shape[:2], np.nan), np.full(scores.shape[1], np.nan)
    if relevant.shape != real.shape:
        raise DataError(f"What is relevant has the shape {list(relevant.shape)}, but the map {list(real.shape)}.")
    right = (relevant.cpu() == 1) & real
    top = scores.masked_fill(~real, -torch.inf).nan_to_num(nan=-torch.inf).argmax(-1)
    hit = right.expand(len(scores), -1, -1).gather(2, top[..., None])[..., 0].double()
    known = right.any(1)
    chance = right.sum(1) / real.sum(1).clamp(min=1)
    return hit.where(known, torch.nan).numpy(), chance.double().where(known, torch.nan).numpy()


def mean_interval(values: Floats, level: float = 0.95) -> Interval | None:
    """The mean of values ``[N]``, without those that are NaN, with its bootstrap interval; None where there is none."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    mean = lambda columns: np.asarray(columns["value"]).mean(-1)
    zeros: Columns = {"value": np.zeros_like(values)}
    return paired_bootstrap(mean, zeros, {"value": values}, level=level)


def _random(seed: int, number: int, length: int) -> Tensor:
    # Numbers are drawn one by one, so that padding, which comes last, changes nothing.
    return torch.from_numpy(np.random.default_rng([seed, number]).random(length))


def _text(found: Interval | None, name: str) -> str:
    if found is None:
        return "-"
    factor, digits = (100, 1) if name == "pointing" else (1, 3)
    value, low, high = (f"{factor * one:.{digits}f}" for one in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _plain(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else found.to_json()
