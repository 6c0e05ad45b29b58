"""What a score is: a number for every head, small for the heads that are replaced first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn

from ..core.registry import SCORES
from ..core.site import Site
from ..errors import ArtefactError, DataError, SelectionError, ShapeError


class Score(Protocol):
    """How a score is called: every one takes the same, and ignores what it does not need."""

    def __call__(
        self, model: nn.Module, batches: Iterable[Mapping[str, Any]], constants: Any, *, seed: int = 0
    ) -> Scores:
        """Score every head of a model.

        Parameters
        ----------
        batches : dicts of tensors for ``model(**batch)``; with labels, where a score needs the loss.
        constants : what heads would be replaced by, as :class:`~attrim.edits.constant.Constant` takes it.
        seed : for scores that are random.
        """


register = SCORES.register


@dataclass(frozen=True, eq=False)
class Scores:
    """One number for every head of some sites.

    Parameters
    ----------
    values : site name to ``[H]``; sites may have different numbers of heads. Kept in float64.
    sites : the sites, in the order of the model.
    name : which score it is, for tables and figures.
    """

    values: Mapping[str, Tensor]
    sites: Sequence[Site]
    name: str = ""

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        if set(names) != set(self.values) or len(set(names)) != len(names):
            raise SelectionError(
                f"The scores are for {len(self.values)} sites and the list has {len(names)}; give values for each site."
            )
        values = {name: torch.as_tensor(self.values[name]).detach().double().cpu() for name in names}
        for site in self.sites:
            if values[site.name].shape != (site.heads,):
                raise ShapeError(
                    f"The scores of site {site.name!r} must have the shape [{site.heads}], one for each head, not "
                    f"{list(values[site.name].shape)}."
                )
            if not bool(torch.isfinite(values[site.name]).all()):
                raise DataError(f"A score of site {site.name!r} is NaN or infinite, so that heads cannot be ordered.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "sites", tuple(self.sites))

    @overload
    def order(self, by: Literal["site"] = "site") -> list[tuple[str, int]]: ...
    @overload
    def order(self, by: Literal["layer"]) -> list[tuple[int, int]]: ...
    def order(self, by: Literal["site", "layer"] = "site") -> list[Any]:
        """All heads, the one to replace first at the front; equal scores by layer, then by head.

        Parameters
        ----------
        by : pairs of ``site`` name and head, which fit ``Constant(heads=...)`` for any model; or of ``layer`` and head,
            which are only clear when no two sites have the same layer.
        """
        if by == "layer" and len({site.layer for site in self.sites}) < len(self.sites):
            raise SelectionError(
                "Several sites have the same layer, so that layer and head do not name a head; use order(by='site')."
            )
        places = sorted(
            (value, site.layer, number, head)
            for number, site in enumerate(self.sites)
            for head, value in enumerate(self.values[site.name].tolist())
        )
        return [(self.sites[number].name if by == "site" else layer, head) for _, layer, number, head in places]

    def ranks(self) -> Tensor:
        """Float64 ``[sites, heads]``: the place of every head in the order, from 1; NaN where a site has fewer."""
        rank = {head: place for place, head in enumerate(self.order(), start=1)}
        rows = {site.name: torch.tensor([float(rank[site.name, head]) for head in range(site.heads)])
                for site in self.sites}  # fmt: skip
        return self._table(rows)

    def table(self) -> Tensor:
        """Float64 ``[sites, heads]``: the values; NaN where a site has fewer heads."""
        return self._table(self.values)

    def _table(self, rows: Mapping[str, Tensor]) -> Tensor:
        width = max(site.heads for site in self.sites)
        table = torch.full((len(self.sites), width), torch.nan, dtype=torch.float64)
        for number, site in enumerate(self.sites):
            table[number, : site.heads] = rows[site.name]
        return table

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        values = {name: numbers.tolist() for name, numbers in self.values.items()}
        return {"name": self.name, "sites": [dataclasses.asdict(site) for site in self.sites], "values": values}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Scores:
        """The inverse of :meth:`to_json`."""
        try:
            sites = [Site(**site) for site in fields["sites"]]
            values = {name: torch.tensor(row, dtype=torch.float64) for name, row in fields["values"].items()}
            return cls(values, sites, fields["name"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtefactError(f"These are no saved scores ({error}); compute them again.") from error
