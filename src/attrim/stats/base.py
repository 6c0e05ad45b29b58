"""What a stat is: an accumulator that watches attention calls and can be merged and saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from ..core.call import Call, not_finite
from ..core.cells import Cell
from ..core.charts import Chart, Table
from ..core.record import load as load_record
from ..core.registry import STATS
from ..core.site import Site
from ..core.text import check_fields
from ..errors import ArtefactError, DataError, SelectionError
from ..kernels.blocks import unrepeated
from ..kernels.feed import Buffers, Extent
from .integers import grown, normalise_wide

register = STATS.register


class Stat(Cell):
    """Base of all stats: ``watch`` adds one call up, ``merge`` adds another stat of the same kind.

    A stat keeps what it counts for each site by the site's name. It sees every call after all edits, and must
    give the same integers for any split of the examples into batches and any order of them.
    """

    registered_name: ClassVar[str]
    moment: str = "weights"  # or query, key, value, scores, output, layer_input, layer_output

    def __post_init__(self) -> None:
        """Check the types of the options; a stat with checks of its own calls this first."""
        check_fields(self, "stat")

    def options(self) -> dict[str, Any]:
        """The options that this stat was made with: the dataclass fields that can be given."""
        made: Any = self  # a stat need not be a dataclass, and has no options then
        fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
        return {item.name: getattr(self, item.name) for item in fields if item.init}

    def begin(self, batch: Mapping[str, Any]) -> None:
        """A batch is about to go through the model (:func:`attrim.measure` says so); most stats need not know it."""

    def prepare(self, site: Site, heads: tuple[int, ...]) -> None:
        """These heads of a site will be watched when it fires: take the memory now that its record needs.

        What lasts is best taken before the model runs. Among the short-lived activations of a forward pass it would
        keep freed memory around it from being used again: 5 % more peak memory for BERT-base.
        """

    def watch(self, tensor: Tensor, call: Call) -> None:
        """Add one call: ``tensor`` is ``[B, H, Q, K]``, or ``[B, H, L, D]`` at moments other than scores and weights.

        Hidden states have one head; ``call.valid`` then has a last axis of one, the real tokens.
        """
        raise NotImplementedError

    def compiles(self, call: Call) -> type[Buffers] | None:
        """Which buffers of the compiled pass hold all that this stat keeps of a call; None leaves it to ``watch``."""
        return None

    def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> Buffers:
        """The buffers that :meth:`compiles` names, which the compiled pass then feeds in place of ``watch``.

        Parameters
        ----------
        heads : the heads of the call's site that are watched.
        extent : what the call needs room for.
        """
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "watch" in vars(cls) and "compiles" not in vars(cls):
            cls.compiles = Stat.compiles  # type: ignore[method-assign]  # what the parent's buffers hold is not enough

    def update(self, weights: Tensor, mask: Tensor | None = None, site: Site | None = None) -> None:
        """Add a plain tensor ``[B, H, Q, K]`` from no model; ``mask`` as in :meth:`attrim.core.call.Call.plain`."""
        self.watch(weights, Call.plain(weights, mask, site))

    def merge(self, other: Self) -> Self:
        """Add what ``other`` counted to this stat and return it; refuses what does not fit."""
        raise NotImplementedError

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything counted so far, as named tensors (for safetensors) and JSON values."""
        raise NotImplementedError

    @classmethod
    def load(cls, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`state`."""
        raise NotImplementedError

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """What was counted as tables; ``tokenizer`` gives tokens their names where a stat is about tokens."""
        del tokenizer
        return []

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """What was counted as charts; ``tokenizer`` as in :meth:`tables`."""
        del tokenizer
        return []

    def summary(self) -> dict[str, Any]:
        """The numbers that are small enough to print, as JSON values."""
        return {}


Rule = Literal["add", "wide", "maximum", "minimum"]


@dataclass
class SiteRecord:
    """What a stat keeps of one site: row ``i`` of every tensor belongs to head ``heads[i]``."""

    site: Site
    heads: tuple[int, ...]
    tensors: dict[str, Tensor]


@dataclass(eq=False)
class SiteStat(Stat):
    """A stat that keeps named tensors for each site; subclasses write ``watch`` and what can be read from the tensors.

    The dataclass fields of a subclass are its options; two stats merge only when their options are equal.

    Attributes
    ----------
    rules : how a tensor merges, by its name; names that are not in it are added up.
    free : options that may differ between stats that merge.
    """

    rules: ClassVar[Mapping[str, Rule]] = {}
    free: ClassVar[frozenset[str]] = frozenset()
    records: dict[str, SiteRecord] = field(default_factory=dict, init=False, repr=False)
    _prepared: dict[str, SiteRecord] = field(default_factory=dict, init=False, repr=False)

    @property
    def sites(self) -> list[Site]:
        """The watched sites, in the order of the rows of every table."""
        return [record.site for record in self.records.values()]

    def record(self, site: Site, heads: tuple[int, ...]) -> SiteRecord:
        """The record of a site, of which these heads are watched, made on the first call."""
        record = self.records.get(site.name)
        if record is None:
            if site.name not in self._prepared or self._prepared[site.name].heads != heads:
                self.prepare(site, heads)
            record = self.records[site.name] = self._prepared.pop(site.name)
        if record.heads != heads:
            raise SelectionError(
                f"{type(self).__name__} watched heads {record.heads} of {site.name!r} and now gets {heads}; "
                "use a new stat for another selection."
            )
        return record

    def prepare(self, site: Site, heads: tuple[int, ...]) -> None:
        """See :meth:`Stat.prepare`; a site that never fires gets no record."""
        if site.name not in self.records:
            with torch.inference_mode(False):  # tensors that are made in it could not be changed outside of it
                self._prepared[site.name] = SiteRecord(site, heads, self.empty(len(heads)))

    def of(self, site: Site | str) -> SiteRecord:
        """The record of a site, or an error that lists the sites that were watched."""
        name = site if isinstance(site, str) else site.name
        if name not in self.records:
            known = ", ".join(self.records) or "none"
            raise SelectionError(f"{type(self).__name__} did not watch site {name!r}; the watched sites are {known}.")
        return self.records[name]

    def empty(self, heads: int) -> dict[str, Tensor]:
        """The tensors of a site before its first call."""
        raise NotImplementedError

    def table(self, rows: Iterable[Tensor], missing: float = float("nan")) -> Tensor:
        """One tensor ``[heads watched, ...]`` a site to one table ``[sites, heads, ...]``.

        Heads that were not watched (or do not exist, where sites differ) get the number ``missing``.
        """
        rows = list(rows)
        if not rows:
            raise DataError(f"{type(self).__name__} has watched nothing yet; run attrim.measure first.")
        width = max(record.site.heads for record in self.records.values())
        table = torch.full((len(rows), width, *rows[0].shape[1:]), missing, dtype=rows[0].dtype)
        for index, (record, row) in enumerate(zip(self.records.values(), rows, strict=True)):
            table[index, list(record.heads)] = row.cpu()
        return table

    def merge(self, other: Self) -> Self:
        """Add what ``other`` counted to this stat and return it; refuses what does not fit."""
        self._check_fit(other)
        for name, record in other.records.items():
            kept = self.records.setdefault(name, SiteRecord(record.site, record.heads, {})).tensors
            for key, tensor in record.tensors.items():
                kept[key] = _merged(self.rules.get(key, "add"), kept[key], tensor) if key in kept else tensor.clone()
        return self

    def _check_fit(self, other: Self) -> None:
        """Refuse before anything is merged, and name what differs."""
        kind = type(self).__name__
        if type(other) is not type(self):
            raise ArtefactError(f"A {type(other).__name__} cannot be merged into a {kind}; merge stats of one kind.")
        mine, theirs = self.options(), other.options()
        for name in mine.keys() - self.free:
            if mine[name] != theirs[name]:
                raise ArtefactError(
                    f"{kind} with {name}={mine[name]!r} cannot be merged with {name}={theirs[name]!r}; "
                    "measure both parts with the same options."
                )
        for name in self.records.keys() & other.records.keys():
            ours, others = self.records[name], other.records[name]
            for part in ("site", "heads"):
                if getattr(ours, part) != getattr(others, part):
                    raise ArtefactError(
                        f"One {kind} has {part} {getattr(ours, part)} at {name!r}, the other {getattr(others, part)}; "
                        "measure both parts with the same model and selection."
                    )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of all sites, and the options, sites and watched heads."""
        tensors = {
            f"{name}/{key}": tensor for name, record in self.records.items() for key, tensor in record.tensors.items()
        }
        sites = [{**dataclasses.asdict(record.site), "watched": list(record.heads)} for record in self.records.values()]
        return tensors, {"options": self.options(), "sites": sites}

    @classmethod
    def load(cls, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`state`."""
        stat = cls(**fields["options"])
        for entry in fields["sites"]:
            known = {name: value for name, value in entry.items() if name != "watched"}
            site: Site = load_record(Site, known, f"site of a {cls.__name__}")
            watched: tuple[int, ...] = load_record(tuple[int, ...], entry["watched"], f"heads of {site.name!r}")
            prefix = f"{site.name}/"
            own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            missing = stat.empty(len(watched)).keys() - own.keys()
            if missing:
                raise ArtefactError(
                    f"The saved {cls.__name__} lacks {', '.join(sorted(missing))} of {site.name!r}; measure it again."
                )
            stat.records[site.name] = SiteRecord(site, watched, own)
        return stat


def _merged(rule: Rule, mine: Tensor, theirs: Tensor) -> Tensor:
    """Two tensors under a merge rule; the smaller one counts as zero outside its own cells."""
    theirs = theirs.to(mine.device)
    if rule == "maximum":
        return torch.maximum(mine, theirs)
    if rule == "minimum":
        return torch.minimum(mine, theirs)
    shape = [max(sizes) for sizes in zip(mine.shape, theirs.shape, strict=True)]
    merged = grown(mine, shape).clone() if list(mine.shape) == shape else grown(mine, shape)
    merged += grown(theirs, shape)
    if rule == "wide":
        normalise_wide(merged)
    return merged


def finite(weights: Tensor, valid: Tensor, site: Site) -> Tensor:
    """A copy of the weights ``[H, Q, K]`` with zeros outside the valid cells; refuses NaN and infinity inside."""
    if bool(unrepeated(valid).all()):
        weights = weights.clone(memory_format=torch.contiguous_format)
    else:
        weights = torch.where(valid, weights, torch.zeros((), dtype=weights.dtype, device=weights.device))
    # A sum is one pass, and NaN and infinity always show in it; only that of many huge numbers is infinite without.
    if not bool(weights.sum().isfinite()) and not bool(torch.isfinite(weights).all()):
        raise not_finite(site)
    return weights
