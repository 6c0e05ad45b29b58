"""Which contexts are active in this thread, and what they want done at each attention call."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.call import Call
from ..core.plan import Plan
from ..core.site import Site
from ..errors import SiteError
from ..kernels import team, ways
from ..kernels.sparse import SparsePlan
from ..stats.base import Stat
from .architectures import DEFAULT, Facts
from .masks import MaskFacts, Stream, is_noted, make_call, token_slots, version_of

if TYPE_CHECKING:
    from .discover import Map

MOST_MASKS = 4
"""Masks of a pass whose facts a session holds: those of self- and cross-attention, with and without a window."""

# A context variable is private to a thread, so threads that edit one model do not see each other's edits.
_entered: ContextVar[tuple[Session, ...]] = ContextVar("attrim_sessions", default=())


def active_sessions() -> tuple[Session, ...]:
    """The sessions of this thread that are open, in the order in which they were entered."""
    entered = _entered.get()
    if len(entered) == 1 and entered[0].open:
        return entered
    # One that another thread has left (garbage collection does that to generators) could not be taken out of here.
    return tuple(session for session in entered if session.open)


@contextmanager
def only(*sessions: Session) -> Iterator[None]:
    """These sessions and no others while a piece of our own code runs the model."""
    token = _entered.set(sessions)
    try:
        yield
    finally:
        _entered.reset(token)


@dataclass(frozen=True)
class Repeatable:
    """A call of self-attention over a whole text, which depends on nothing but its mask and the layout of its tensors.

    Attributes
    ----------
    mask, version : of the text, which begins with the first token and has no padding, and how often it was changed. It
        is one that our mask function makes for SDPA and gives to all such texts.
    names : of the other arguments of the attention function, none of which changes what it computes.
    layout : see :func:`_layout_of`.
    stream : the sequence, and what cross-attention is told about its tokens.
    attend : queries, keys and values to outputs ``[B, Q, H, D]``.
    """

    mask: Tensor
    version: int
    names: frozenset[str]
    layout: tuple[object, ...]
    stream: tuple[str, Stream]
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]


def changed_heads(site: Site, heads: int) -> SiteError:
    """The error for a site that had other heads when its model was looked at or baked."""
    return SiteError(
        f"{site.name} attends with {heads} heads, but it had {site.heads} when attrim looked at the model, so edits "
        "would be of other heads; remove heads with Gate(0), baked together with all other edits."
    )


def _layout_of(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> tuple[object, ...]:
    """All about tensors on the CPU but their numbers and addresses, and the threads that attend."""
    # Not the shapes of the keys, which are those of the values and, but for the heads, of the queries.
    return (
        *(query.shape, value.shape, query.stride(), key.stride(), value.stride()),
        *(query.dtype, key.dtype, value.dtype, query.is_cpu, key.is_cpu, value.is_cpu),
        *(scaling, torch.get_num_threads()),
    )


def repeated(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
) -> Tensor | None:
    """The outputs ``[B, Q, H, D]`` of a call that differs from the module's last one in its numbers alone, else None.

    Nothing is looked up, because for short texts that takes longer than to attend.
    """
    entered = _entered.get()
    if len(entered) != 1:
        return None
    session = entered[0]
    setup = session.attachment.setups.get(module)
    known = None if setup is None else setup.repeatable
    if known is None or known.mask is not mask or mask._version != known.version or not session.open:
        return None
    if arguments.keys() != known.names or arguments.get("dropout") or team.differentiates(query, key, value):
        return None
    if _layout_of(query, key, value, arguments.get("scaling")) != known.layout:
        return None
    if token_slots.get() is not None or ways.noted():
        return None
    name, session.streams[name] = known.stream
    return known.attend(query, key, value)


@dataclass
class CallSetup:
    """What is the same in every call of a module, for one set of active sessions.

    Attributes
    ----------
    site, plan : where it attends, and what all sessions want done there; the site is None where it does not.
    fast : whether stats may be fed by the fused kernels.
    standard : whether the module attends in the standard way, where that was asked.
    sparse_plans : what a kernel leaves out, by the size of the text and whether it is causal.
    repeatable : the last call whose like needs no looking up.
    """

    site: Site | None
    plan: Plan
    fast: bool
    standard: bool | None = None
    sparse_plans: dict[tuple[int, int, bool], SparsePlan | None] = field(default_factory=dict)
    repeatable: Repeatable | None = None

    @functools.cached_property
    def idle(self) -> bool:
        """Whether nothing is to be done at this call."""
        return self.site is None or not (self.plan.edits or self.plan.stats)

    @functools.cached_property
    def stream(self) -> tuple[str, int] | None:
        """The sequence that attends to itself, and the number of heads; None in attention between two sequences."""
        if self.site is None or len(set(self.site.streams)) > 1:
            return None
        return self.site.streams[0], self.site.heads


@dataclass(frozen=True)
class Attachment:
    """What a context does in a model; a baked model keeps it from pass to pass.

    Attributes
    ----------
    map : the model's attention, as found by the dry run.
    plans : what to do at each site.
    wrapped : the modules whose forward is wrapped while the context is active; weakly, since a model may keep this.
    fast : whether stats may be fed by the fused kernels.
    setups : what was found out about modules that attend once in a pass, where no other context is active.
    """

    map: Map
    plans: dict[Site, Plan]
    wrapped: tuple[weakref.ReferenceType[nn.Module], ...]
    fast: bool = False
    setups: dict[nn.Module, CallSetup] = field(default_factory=dict)

    @functools.cached_property
    def only_root(self) -> bool:
        """Whether no module but the model itself is wrapped, and that only to see where passes begin.

        Not where attention between two sequences may have to know what the model was called with.
        """
        root = self.map.root
        private = root in self.map.softmax_modules or root in self.map.fused_layers
        crosses = any(len(set(site.streams)) > 1 for site in self.map.sites)
        return all(module is root for module in self.modules) and not private and not crosses

    @property
    def modules(self) -> list[nn.Module]:
        """Those of the wrapped modules that are still there, which they are as long as the model is."""
        return [module for each in self.wrapped if (module := each()) is not None]


class Session:
    """One active context on one model: what to do at each site, and which sites fired."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.map, self.plans, self.fast = attachment.map, attachment.plans, attachment.fast
        self.open = True
        self.fired: set[Site] = set()
        self.streams: dict[str, Stream] = {}
        self.targets: Tensor | None = None
        self.in_pass = False
        """Whether a forward pass of the whole model is running."""
        # By the modules themselves: the address of one that was freed may soon be that of another.
        self._counts: dict[nn.Module, int] = {}
        self._layer_counts: dict[nn.Module, int] = {}
        # What the layers of a pass have in common. The masks themselves are held until it ends, so that no other tensor
        # gets the id of one of them meanwhile.
        self._masks: dict[int, tuple[Tensor, tuple[Any, ...], MaskFacts]] = {}
        self._calls: dict[tuple[MaskFacts, tuple[str, int]], tuple[Call, Stream]] = {}

    def enter(self) -> None:
        """Make this the innermost session of this thread."""
        _entered.set((*active_sessions(), self))

    def leave(self) -> None:
        """End this session and no other, whichever were entered since, and in whichever thread this happens."""
        self.open = False
        self.end_pass()
        _entered.set(active_sessions())

    def repeated(self) -> Session:
        """A session that does from here on what this one does, except that the stats see nothing: they saw it once."""
        plans = {
            site: Plan(plan.edits, [(_Blind(stat.moment), heads) for stat, heads in plan.stats])
            for site, plan in self.plans.items()
        }
        repeated = Session(dataclasses.replace(self.attachment, plans=plans, setups={}))
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
        self.targets = targets
        self._counts.clear()
        self._layer_counts.clear()
        self._forget()
        self.in_pass = True

    def end_pass(self) -> None:
        """Forget the masks of the pass, which may be large."""
        self.in_pass = False
        self._forget()

    def _forget(self) -> None:
        self._masks.clear()
        self._calls.clear()

    def facts(self, mask: Tensor | None, shape: tuple[int, int], device: torch.device) -> MaskFacts:
        """The facts of a mask, looked up once a pass (:meth:`MaskFacts.of`)."""
        alone = self.map.facts.padding_sees_itself
        if mask is None:
            return MaskFacts.of(None, shape, device, padding_sees_itself=alone)
        reading = *shape, version_of(mask)
        known = self._masks.get(id(mask))
        # Nobody changes a mask within a pass. Where a part of the model is called alone, there is none.
        lasting = self.in_pass or is_noted(mask)
        if known is None or known[1] != reading or not lasting:
            if len(self._masks) >= MOST_MASKS:  # a part of the model is called again and again, without a pass
                self._forget()
            found = MaskFacts.of(mask, shape, device, padding_sees_itself=alone)
            known = self._masks[id(mask)] = mask, reading, found
        return known[2]

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
        self.module = module
        sessions = active_sessions()
        alone = sessions[0].attachment.setups if len(sessions) == 1 else None
        known = None if alone is None else alone.get(module)
        if known is not None:
            self.sessions, self.setup = sessions, known
            return
        self.sessions = tuple(session for session in sessions if session.knows(module))
        self.setup = _setup(self.sessions, module)
        if alone is not None and self.sessions and len(self.sessions[0].map.events[module]) == 1:
            alone[module] = self.setup

    @property
    def site(self) -> Site | None:
        """Where it happens; None where that is not attention over keys, or no session knows of it."""
        return self.setup.site

    @property
    def plan(self) -> Plan:
        """What all sessions want done."""
        return self.setup.plan

    @property
    def fast(self) -> bool:
        """Whether stats may be fed by the fused kernels."""
        return self.setup.fast

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done at this call."""
        return self.setup.idle

    def facts(self, mask: Tensor | None, shape: tuple[int, int], device: torch.device) -> MaskFacts:
        """See :meth:`Session.facts`."""
        return self.sessions[0].facts(mask, shape, device)

    def repeat(
        self,
        mask: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        arguments: Mapping[str, Any],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        """Let later calls like this one, whose place was looked up, be done as it is; see :class:`Repeatable`."""
        whole = "attrim_baked" not in self.module._modules  # constant heads take a part of the call
        if whole and self.setup.stream is not None and token_slots.get() is None and not mask.is_inference():
            name = self.setup.stream[0]
            layout = _layout_of(query, key, value, arguments.get("scaling"))
            stream = name, self.sessions[0].streams[name]
            self.setup.repeatable = Repeatable(mask, mask._version, frozenset(arguments), layout, stream, attend)

    def place(self, mask: MaskFacts, batch: int) -> Call:
        """A call with the positions, allowed cells and real tokens of this one, but without its tensors.

        For self-attention it is made once for all layers of a pass with the same mask, and its site is the first.

        Parameters
        ----------
        batch : number of examples.
        """
        stream = self.setup.stream
        if stream is None or token_slots.get() is not None:
            return self.call(mask, batch)
        calls, streams = self.sessions[0]._calls, self.sessions[0].streams
        known = calls.get((mask, stream))
        if known is None:
            call = self.call(mask, batch)
            calls[mask, stream] = call, streams[stream[0]]
            return call
        # Another text may have run since, where a part of the model is called again and again without a pass.
        call, streams[stream[0]] = known
        return call

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

    def call(self, mask: MaskFacts, batch: int, **seen: Any) -> Call:
        """The call with everything that is known about it; ``batch`` and ``seen`` as in :func:`make_call`."""
        assert self.site is not None
        session = self.sessions[0]
        return make_call(self.site, mask, session.streams, batch, targets=session.targets, **seen)


def _setup(sessions: tuple[Session, ...], module: nn.Module) -> CallSetup:
    """What the sessions want done at the next call of a module."""
    first, joined, fast = None, Plan(), True
    for session in sessions:
        site = session.next_site(module)
        if site is not None:
            first = first or site
            plan = session.plans.get(site, Plan())
            joined += plan
            fast &= session.fast or not plan.stats
    return CallSetup(first, joined, fast)
