"""Which contexts are active in this thread, and what they want done at each attention call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ..core.call import Call
from ..core.plan import Plan
from ..core.site import Site
from ..errors import SiteError
from ..stats.base import Stat
from .architectures import DEFAULT, Facts
from .masks import MaskFacts, Stream, make_call

if TYPE_CHECKING:
    from .discover import Map

# A context variable is private to a thread, so threads that edit one model do not see each other's edits.
_entered: ContextVar[tuple[Session, ...]] = ContextVar("attrim_sessions", default=())


def active_sessions() -> tuple[Session, ...]:
    """The sessions of this thread that are open, in the order in which they were entered."""
    # One that another thread has left (garbage collection does that to generators) could not be taken out of here.
    return tuple(session for session in _entered.get() if session.open)


@contextmanager
def only(*sessions: Session) -> Iterator[None]:
    """These sessions and no others while a piece of our own code runs the model."""
    token = _entered.set(sessions)
    try:
        yield
    finally:
        _entered.reset(token)


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
        self.open = True
        self.fired: set[Site] = set()
        self.streams: dict[str, Stream] = {}
        self.targets: Tensor | None = None
        self.era = object()
        """Stands for the forward pass that is running."""
        # By the modules themselves: the address of one that was freed may soon be that of another.
        self._counts: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._layer_counts: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

    def enter(self) -> None:
        """Make this the innermost session of this thread."""
        _entered.set((*active_sessions(), self))

    def leave(self) -> None:
        """End this session and no other, whichever were entered since, and in whichever thread this happens."""
        self.open = False
        _entered.set(active_sessions())

    def repeated(self) -> Session:
        """A session that does from here on what this one does, except that the stats see nothing: they saw it once."""
        plans = {
            site: Plan(plan.edits, [(_Blind(stat.moment), heads) for stat, heads in plan.stats])
            for site, plan in self.plans.items()
        }
        repeated = Session(self.map, plans, self.fast)
        repeated.streams.update(self.streams)
        repeated.targets = self.targets
        repeated._counts.update(self._counts)
        repeated._layer_counts.update(self._layer_counts)
        return repeated

    def start_pass(self, targets: Tensor | None = None) -> None:
        """A new forward pass of the whole model begins: every module's next call is its first.

        Parameters
        ----------
        targets : bool ``[B, T]``, the real target steps, where the model was called with them.
        """
        self.era = object()
        self.targets = targets
        self._counts.clear()
        self._layer_counts.clear()

    def saw_real(self) -> bool:
        """Whether the last pass had any real token; True too where no self-attention showed which tokens are real."""
        return not self.streams or any(bool(stream.real.any()) for stream in self.streams.values())

    def knows(self, module: nn.Module) -> bool:
        """Whether the module is one of this model's; an error when the dry run did not see its attention."""
        if module not in self.map.modules:
            return False
        if module not in self.map.events:
            raise SiteError(
                f"A {type(module).__name__} attends here, but it did not in the dry run, so it would be left out in "
                "silence; pass example= with an input that reaches all of the model."
            )
        return True

    def next_site(self, module: nn.Module) -> Site | None:
        """The site of the module's next attention call; None when that call is not attention over keys."""
        events = self.map.events[module]
        count = self._counts.get(module, 0)
        self._counts[module] = count + 1
        site = events[count % len(events)]
        if site is not None:
            self.fired.add(site)
        return site

    def next_layer(self, module: nn.Module) -> Site | None:
        """The self-attention site of the layer whose call begins; None when the module is not a layer."""
        sites = self.map.layers.get(module)
        if sites is None:
            return None
        count = self._layer_counts.get(module, 0)
        self._layer_counts[module] = count + 1
        return sites[count % len(sites)]


class _Blind(Stat):
    """Stands for a stat where a call is repeated, so that the repeated call computes as the first one did."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`."""


class Firing:
    """One attention call that is about to happen: its site and the joined plans of all active sessions."""

    def __init__(self, module: nn.Module) -> None:
        self.sessions = [session for session in active_sessions() if session.knows(module)]
        self.site: Site | None = None
        self.plan = Plan()
        self.fast = True
        for session in self.sessions:
            site = session.next_site(module)
            if site is not None:
                self.site = self.site or site
                plan = session.plans.get(site, Plan())
                self.plan += plan
                self.fast &= session.fast or not plan.stats

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done at this call."""
        return self.site is None or not (self.plan.edits or self.plan.stats)

    @property
    def era(self) -> object:
        """Stands for the forward pass that is running; None without a session."""
        return self.sessions[0].era if self.sessions else None

    @property
    def architecture(self) -> Facts:
        """What the table of architectures says about the model."""
        return self.sessions[0].map.facts if self.sessions else DEFAULT

    def offsets(self, queries: int, keys: int) -> tuple[int, int] | None:
        """Positions of the first query and key of causal attention over a memory, counted as if that were full.

        None where there is no memory, or one that is longer than the configuration says.
        """
        field = self.architecture.memory
        if not field or self.site is None or self.site.role != "decoder":
            return None
        size = getattr(getattr(self.sessions[0].map.root, "config", None), field, None) or 0
        return (size, size - (keys - queries)) if 0 <= keys - queries <= size else None

    def call(self, mask: MaskFacts, **seen: Any) -> Call:
        """The call with everything that is known about it; ``seen`` as in :func:`make_call`."""
        assert self.site is not None
        return make_call(self.site, mask, self.sessions[0].streams, targets=self.sessions[0].targets, **seen)
