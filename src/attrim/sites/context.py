"""The context in which a model's attention is edited and watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from ..edits.base import Edit
from ..errors import SiteError
from ..moments import Plan, Softmax
from ..select import Select, Site
from ..stats.base import Stat
from . import install, interface
from .calls import Stream, allowed_in, make_call
from .discover import Map, map_of, recorded
from .softmax import SoftmaxMode, as_heads

# A context variable is private to a thread, so threads that edit one model do not see each other's edits.
_active: ContextVar[tuple[Session, ...]] = ContextVar("attrim_sessions", default=())


class Session:
    """One active context on one model: what to do at each site, and which sites fired.

    Parameters
    ----------
    sites : the model's attention, as found by the dry run.
    plans : what to do at each site.
    fast : whether stats may be fed by the fused kernels.
    """

    def __init__(self, sites: Map, plans: dict[Site, Plan], fast: bool) -> None:
        self.map = sites
        self.plans = plans
        self.fast = fast
        self.fired: set[Site] = set()
        self.streams: dict[str, Stream] = {}
        self._counts: dict[int, int] = {}

    def start_pass(self) -> None:
        """A new forward pass of the whole model begins: every module's next call is its first."""
        self._counts.clear()

    def next_site(self, module: nn.Module) -> Site | None:
        """The site of the module's next attention call; None when that call is no attention over keys."""
        events = self.map.events[id(module)]
        count = self._counts.get(id(module), 0)
        self._counts[id(module)] = count + 1
        site = events[count % len(events)]
        if site is not None:
            self.fired.add(site)
        return site


class Firing:
    """One attention call that is about to happen: its site and the joined plans of all active sessions."""

    def __init__(self, module: nn.Module) -> None:
        self.sessions = [session for session in _active.get() if id(module) in session.map.events]
        self.site: Site | None = None
        self.plan = Plan()
        self.fast = True
        for session in self.sessions:
            site = session.next_site(module)
            if site is not None:
                self.site = self.site or site
                self.plan += session.plans.get(site, Plan())
                self.fast &= session.fast

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done at this call."""
        return self.site is None or not (self.plan.edits or self.plan.stats)

    def call(self, allowed: Tensor, **known: Any) -> Any:
        """The call with everything that is known about it."""
        assert self.site is not None
        session = self.sessions[0]
        return make_call(self.site, session.map.facts, allowed, session.streams, **known)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention function that models on the interface route call."""
    dry = recorded(module, query, key, value, attention_mask, **arguments)
    if dry is not None:
        return dry
    eager = interface.eager(module)
    mask = interface.additive(attention_mask, query.dtype)
    firing = Firing(module)
    if firing.sessions and firing.site is not None:
        allowed = interface.allowed(attention_mask, query, key)
        offsets = getattr(attention_mask, "attrim_offsets", None)
        call = firing.call(allowed, offsets=offsets, query=query, key=key, value=value)
    if firing.idle:
        # No session in this thread, or nothing to do at this site: exactly what the model did before.
        if install.before(module.config) == "sdpa":
            from transformers.integrations.sdpa_attention import sdpa_attention_forward as eager
        return eager(module, query, key, value, mask, **arguments)
    plan = firing.plan
    if firing.fast and not plan.edits and not is_grad_enabled() and interface.is_standard(module, arguments):
        from ..kernels.attend import attend as fused

        output = fused(query, key, value, call, arguments.get("scaling"), plan.stats)
        if output is not None:
            return output, None
    seen = False

    def attention(scores: Tensor, function: Softmax) -> Tensor:
        nonlocal seen
        if seen:
            return function(scores)
        seen = True
        keys = key.shape[-2]
        if scores.shape[-1] == keys:
            return plan.weights(scores, call, function)
        # Attention sinks: extra columns after the keys take part in the softmax and are dropped by the model.
        weights = function(scores)
        if plan.touches("scores") or scores.shape[-1] < keys:
            raise SiteError(
                f"{call.site.name} has attention sinks, and an edit of scores does not support them; "
                "use an edit of weights, or leave the site out with Select(names=...)."
            )
        edited = plan.edited(weights[..., :keys], call)
        return nn.functional.pad(edited, (0, scores.shape[-1] - keys))

    with SoftmaxMode(attention):
        output, weights = eager(module, query, key, value, mask, **arguments)
    if not seen:
        raise SiteError(
            f"{call.site.name} ran without a softmax over keys, so nothing was edited or watched there; "
            "leave it out with Select(names=...) or report the architecture."
        )
    if plan.touches("output"):
        output = plan.output(output.transpose(1, 2), call).transpose(1, 2)
    return output, weights


def _run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Stand before the forward of a module that holds a private softmax, of a torch layer, or of a whole model."""
    sessions = _active.get()
    for session in sessions:
        if session.map.root is module:
            session.start_pass()
    if not any(id(module) in session.map.softmax_modules for session in sessions):
        if any(id(module) in session.map.fused_layers for session in sessions):
            return install.without_fast_path(forward, args, kwargs)
        return forward(*args, **kwargs)
    current: list[tuple[Firing, Any]] = []

    def attention(scores: Tensor, function: Softmax) -> Tensor:
        firing = Firing(module)
        current.clear()
        if firing.site is None:
            return function(scores)
        heads = as_heads(scores, firing.site.heads, firing.site.name)
        call = firing.call(allowed_in(heads))
        if firing.idle:
            return function(scores)
        current.append((firing, call))
        return firing.plan.weights(heads, call, function).reshape(scores.shape)

    def product(output: Tensor) -> Tensor:
        if not current:
            return output
        firing, call = current.pop()
        if not firing.plan.touches("output"):
            return output
        if output.shape[-2] != call.allowed.shape[-2]:
            raise SiteError(_no_output(call.site, f"laid out as {tuple(output.shape)}"))
        heads = as_heads(output, call.site.heads, call.site.name)
        return firing.plan.output(heads, call).reshape(output.shape)

    follow = any(plan.touches("output") for session in sessions for plan in session.plans.values())
    with SoftmaxMode(attention, product if follow else None):
        result = forward(*args, **kwargs)
    if follow and current and current[0][0].plan.touches("output"):
        raise SiteError(_no_output(current[0][1].site, "never seen before the heads are mixed"))
    return result


def _no_output(site: Site, why: str) -> str:
    return (
        f"The output of {site.name} is {why}, so its heads cannot be edited or watched there; "
        "use an edit of weights, or leave the site out with Select(names=...)."
    )


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
    sites = map_of(model, example)
    plans = _plans(sites.sites, list(edits), list(stats), select or Select())
    session = Session(sites, plans, fast)
    modules = sites.wrapped()
    install.switch(sites.configs)
    install.wrap(modules, _run)
    token = _active.set((*_active.get(), session))
    try:
        yield [site for site in sites.sites if site in plans]
    finally:
        _active.reset(token)
        install.unwrap(modules)
        install.switch_back(sites.configs)
    if strict:
        _check_fired(session)


def edit(model: nn.Module, *edits: Edit, select: Select | None = None, example: Any = None, strict: bool = True) -> Any:
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
        for site, heads in select.resolve(sites).items():
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
