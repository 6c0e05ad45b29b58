"""What is removed: patterns from average attention, and random cells and windows that are as sparse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.site import Select, Site
from ...edits.base import Edit
from ...edits.pattern import (
    SparsePattern,
    load_pattern_averages,
    matching_window,
    use_share,
    window_facts,
    window_share,
)
from ...edits.persite import names_of
from ...edits.ranking import PatternFacts
from ...edits.window import Window
from ...errors import ArtefactError, ParameterError
from ...stats.mean import Mean
from .study import Prune

CHOOSE = {"ap": "weakest", "out-of-domain": "weakest", "random": "random", "random-mass": "random-mass"}


@dataclass(frozen=True, eq=False)
class Removal:
    """An edit that removes cells, and how sparse it is.

    Attributes
    ----------
    window : of a window, its size and how many first tokens it keeps, as ``5+1``.
    """

    edit: Edit
    facts: PatternFacts
    window: str = ""


def make_removal(study: Prune, mean: Mean, kind: str, tau: float, select: Select, seed: int = 0) -> Removal:
    """What a kind removes at a tau; refuses a pattern that removes nothing, which would be trained dense.

    Parameters
    ----------
    mean : the averages, which say what cells there are, too.
    seed : of random cells.
    """
    weakest = SparsePattern(mean, tau, select=select, **study.pattern_options())
    if not weakest.total.removed:
        raise ParameterError(
            f"At tau {tau:g} nothing is removed of {weakest.total.cells} cells, so a model would be dense; leave this "
            "tau out."
        )
    removal = _removal_of(study, mean, kind, tau, select, seed, weakest)
    if not removal.facts.removed:
        raise ParameterError(
            f"At tau {tau:g} the kind {kind} removes nothing of {removal.facts.cells} cells, so a model would be "
            "dense; leave this tau or this kind out."
        )
    return removal


def _removal_of(
    study: Prune, mean: Mean, kind: str, tau: float, select: Select, seed: int, weakest: SparsePattern
) -> Removal:
    """What a kind removes, as sparse as the weakest cells."""
    by_use = study.match == "use"
    if kind == "window":
        return _window(weakest, study.window_first, select, by_use)
    if CHOOSE[kind] == "weakest":
        return Removal(weakest.mask, weakest.total)
    options: dict[str, Any] = study.pattern_options()
    if study.as_coded != "no":
        # The released rules have no random baseline that is as sparse, so one is drawn by the corrected rule.
        options, tau = {**options, "as_coded": "no", "tile": None, "tile_keys": None}, weakest.total.effective
    if by_use and kind == "random":
        # Drawn cells, and tiles, are used as often as any other.
        ranked = {} if options["tile"] is None else {"tiles": "rank"}
        options, tau = {**options, "as_coded": "no", **ranked}, use_share(weakest)
    drawn = SparsePattern(mean, tau, select=select, choose=CHOOSE[kind], seed=seed, **options)  # type: ignore[arg-type]
    return Removal(drawn.mask, drawn.total)


def _window(pattern: SparsePattern, first: Sequence[int], select: Select, by_use: bool) -> Removal:
    """The window that removes most nearly as many cells as a pattern, or as many weights of the averaged texts."""
    windows = [Window(matching_window(pattern, number, by_use), number, select=select) for number in first]
    wanted = use_share(pattern) if by_use else pattern.total.effective
    distances = [abs(window_share(pattern, window, by_use) - wanted) for window in windows]
    window = windows[distances.index(min(distances))]
    return Removal(window, window_facts(pattern, window), f"{window.size}+{window.first}")


def given_averages(sources: Sequence[str]) -> Mean:
    """The averages of folders and files, one or more roles each, as one."""
    whole = Mean()
    for source in sources:
        for name, record in load_pattern_averages(source).records.items():
            if name in whole.records:
                raise ArtefactError(
                    f"Two of the averages that are given, the second in {source}, are of site {name!r}."
                )
            whole.records[name] = record
    if not whole.records:
        raise ArtefactError(f"The averages in {', '.join(sources)} are empty: nothing was measured; measure again.")
    return whole


def check_averages(mean: Mean, sites: Sequence[Site], select: Select, longest: int, unseen: str) -> None:
    """Refuse averages of another model, or of texts shorter than those that are trained on.

    Parameters
    ----------
    sites : of the model.
    longest : tokens of the longest text, with the model's memory.
    """
    known = {name for site in sites for name in names_of(site)}
    strange = next((name for name in mean.records if name not in known), None)
    if strange is not None:
        raise ArtefactError(
            f"The averages are of site {strange!r}, which this model does not have, so they are of another model; "
            "measure them on a model of this shape."
        )
    for site, heads in select.resolve(sites).items():
        own = next((mean.records[name] for name in names_of(site) if name in mean.records), None)
        if own is None or own.site.heads != site.heads or not {*heads} <= {*own.heads}:
            found = "no averages" if own is None else f"averages of {len(own.heads)} heads"
            raise ArtefactError(
                f"There are {found} for site {site.name!r} with its {site.heads} heads; measure all heads of a model "
                "of this shape, or choose others with --select-heads."
            )
        # Sources and translations have lengths of their own.
        size = (max if site.role == "cross" else min)(own.tensors["sums"].shape[1:3])
        if size < longest and unseen == "keep":
            raise ArtefactError(
                f"The averages are of texts up to {size} tokens, but there are texts of {longest}, which would stay "
                "dense beyond; measure longer texts, cut texts with --max-length, or give --unseen offset (or prune)."
            )
