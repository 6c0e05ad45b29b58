"""What edits of a model can be made of: averages and orders of heads that runs hold, by numbers that name them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from ..attention.discover import find_sites
from ..core.registry import SCORES
from ..core.site import Select, Site
from ..core.text import parse
from ..edits.constant import Constant
from ..edits.pattern import Scope, SparsePattern, load_pattern_averages
from ..errors import AttrimError, ParameterError
from ..models.digests import comparable_digests, tokenizer_digest
from ..scores.base import Score, Scores
from ..stats.bundle import INDEX, Stats
from ..stats.bundle import STORE as STATS_STORE
from ..stats.mean import Mean
from ..studies.findings import FILE, findings
from .catalogue import Catalogue, RunEntry

QUICK = ("confidence", "gradient-attention", "random")
"""Scores that are computed from the input at hand."""
MOST_FOLDERS = 2_000
"""Folders of a run that are searched for averages."""
Heads = list[tuple[str, int]]


@dataclass(frozen=True)
class AveragesFolder:
    """Average attention of the model in a folder."""

    id: str
    label: str
    folder: Path


@dataclass(frozen=True, eq=False)
class HeadOrder:
    """The heads of the model in the order of a score, the least important first."""

    id: str
    label: str
    heads: Heads


class Materials:
    """Averages and orders that fit a model.

    Parameters
    ----------
    folders : averages that were named at the start; what does not fit the model is refused.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, catalogue: Catalogue, folders: Sequence[Path] = ()) -> None:
        self.model, self.catalogue = model, catalogue
        self.sites = find_sites(model)
        self._digests = comparable_digests(model)
        self._tokenizer = tokenizer_digest(tokenizer) if tokenizer is not None else ""
        self._given = [AveragesFolder(_number(folder), str(folder), folder) for folder in folders]
        for folder in folders:
            self._check(folder)
        self._scores: dict[str, tuple[float, list[HeadOrder]]] = {}
        self._lock = threading.Lock()
        self._mean = lru_cache(maxsize=2)(load_pattern_averages)
        self._pattern = lru_cache(maxsize=8)(self._make_pattern)

    def averages(self) -> list[AveragesFolder]:
        """All averages that fit, those that were named first."""
        found = {each.folder: each for each in self._given}
        for entry in self.catalogue.entries():
            for folder in _stats_folders(entry.folder):
                if folder not in found and self._fits(folder):
                    label = f"{entry.name}/{folder.relative_to(entry.folder)}"
                    found[folder] = AveragesFolder(_number(folder), label, folder)
        return list(found.values())

    def orders(self) -> list[HeadOrder]:
        """All orders of runs that fit, and the scores that can be computed from an input, which have no heads yet."""
        quick = [HeadOrder(name, f"{name} of this input", []) for name in QUICK]
        return quick + [order for entry in self.catalogue.entries() for order in self._orders_of(entry)]

    def order(self, number: str, batch: Mapping[str, Any]) -> HeadOrder:
        """The order of an id; of a score that is computed from an input, the one of this input."""
        if number in QUICK:
            score: Score = parse(SCORES, number)
            found = score(self.model, [batch])
            return HeadOrder(number, f"{number} of this input", found.order())
        for order in self.orders():
            if order.id == number:
                return order
        raise ParameterError("The order of heads is not there any more; choose another one.")

    def constant(self, number: str, select: Select) -> tuple[Constant, Path]:
        """The edit that makes heads constant, and the folder of its averages."""
        folder = self._folder(number)
        return Constant(self._mean(str(folder)), select=select), folder

    def pattern(self, number: str, tau: float, scope: Scope) -> tuple[SparsePattern, Path]:
        """The edit with one sparse pattern, and the folder of its averages."""
        folder = self._folder(number)
        return self._pattern(folder, tau, scope), folder

    def _make_pattern(self, folder: Path, tau: float, scope: Scope) -> SparsePattern:
        made = SparsePattern(self._mean(str(folder)), tau, scope)
        made.mask  # noqa: B018 (now: what is first made in inference mode cannot be differentiated through)
        return made

    def _folder(self, number: str) -> Path:
        for each in self.averages():
            if each.id == number:
                return each.folder
        raise ParameterError("The averages are not there any more; choose others.")

    def _check(self, folder: Path) -> None:
        """Refuse averages of another model."""
        origin = Stats.origin_of(folder)
        remedy = f"so the averages in {folder} do not fit this model: measure them on it"
        origin.require_same_source(self._digests, self._tokenizer, remedy)
        if not any(entry.get("name") == Mean.registered_name for entry in STATS_STORE.read_index(folder)["stats"]):
            raise ParameterError(f"{folder} holds no average attention; measure it with the stat 'mean'.")
        if origin.attention and not set(origin.attention) & set(self._digests):
            raise ParameterError(f"The averages in {folder} are of other sites than this model has; measure it.")

    def _fits(self, folder: Path) -> bool:
        try:
            self._check(folder)
        except (AttrimError, KeyError, TypeError, AttributeError):
            return False
        return True

    def _orders_of(self, entry: RunEntry) -> list[HeadOrder]:
        """The orders of a run that fit, read again when its findings change."""
        try:
            changed = (entry.folder / FILE).stat().st_mtime
        except OSError:
            return []
        with self._lock:
            known = self._scores.get(entry.id)
        if known is None or known[0] != changed:
            known = changed, list(self._read_orders(entry))
            with self._lock:
                self._scores[entry.id] = known
        return known[1]

    def _read_orders(self, entry: RunEntry) -> Iterator[HeadOrder]:
        try:
            found = findings(entry.folder)
        except AttrimError:
            return  # the list of runs says what is wrong with it
        for place, (name, scores) in enumerate(_scores_in(found, "")):
            one = scores.over_examples() if scores.scope == "example" else scores
            heads = self._named(one)
            if heads:
                label = f"{entry.name}: {name or one.name}"
                yield HeadOrder(_number(entry.folder / f"{place} {name}"), label, heads)

    def _named(self, scores: Scores) -> Heads:
        """The order under the names that this model has for the sites; empty where it is of another model."""
        names: dict[str, Site] = {alias: site for site in self.sites for alias in site.aliases}
        if any(site.name not in names or names[site.name].heads != site.heads for site in scores.sites):
            return []
        return [(names[name].name, head) for name, head in scores.order()]


def _scores_in(value: Any, name: str, depth: int = 4) -> Iterator[tuple[str, Scores]]:
    """All scores in findings, with what they are called there."""
    if isinstance(value, Scores):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _scores_in(item, f"{name} {key}".strip(), depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _scores_in(item, name, depth - 1)
    elif depth and dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            yield from _scores_in(getattr(value, item.name), name, depth - 1)


def _stats_folders(folder: Path) -> Iterator[Path]:
    """The folders of a run that hold stats."""
    for path, folders, files in islice(os.walk(folder), MOST_FOLDERS):
        folders[:] = sorted(name for name in folders if name != "unfinished")
        if INDEX in files:
            yield Path(path)


def _number(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
