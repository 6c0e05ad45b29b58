"""The context in which a model's attention is edited and watched."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from torch import nn

from ..core.plan import Plan
from ..core.site import Select, Site, require_select
from ..edits.base import Edit
from ..errors import ParameterError, SiteError, require_all
from ..stats.base import Stat
from .discover import Map, map_of, root_of
from .install import installed
from .layers import check_layers, touches_layers
from .session import Attachment, Session


class Context(AbstractContextManager[list[Site]], contextlib.ContextDecorator):
    """What :func:`attach` and :func:`edit` return: can be entered again after it was left, and decorates functions.

    Parameters
    ----------
    make : gives a new context manager, for each time that this one is entered.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[list[Site]]]) -> None:
        self._make = make
        self._running: AbstractContextManager[list[Site]] | None = None

    def __enter__(self) -> list[Site]:
        if self._running is not None:
            raise ParameterError("This context is active already; make another one with attrim.edit(...).")
        running = self._make()
        sites = running.__enter__()
        self._running = running
        return sites

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        running, self._running = self._running, None
        if running is None:
            raise ParameterError("This context is not active; enter it before leaving it.")
        return running.__exit__(kind, error, traceback)

    def _recreate_cm(self) -> Context:
        """One for each call of a decorated function, so that it may call itself, in several threads too."""
        return Context(self._make)


def attach(
    model: nn.Module,
    edits: Iterable[Edit] = (),
    stats: Iterable[Stat] = (),
    select: Select | None = None,
    example: Any = None,
    strict: bool = True,
    fast: bool = False,
) -> Context:
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

    Returns
    -------
    a context manager that gives the sites that are edited or watched.
    """
    return Context(functools.partial(_attached, model, list(edits), list(stats), select, example, strict, fast))


@contextlib.contextmanager
def _attached(
    model: nn.Module,
    edits: list[Edit],
    stats: list[Stat],
    select: Select | None,
    example: Any,
    strict: bool,
    fast: bool,
) -> Iterator[list[Site]]:
    """One time that a context is active; the arguments are those of :func:`attach`."""
    require_all(edits, Edit, "an edit")
    require_all(stats, Stat, "a stat")
    select = Select() if select is None else select
    require_select(select)
    for item in edits:
        item.check_architecture(getattr(getattr(root_of(model), "config", None), "model_type", None))
    attachment = prepare(map_of(model, example), edits, stats, select, fast)
    with attached(attachment) as session:
        yield [site for site in attachment.map.sites if site in attachment.plans]
    if strict:
        _check_fired(session)


def prepare(sites: Map, edits: list[Edit], stats: Sequence[Stat], select: Select, fast: bool = False) -> Attachment:
    """What a context does in the model of a map; the other arguments are those of :func:`attach`."""
    plans = _plans(sites.sites, edits, stats, select)
    check_layers(sites.layers, plans)
    for site, plan in plans.items():
        for stat, heads in plan.stats:
            stat.prepare(site, heads)
    modules = sites.wrapped(layers=any(touches_layers(plan) for plan in plans.values()))
    return Attachment(sites, plans, tuple(map(weakref.ref, modules)), fast)


@contextlib.contextmanager
def attached(attachment: Attachment) -> Iterator[Session]:
    """A session that does what an attachment says, while the context is active."""
    session = Session(attachment)
    with installed(session):
        session.enter()
        try:
            yield session
        finally:
            session.leave()


def edit(
    model: nn.Module, *edits: Edit, select: Select | None = None, example: Any = None, strict: bool = True
) -> Context:
    """A context in which the model computes with the edits; see :func:`attach`.

    Examples
    --------
    >>> with attrim.edit(model, attrim.Threshold(1e-3)):
    ...     outputs = model(**batch)
    """
    return attach(model, edits, select=select, example=example, strict=strict)


def _plans(sites: Sequence[Site], edits: list[Edit], stats: Sequence[Stat], select: Select) -> dict[Site, Plan]:
    everything = Select()
    plans: dict[Site, Plan] = {}
    for item in edits:
        item.check(sites)
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
