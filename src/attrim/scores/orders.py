"""Orders of heads: compared with each other, written to files, and read from them as scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.order import read_order
from ..core.site import Site
from ..errors import ArtefactError, DataError
from ..runs.files import replace_file, replace_sealed, storage
from .base import Scores

GIVEN = "given"
"""What the order of a file is called."""


@dataclass(frozen=True, eq=False)
class RankCorrelation:
    """How well every two of K scores agree.

    Attributes
    ----------
    names : of the scores.
    spearman, kendall : float64 ``[K, K]`` from -1 to 1, Spearman's rho and Kendall's tau-b; NaN where a score gives all
        heads the same number.
    """

    names: tuple[str, ...]
    spearman: NDArray[np.float64]
    kendall: NDArray[np.float64]

    def rows(self) -> list[tuple[str, str, float, float]]:
        """Each pair once: both names, rho and tau."""
        places = zip(*np.triu_indices(len(self.names), 1), strict=True)
        return [
            (self.names[one], self.names[other], float(self.spearman[one, other]), float(self.kendall[one, other]))
            for one, other in places
        ]


def rank_correlation(scores: Mapping[str, Scores]) -> RankCorrelation:
    """Correlate the scores of the same heads with each other, by rank."""
    names = tuple(scores)
    heads = {name: [(site.name, each.scored(site)) for site in each.sites] for name, each in scores.items()}
    for name in names[1:]:
        if heads[name] != heads[names[0]]:
            raise DataError(f"The scores {names[0]!r} and {name!r} are of different heads; score one model with both.")
    rows = [np.concatenate([each.values[site.name].numpy() for site in each.sites]) for each in scores.values()]
    from scipy.stats import kendalltau, spearmanr

    spearman, kendall = np.ones((2, len(rows), len(rows)))
    for one, left in enumerate(rows):
        for other, right in enumerate(rows):
            vary = len(set(left)) > 1 and len(set(right)) > 1  # scipy would warn and give NaN, too
            spearman[one, other] = spearmanr(left, right).statistic if vary else np.nan
            kendall[one, other] = kendalltau(left, right).statistic if vary else np.nan
    return RankCorrelation(names, spearman, kendall)


def given_order(path: Path, sites: Sequence[Site], chosen: Mapping[Site, tuple[int, ...]]) -> Scores:
    """The order of a file as scores: the place of every chosen head; refuses one that is not of these sites."""
    places: dict[tuple[str, int], int] = {}
    for place, (where, head) in enumerate(read_order(path)):
        meant = [site for site in sites if where == site.layer or where in site.aliases]
        if len(meant) != 1 or head >= meant[0].heads:
            cause = f"layer {where} is in {len(meant)} sites" if len(meant) > 1 else "see 'attrim sites'"
            raise ArtefactError(
                f"The model has no head {where}/{head}, which {path} lists ({cause}); name sites of it."
            )
        places[meant[0].name, head] = place
    wanted = [(site.name, head) for site, heads in chosen.items() for head in heads]
    lacking = [head for head in wanted if head not in places]
    if lacking:
        raise ArtefactError(
            f"The order in {path} lacks {len(lacking)} of the {len(wanted)} heads, such as "
            f"{lacking[0][0]}/{lacking[0][1]}; list every head once."
        )
    values = {site.name: torch.tensor([float(places[site.name, head]) for head in heads])
              for site, heads in chosen.items()}  # fmt: skip
    return Scores(values, list(chosen), GIVEN, heads={site.name: heads for site, heads in chosen.items()})


def write_order(path: Path, scores: Scores) -> list[Path]:
    """Write an order to ``PATH.json``, with the scores, and to ``PATH.csv``: ``heads=@FILE:BUDGET`` reads both."""
    sites = {site.name: site for site in scores.sites}
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(("place", "site", "role", "layer", "head", "score"))
    for place, (own, head) in enumerate(scores.order(), 1):
        score = float(scores.values[own][scores.scored(sites[own]).index(head)])
        rows.writerow((place, own, sites[own].role, sites[own].layer, head, score))
    files = [path.with_name(f"{path.name}{ending}") for ending in (".json", ".csv")]
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_sealed(files[0], {"order": scores.order(), **scores.to_json()})
        replace_file(files[1], table.getvalue().encode())
    return files
