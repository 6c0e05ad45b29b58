"""The context in which a model's attention is edited and watched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from ..core.plan import Plan
from ..core.site import Select, Site, require_select
from ..edits.base import Edit
from ..errors import SiteError, require_all
from ..stats.base import Stat
from . import install
from .discover import map_of
from .layers import check_layers, touches_layers
from .session import Session, active


@contextlib.contextmanager
def attach(
    model: nn.Module,
    edits: Iterable[Edit] = (),
    stats: Iterable[Stat] = (),
    select: Select | None = None,
    example: Any = None,
    strict: bool = True,
    fast: bool = False,
) -> Iterator[list[Site]]:
    """Edit and watch a model's attention while the context is active; afterwards the model is as before.

    Parameters
    ----------
    model : any module with attention; no fork or special loading is needed.
    edits : applied in order, after the edits of outer contexts.
    stats : watch the chosen heads after all edits.
    select : which heads the stats watch, and the edits that bring no selection of their own.
    example : arguments of one forward pass, needed once for models that attrim cannot make an input for.
    strict : raise when a chosen site did not fire.
    fast : let the fused kernels feed the stats; the model then returns no attention weights.

    Yields
    ------
    the sites that are edited or watched.
    """
    edits, stats = list(edits), list(stats)
    require_all(edits, Edit, "an edit")
    require_all(stats, Stat, "a stat")
    select = Select() if select is None else select
    require_select(select)
    sites = map_of(model, example)
    plans = _plans(sites.sites, edits, stats, select)
    check_layers(sites.layers, plans)
    for site, plan in plans.items():
        for stat, heads in plan.stats:
            stat.prepare(site, heads)
    session = Session(sites, plans, fast)
    modules = sites.wrapped(layers=any(touches_layers(plan) for plan in plans.values()))
    install.switch(sites.configs)
    install.wrap(modules)
    token = active.set((*active.get(), session))
    try:
        yield [site for site in sites.sites if site in plans]
    finally:
        active.reset(token)
        install.unwrap(modules)
        install.switch_back(sites.configs)
    if strict:
        _check_fired(session)


def edit(
    model: nn.Module, *edits: Edit, select: Select | None = None, example: Any = None, strict: bool = True
) -> AbstractContextManager[list[Site]]:
    """A context in which the model computes with the edits; see :func:`attach`.

    Examples
    --------
    >>> with attrim.edit(model, attrim.Threshold(1e-3)):
    ...     outputs = model(**batch)
    """
    return attach(model, edits, select=select, example=example, strict=strict)


def _plans(sites: Sequence[Site], edits: list[Edit], stats: list[Stat], select: Select) -> dict[Site, Plan]:
    everything = Select()
    plans: dict[Site, Plan] = {}
    for item in edits:
        own = item.select if item.select != everything else select
        for site, heads in own.resolve(sites).items():
            plans[site] = plans.get(site, Plan()) + Plan(edits=[(item, heads)])
    for stat in stats:
        for site, heads in (select.resolve(sites) if sites else {}).items():
            plans[site] = plans.get(site, Plan()) + Plan(stats=[(stat, heads)])
    return plans


def _check_fired(session: Session) -> None:
    missing = [site.name for site in session.plans if site not in session.fired]
    if not missing:
        return
    if not session.fired:
        raise SiteError(
            "No site fired inside the context: the model did not run there, or it ran in another thread; run it inside "
            "the context (or pass strict=False)."
        )
    raise SiteError(
        f"{len(missing)} chosen sites did not fire, the first is {missing[0]}; choose the sites that your input "
        "reaches with select=Select(roles=...) or Select(names=...), or pass strict=False."
    )
