"""What a score is: a dataclass that gives a number for every head, and what its numbers mean."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor, nn

from ..attention.discover import find_sites
from ..core import record
from ..core.cells import Cell
from ..core.registry import SCORES
from ..core.site import Select, Site, blocks_of
from ..core.text import check_fields
from ..errors import ArtefactError, AttrimError, DataError, ParameterError, SelectionError, ShapeError, shorten
from ..runs.artefact import UNFIT, Artefact

if TYPE_CHECKING:
    from ..tasks.base import Task

register = SCORES.register
STORE = Artefact("scores", source="a folder of attrim score", remedy="compute them again")

Target = Literal["predicted", "label"] | int
"""Which output of the model is explained: the one it predicts, that of the label, or the one of this number."""
Reduction = Literal["sum", "mean"]
"""How the numbers of the examples become one."""
Scope = Literal["dataset", "example"]
"""One number for each head over all examples, or one for each example."""
Unit = Literal["head", "site", "block"]
"""What gets a number: each head, each attention computation, or each layer with all its attention."""


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """What a score may compute from; each one says in ``needs`` what it cannot do without.

    Attributes
    ----------
    model : any model whose sites are found; with a head, where a score needs the loss.
    batches : dicts of tensors for ``model(**batch)``; with labels, where a score needs the loss.
    constants : what heads would be replaced by, as :class:`~attrim.edits.constant.Constant` takes it, or an edit.
    task, tokenizer : training data, for scores that train; a task with a loss of its own gives the loss of others.
    folder : for checkpoints of scores that train, to resume after a kill.
    progress : show a progress bar, where it takes long.
    select : the heads to score; the others stay as they are and get no number.
    """

    model: nn.Module
    batches: Iterable[Mapping[str, Any]] = ()
    constants: Any = None
    task: Task | None = None
    tokenizer: Any = None
    folder: Path | None = None
    progress: bool = False
    select: Select = field(default_factory=Select)


NEEDS = {
    "batches": "batches, dicts of tensors for the model",
    "constants": "constants, what heads would be replaced by (a Mean stat, tensors by site name, or an edit)",
    "task": "a task with training data",
    "tokenizer": "the tokenizer of the model",
}
"""What a score can need, in words."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Base of all scores: the fields are the parameters, :meth:`compute` does the work.

    The class variables say what a score can do. A parameter that it cannot have is refused, never ignored; None stands
    for the first of what it can have.

    Parameters
    ----------
    target : which output is explained (:data:`Target`).
    reduction : how the numbers of the examples become one.
    scope : whether they become one at all.
    unit : what gets a number.
    """

    registered_name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"batches"})
    targets: ClassVar[tuple[Literal["predicted", "label", "id"], ...]] = ()
    reductions: ClassVar[tuple[Reduction, ...]] = ("mean",)
    scopes: ClassVar[tuple[Scope, ...]] = ("dataset",)
    units: ClassVar[tuple[Unit, ...]] = ("head",)
    large_is_important: ClassVar[bool] = True

    target: Target | None = None
    reduction: Reduction | None = None
    scope: Scope | None = None
    unit: Unit | None = None

    def __post_init__(self) -> None:
        for name, known in self.choices().items():
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, known[0] if known else None)
            elif not isinstance(given, str) or given not in known:
                if "id" in known and isinstance(given, int):
                    continue
                way_out = f"it can have {', '.join(known)}" if known else "leave it out"
                raise ParameterError(
                    f"The score {self.registered_name!r} cannot have {name}={shorten(given)}; {way_out}."
                )
        check_fields(self, "score", but=self.choices())

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """What target, reduction, scope and unit can be, the usual one first."""
        return {"target": cls.targets, "reduction": cls.reductions, "scope": cls.scopes, "unit": cls.units}

    def compute(self, given: ScoreInputs) -> Scores:
        """Score the heads, and return :meth:`scores` of the values; all that :attr:`needs` names is there."""
        raise NotImplementedError

    def __call__(
        self,
        model: nn.Module,
        batches: Iterable[Mapping[str, Any]] | None = None,
        constants: Any = None,
        *,
        task: Task | None = None,
        tokenizer: Any = None,
        folder: Path | None = None,
        progress: bool = False,
        select: Select | None = None,
    ) -> Scores:
        """Score the heads of a model; the parameters are those of :class:`ScoreInputs`."""
        optional = {"batches": batches, "constants": constants, "task": task, "tokenizer": tokenizer}
        for name, value in optional.items():
            if value is None and name in self.needs:
                raise ParameterError(f"The score {self.registered_name!r} needs {NEEDS[name]}; give {name}=... .")
        batches = () if batches is None else batches
        given = ScoreInputs(model, batches, constants, task, tokenizer, folder, progress, select or Select())
        found = self.compute(given)
        return found if given.select == Select() else found.only(given.select.resolve(find_sites(model)))

    def scores(
        self,
        values: Mapping[str, Tensor],
        sites: Sequence[Site] | Mapping[Site, Sequence[int]],
        facts: Mapping[str, float] | None = None,
    ) -> Scores:
        """What :meth:`compute` returns: the values, shared by the heads of a site or block where that is the unit.

        Parameters
        ----------
        values : by site name ``[H]``, or ``[N, H]`` for each of N examples.
        sites : those of the values; with the numbers of the heads that they are of, where these are not all.
        facts : what was found besides (:class:`Scores`).
        """
        heads = {site.name: tuple(own) for site, own in sites.items()} if isinstance(sites, Mapping) else None
        shared = share(values, units_of(list(sites), self.unit or "head"))
        return Scores(
            shared, list(sites), self.registered_name, self.options(), self.large_is_important, heads, facts or {}
        )

    def reduce(self, parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The values of all examples as scope and reduction ask for: ``[H]`` or ``[N, H]`` by site name.

        Parameters
        ----------
        parts : of each batch the values of its examples, ``[B, H]`` by site name.
        """
        if self.scope == "example":
            kept: dict[str, list[Tensor]] = {}
            for part in parts:
                for name, values in part.items():
                    kept.setdefault(name, []).append(values)
            return {name: torch.cat(tensors) for name, tensors in kept.items()}
        sums: dict[str, Tensor] = {}
        examples = 0
        for part in parts:
            for name, values in part.items():
                sums[name] = sums[name] + values.sum(0) if name in sums else values.sum(0)
            examples += len(next(iter(part.values())))
        return {name: total if self.reduction == "sum" else total / examples for name, total in sums.items()}

    def options(self) -> dict[str, Any]:
        """The parameters that have a value, as JSON values."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        plain: dict[str, Any] = json.loads(json.dumps(given))
        return plain

    def with_seed(self, seed: int) -> Self:
        """The same score with another seed; the score itself, where nothing is drawn."""
        known = {item.name for item in dataclasses.fields(self)}
        return dataclasses.replace(self, seed=seed) if "seed" in known else self  # type: ignore[call-arg]


def units_of(sites: Sequence[Site], unit: Unit) -> list[list[Site]]:
    """The sites that get a number together, in the order of the model; for heads, none do."""
    if unit == "head":
        return []
    if unit == "site":
        return [[site] for site in sites]
    together: dict[str, list[Site]] = {}
    for site, block in blocks_of(sites).items():
        together.setdefault(block, []).append(site)
    return list(together.values())


def share(values: Mapping[str, Tensor], units: Sequence[Sequence[Site]]) -> dict[str, Tensor]:
    """Every head of a unit gets the mean of the heads of the unit, ``[..., H]`` by site name."""
    shared = dict(values)
    for unit in units:
        mean = torch.cat([values[site.name] for site in unit], dim=-1).mean(-1, keepdim=True)
        shared |= {site.name: mean.expand_as(values[site.name]).clone() for site in unit}
    return shared


class Order(list[Any], Cell):
    """The heads in the order of their scores: a list of pairs that a notebook shows as a matrix of places."""

    def __init__(self, heads: Iterable[Any], scores: Scores) -> None:
        super().__init__(heads)
        self.scores = scores


@dataclass(frozen=True, eq=False)
class Scores(Cell):
    """One number for every head of some sites, or one for every head and example.

    Parameters
    ----------
    values : site name to ``[H]``, or to ``[N, H]`` for N examples; sites may have different numbers of heads, and H is
        the number of those that have a score. Kept in float64.
    sites : the sites, in the order of the model.
    name : which score it is, for tables and figures.
    options : the parameters it was computed with, as JSON values.
    large_is_important : whether the heads with large numbers are the ones that matter.
    heads : site name to the numbers of the heads that have a score, in the order of the values; by default all.
    facts : what was found besides, such as how much relevance was lost on the way.
    """

    values: Mapping[str, Tensor]
    sites: Sequence[Site]
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    large_is_important: bool = True
    heads: Mapping[str, Sequence[int]] | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        if set(names) != set(self.values) or len(set(names)) != len(names):
            raise SelectionError(
                f"The scores are for {len(self.values)} sites and the list has {len(names)}; give values for each site."
            )
        values = {name: torch.as_tensor(self.values[name]).detach().double().cpu() for name in names}
        heads = {site.name: tuple((self.heads or {}).get(site.name, range(site.heads))) for site in self.sites}
        leading = {tuple(tensor.shape[:-1]) for tensor in values.values()}
        for site in self.sites:
            own = heads[site.name]
            if len({*own} & {*range(site.heads)}) < len(own) or not own:
                raise SelectionError(
                    f"The site {site.name!r} has {site.heads} heads, so it cannot have scores for {own}."
                )
            if values[site.name].ndim not in (1, 2) or values[site.name].shape[-1] != len(own) or len(leading) > 1:
                raise ShapeError(
                    f"The scores of site {site.name!r} must have the shape [{len(own)}], one for each head, or the "
                    f"same number of examples before it at every site, not {list(values[site.name].shape)}."
                )
            if not bool(torch.isfinite(values[site.name]).all()):
                raise DataError(f"A score of site {site.name!r} is NaN or infinite, so that heads cannot be ordered.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "sites", tuple(self.sites))
        object.__setattr__(self, "heads", heads)

    @property
    def scope(self) -> Scope:
        """Whether there is one number for each head, or one for each head and example."""
        return "example" if any(tensor.ndim == 2 for tensor in self.values.values()) else "dataset"

    def of_example(self, number: int) -> Scores:
        """The scores of one example."""
        self._require("example")
        values = {name: tensor[number] for name, tensor in self.values.items()}
        return dataclasses.replace(self, values=values, options={**self.options, "scope": "dataset"})

    def over_examples(self) -> Scores:
        """The scores over all examples, reduced as the options say (by default their mean)."""
        self._require("example")
        reduction = self.options.get("reduction", "mean")
        values = {name: tensor.sum(0) if reduction == "sum" else tensor.mean(0) for name, tensor in self.values.items()}
        return dataclasses.replace(self, values=values, options={**self.options, "scope": "dataset"})

    def _require(self, scope: Scope) -> None:
        if self.scope != scope:
            way_out = (
                "choose one by of_example(number), or reduce them by over_examples()"
                if self.scope == "example"
                else "compute them with scope='example'"
            )
            raise SelectionError(
                f"The scores {self.name!r} are for the scope {self.scope!r}, not {scope!r}; {way_out}."
            )

    @overload
    def order(self, by: Literal["site"] = "site") -> list[tuple[str, int]]: ...
    @overload
    def order(self, by: Literal["layer"]) -> list[tuple[int, int]]: ...
    def order(self, by: Literal["site", "layer"] = "site") -> list[Any]:
        """All heads, the least important one, which is replaced first, at the front; equal ones by layer, then head.

        Parameters
        ----------
        by : pairs of ``site`` name and head, which fit ``Constant(heads=...)`` for any model; or of ``layer`` and head,
            which are only clear when no two sites have the same layer.
        """
        self._require("dataset")
        if by == "layer" and len({site.layer for site in self.sites}) < len(self.sites):
            raise SelectionError(
                "Several sites have the same layer, so that layer and head do not name a head; use order(by='site')."
            )
        sign = 1 if self.large_is_important else -1
        places = sorted(
            (sign * value, site.layer, number, head)
            for number, site in enumerate(self.sites)
            for head, value in zip(self.scored(site), self.values[site.name].tolist(), strict=True)
        )
        heads = ((self.sites[number].name if by == "site" else layer, head) for _, layer, number, head in places)
        return Order(heads, self)

    def units(self) -> list[list[tuple[str, int]]]:
        """The heads of :meth:`order` in groups that share a number: single heads, all of a site or all of a block."""
        order = self.order()
        groups = units_of(self.sites, self.options.get("unit", "head"))
        if not groups:
            return [[head] for head in order]
        number = {site.name: place for place, group in enumerate(groups) for site in group}
        together: dict[int, list[tuple[str, int]]] = {}
        for head in order:
            together.setdefault(number[head[0]], []).append(head)
        return list(together.values())

    def ranks(self) -> Tensor:
        """Float64 ``[sites, heads]``: the place of every head in the order, from 1; NaN where there is no head."""
        rank = {head: place for place, head in enumerate(self.order(), start=1)}
        rows = {site.name: torch.tensor([float(rank[site.name, head]) for head in self.scored(site)])
                for site in self.sites}  # fmt: skip
        return self._table(rows)

    def only(self, chosen: Mapping[Site, Sequence[int]]) -> Scores:
        """The scores of some heads, as ``Select.resolve`` gives them; sites that have none of them are left out."""
        kept = {site: [head for head in self.scored(site) if head in chosen.get(site, ())] for site in self.sites}
        kept = {site: heads for site, heads in kept.items() if heads}
        places = {site: [self.scored(site).index(head) for head in heads] for site, heads in kept.items()}
        values = {site.name: self.values[site.name][..., own] for site, own in places.items()}
        heads = {site.name: own for site, own in kept.items()}
        return dataclasses.replace(self, values=values, sites=list(kept), heads=heads)

    def scored(self, site: Site) -> tuple[int, ...]:
        """The heads of a site that have a score."""
        assert self.heads is not None
        return tuple(self.heads[site.name])

    def table(self) -> Tensor:
        """Float64 ``[sites, heads]``, or ``[N, sites, heads]`` for N examples; NaN where there is no head or score."""
        return self._table(self.values)

    def _table(self, rows: Mapping[str, Tensor]) -> Tensor:
        width = max(site.heads for site in self.sites)
        leading = next(iter(rows.values())).shape[:-1]
        table = torch.full((*leading, len(self.sites), width), torch.nan, dtype=torch.float64)
        for number, site in enumerate(self.sites):
            table[..., number, list(self.scored(site))] = rows[site.name].double()
        return table

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "name": self.name,
            "sites": [dataclasses.asdict(site) for site in self.sites],
            "values": {name: numbers.tolist() for name, numbers in self.values.items()},
            "options": dict(self.options),
            "large_is_important": self.large_is_important,
            "heads": {site.name: list(self.scored(site)) for site in self.sites},
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Scores:
        """The inverse of :meth:`to_json`."""
        try:
            known: _Kept = record.load(_Kept, dict(fields), "saved scores")
            return known.scores({name: torch.tensor(row, dtype=torch.float64) for name, row in known.values.items()})
        except (TypeError, ValueError, AttrimError) as error:
            raise ArtefactError(f"These are not saved scores ({error}); compute them again.") from error

    def save(self, folder: str | Path) -> Path:
        """Write a JSON index, and a safetensors file with the values, of many examples too, to ``folder``."""
        entries = {name: value for name, value in self.to_json().items() if name != "values"}
        return STORE.save(folder, entries, self.values)

    @classmethod
    def load(cls, folder: str | Path) -> Scores:
        """The inverse of :meth:`save`."""
        index, values = STORE.read(folder)
        fields = {item.name: index.get(item.name) for item in dataclasses.fields(_Kept)}
        try:
            known: _Kept = record.load(_Kept, {**fields, "values": {}}, "saved scores")
            return known.scores(values)
        except UNFIT as error:
            raise STORE.damaged(folder, str(error)) from error


@dataclass(frozen=True)
class _Kept:
    """What :meth:`Scores.to_json` gives."""

    name: str
    sites: list[Site]
    values: dict[str, list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    large_is_important: bool = True
    heads: dict[str, list[int]] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def scores(self, values: Mapping[str, Tensor]) -> Scores:
        """The scores with these values."""
        return Scores(values, self.sites, self.name, self.options, self.large_is_important, self.heads, self.facts)
