"""Sites, and the one way to choose among them."""

from __future__ import annotations

import dataclasses
import operator
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import ParameterError, SelectionError, nearest, shorten

Head = tuple["Site", int]


@dataclass(frozen=True)
class Site:
    """One attention computation of a model.

    Attributes
    ----------
    name : the module's path, with ``#1``, ``#2``, ... for the later calls of a module that is called several times.
    role : ``encoder``, ``decoder``, ``cross``, or stream names such as ``language`` and ``language>vision``.
    layer : number within the role, from 0.
    heads : how many heads the site has.
    call : which call of the module within one forward pass.
    route : ``interface`` or ``softmax``, how attrim reaches it.
    backbone : where the model's class keeps its backbone when it has a head (``base_model_prefix``), such as ``bert``.
    """

    name: str
    role: str
    layer: int
    heads: int
    call: int = 0
    route: str = "interface"
    backbone: str = dataclasses.field(default="", compare=False, repr=False)

    @property
    def path(self) -> str:
        """The module's path, without the call index."""
        return self.name.rsplit("#", 1)[0]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The name, and the one that the same site has in the same backbone with a head, or without one."""
        if not self.backbone:
            return (self.name,)
        prefix = f"{self.backbone}."
        other = self.name.removeprefix(prefix) if self.name.startswith(prefix) else prefix + self.name
        return self.name, other

    @property
    def streams(self) -> tuple[str, str]:
        """Names of the sequences that queries and keys come from (equal in self-attention)."""
        if self.role == "cross":
            return "decoder", "encoder"
        query, _, key = self.role.partition(">")
        return query, key or query

    def seed(self, seed: int) -> int:
        """A seed of the site's own, from a seed and its name alone, so that other sites do not change what it draws."""
        return zlib.crc32(f"{seed} {self.name}".encode())


def blocks_of(sites: Sequence[Site]) -> dict[Site, str]:
    """The block of each site: the path of the outermost numbered module around it.

    The two directions of a cross-attention module, which is called twice, are in one block; a block whose weights
    serve several layers (ALBERT) is a block of its own each time it is called, marked as sites are (``#1``).
    """
    found: dict[Site, str] = {}
    calls: dict[tuple[str, str], int] = {}
    for site in sites:
        numbered = re.match(r"(?:.*?\.)??\d+(?=\.|$)", site.path)
        call = calls.get((site.path, site.role), 0)
        calls[site.path, site.role] = call + 1
        found[site] = (numbered[0] if numbered else site.path) + (f"#{call}" if call else "")
    return found


@dataclass(frozen=True)
class Select:
    """Which heads an edit or a stat is about; what is left out means "all".

    Parameters
    ----------
    roles : site roles to keep.
    layers : layer numbers to keep; negative ones count from the end of the role.
    heads : head numbers to keep at every chosen site, or pairs ``(layer, head)`` or ``(site or its name, head)``.
    names : patterns of site names (``*`` stands for anything).

    Examples
    --------
    >>> Select(roles="decoder", layers=[0, 1])
    >>> Select(heads=[(0, 3), (5, 11)])       # head 3 of layer 0 and head 11 of layer 5
    """

    roles: Sequence[str] | str | None = None
    layers: Sequence[int] | int | None = None
    heads: Sequence[Any] | int | None = None
    names: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        readers = {"roles": _word, "layers": _whole, "heads": _head, "names": _word}
        for field, read in readers.items():
            given = getattr(self, field)
            if given is None:
                continue
            value, item = [], given
            try:
                for item in _entries(given):
                    value.append(read(_plain(item)))
            except (TypeError, ValueError):
                kind = "texts" if read is _word else "whole numbers" + (" or pairs" if read is _head else "")
                raise ParameterError(f"Select({field}=...) takes {kind}, not {shorten(item)}.") from None
            object.__setattr__(self, field, tuple(value))

    def resolve(self, sites: Iterable[Site]) -> dict[Site, tuple[int, ...]]:
        """The chosen head numbers of every chosen site, in the order of ``sites``.

        Never empty; an entry of the selection that matches nothing is an error.
        """
        sites = list(sites)
        if not sites:
            raise SelectionError("The model computes no attention: all of its heads are baked as constants or removed.")
        depth: dict[str, int] = {}
        for site in sites:
            depth[site.role] = max(depth.get(site.role, 0), site.layer + 1)
        kept = sites
        matches: tuple[tuple[str, Callable[[Site, Any], bool]], ...] = (
            ("roles", lambda site, role: site.role == role),
            ("names", lambda site, pattern: fnmatchcase(site.name, pattern)),
            ("layers", lambda site, layer: layer in (site.layer, site.layer - depth[site.role])),
        )
        for field, match in matches:
            entries = getattr(self, field)
            if entries is None:
                continue
            for entry in entries:
                if not any(match(site, entry) for site in kept):
                    raise _nothing(f"{field}={shorten(entry)}", sites, entry if field == "roles" else "")
            kept = [site for site in kept if any(match(site, entry) for entry in entries)]
        chosen = {site: heads for site in kept if (heads := self._heads(site))}
        self._check_heads(sites, chosen)
        if not chosen:
            raise _nothing(shorten(self), sites)
        return chosen

    def _heads(self, site: Site) -> tuple[int, ...]:
        if self.heads is None:
            return tuple(range(site.heads))
        wanted = {head for where, head in self.heads if _stands_for(where, site)}  # type: ignore[union-attr]
        return tuple(index for index in range(site.heads) if index in wanted or index - site.heads in wanted)

    def _check_heads(self, sites: list[Site], chosen: dict[Site, tuple[int, ...]]) -> None:
        """Every head must be there: an order may come from another model."""
        for where, head in self.heads or ():  # type: ignore[union-attr]
            if not any(
                _stands_for(where, site) and (head in heads or head + site.heads in heads)
                for site, heads in chosen.items()
            ):
                raise _nothing(f"heads={head if where is None else (where, head)}", sites)

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, as JSON values."""
        return {
            name: [list(item) if isinstance(item, tuple) else item for item in value]
            for name in ("roles", "layers", "heads", "names")
            if (value := getattr(self, name)) is not None
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Select:
        """The inverse of :meth:`to_json`."""
        return cls(**fields)


def require_select(select: Any) -> None:
    """Refuse what is not a selection of heads."""
    if not isinstance(select, Select):
        raise ParameterError(f"A selection was expected, not {shorten(select)}; write attrim.Select(heads=[...]).")


def _stands_for(where: int | str | None, site: Site) -> bool:
    """Whether the first entry of a pair means this site."""
    return where is None or where == site.layer or where in site.aliases


def _nothing(what: str, sites: list[Site], role: str = "") -> SelectionError:
    """The error for a selection, or an entry of one (a ``role``), that matches nothing."""
    roles = sorted({site.role for site in sites})
    layers, heads = max(site.layer for site in sites) + 1, max(site.heads for site in sites)
    near = nearest(role, roles)
    hint = f" ({near})" if near else ""
    return SelectionError(
        f"{what} matches no head{hint}: the model has {len(sites)} sites with roles {', '.join(roles)}, at most "
        f"{layers} layers in a role and {heads} heads at a site; list them with 'attrim sites MODEL' or "
        "attrim.sites(model)."
    )


def _plain(value: Any) -> Any:
    """Arrays and tensors, of one number too, as Python numbers and lists of them: an order may come from argsort."""
    if getattr(value, "is_meta", False):
        raise TypeError  # a tensor without data
    return value.tolist() if hasattr(value, "tolist") else value


def _entries(given: Any) -> Iterable[Any]:
    """One entry, or several, as several."""
    given = _plain(given)
    return given if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else (given,)


def _word(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError
    return item


def _whole(item: Any) -> int:
    if isinstance(item, bool):  # a mask of heads is not a list of their numbers
        raise TypeError
    return operator.index(item)


def _head(item: Any) -> tuple[int | str | None, int]:
    """One entry of ``Select.heads`` as a pair (layer number, site name or None for anywhere; head number)."""
    if not isinstance(item, (tuple, list)):
        return None, _whole(item)
    where, head = (_plain(part) for part in item)
    if isinstance(where, Site):
        where = where.name
    return where if where is None or isinstance(where, str) else _whole(where), _whole(head)
