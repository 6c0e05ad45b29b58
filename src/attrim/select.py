"""Sites, and the one way to choose among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .errors import SelectionError

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
    """

    name: str
    role: str
    layer: int
    heads: int
    call: int = 0
    route: str = "interface"

    @property
    def path(self) -> str:
        """The module's path, without the call index."""
        return self.name.rsplit("#", 1)[0]

    @property
    def streams(self) -> tuple[str, str]:
        """Names of the sequences that queries and keys come from (equal in self-attention)."""
        if self.role == "cross":
            return "decoder", "encoder"
        query, _, key = self.role.partition(">")
        return query, key or query


def _tuple(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, int)):
        return (value,)
    return tuple(value)


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
        for field in ("roles", "layers", "heads", "names"):
            value = _tuple(getattr(self, field))
            if field == "heads" and value is not None:
                value = tuple(_head(item) for item in value)
            object.__setattr__(self, field, value)

    def resolve(self, sites: Iterable[Site]) -> dict[Site, tuple[int, ...]]:
        """The chosen head numbers of every chosen site, in the order of ``sites``; never empty."""
        sites = list(sites)
        depth: dict[str, int] = {}
        for site in sites:
            depth[site.role] = max(depth.get(site.role, 0), site.layer + 1)
        chosen = {site: heads for site in sites if (heads := self._heads(site, depth[site.role]))}
        self._check(sites, chosen)
        self._check_pairs(chosen)
        return chosen

    def _heads(self, site: Site, depth: int) -> tuple[int, ...]:
        if self.roles is not None and site.role not in self.roles:
            return ()
        layers = self.layers
        if layers is not None and site.layer not in layers and site.layer - depth not in layers:  # type: ignore[operator]
            return ()
        if self.names is not None and not any(fnmatchcase(site.name, pattern) for pattern in self.names):
            return ()
        if self.heads is None:
            return tuple(range(site.heads))
        wanted = {head for where, head in self.heads if where is None or where in (site.layer, site.name)}  # type: ignore[union-attr]
        return tuple(index for index in range(site.heads) if index in wanted or index - site.heads in wanted)

    def _check(self, sites: list[Site], chosen: dict[Site, tuple[int, ...]]) -> None:
        if chosen:
            return
        if not sites:
            raise SelectionError("The model computes no attention: all of its heads are baked as constants or removed.")
        roles = sorted({site.role for site in sites})
        raise SelectionError(
            f"{self} matches no head: the model has {len(sites)} sites with roles {', '.join(roles)}; "
            "list them with 'attrim sites MODEL' or attrim.sites(model)."
        )

    def _check_pairs(self, chosen: dict[Site, tuple[int, ...]]) -> None:
        """A head that is named by its layer or site must be there: an order may come from another model."""
        for where, head in self.heads or ():  # type: ignore[union-attr]
            if where is not None and not any(
                where in (site.layer, site.name) and (head in heads or head + site.heads in heads)
                for site, heads in chosen.items()
            ):
                raise SelectionError(
                    f"There is no head {head} of {where!r} among the chosen sites; is the order of another model?"
                )

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


def _head(item: Any) -> tuple[int | str | None, int]:
    """One entry of ``Select.heads`` as a pair (layer number, site name or None for anywhere; head number)."""
    if isinstance(item, int):
        return None, item
    where, head = item
    if isinstance(where, Site):
        where = where.name
    return where, int(head)
