"""Attention of heads from which edits remove cells, by a kernel that leaves those cells out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..core.tracing import is_symbolic
from ..edits.base import Edit
from ..kernels import flex, team, ways
from ..kernels.blocks import Edges
from ..kernels.rules import KeptSpans
from ..kernels.sparse import SIDE, PlanCost, SparsePlan
from .masks import MaskFacts, is_noted
from .session import Firing

Chosen = Sequence[tuple[Edit, tuple[int, ...]]]

STEP = 128
"""Plans of longer texts are made for lengths that are multiples of this, so that texts of many lengths share one."""
FEW = 1 << 20
"""Cells of a head up to which queries are reordered even where a rule needs no cells: those of 1024 tokens."""
MOST_KEPT = 512
"""Plans that are kept for an edit: some for each site."""
MOST_REPEATED = 256
"""Keys of the longest texts whose calls are repeated as the last one was."""
MOST_SIZES = 64
"""Sizes of texts whose plans are kept at a site."""
# By the first of the edits, so that plans go when it goes.
_plans: WeakKeyDictionary[Edit, dict[Any, SparsePlan | None]] = WeakKeyDictionary()
# Several threads may run one model: a second one that needs a plan waits for the first instead of making it, too.
_planning = threading.Lock()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    firing: Firing,
    mask: MaskFacts,
    arguments: Mapping[str, Any],
) -> Tensor | None:
    """Attention without the cells that the edits of a call drop.

    Parameters
    ----------
    query : ``[B, H, Q, D]``.
    key, value : ``[B, H or fewer, K, D]``.
    attention_mask, mask : what is allowed there, as the model says it and as it was read.
    firing : the call, whose edits drop cells and do nothing else.
    arguments : the others of the attention function, all of the standard kind.

    Returns
    -------
    ``[B, Q, H, D]``; None where the kernel does not apply and the reference must run: gradients, other devices and
    dtypes, masks with gaps, examples that are padded differently before their first token, tracers.
    """
    if team.differentiates(query, key, value) or is_symbolic():
        return None
    edges = mask.edges
    if edges is None or 0 in query.shape:
        return None
    if not query.device == key.device == value.device or not query.dtype == key.dtype == value.dtype:
        return None
    if not _leaves_out(query, value):
        return None
    plan = _plan(firing, mask, edges, len(query))
    if plan is None:
        return None
    scaling = scaling_of(query, arguments)
    if query.device.type == "cpu":
        if attention_mask is not None and is_noted(attention_mask) and _is_short_and_whole(mask, edges):
            together = ways.one_way(query, key, value, scaling, plan, edges)
            if together is not None:
                firing.repeat(attention_mask, query, key, value, arguments, together)
        return ways.attend(query, key, value, scaling, plan, edges, firing.site)
    return flex.attend_flex(query, key, value, scaling, plan, *edges.of_batch(len(query)))


def scaling_of(query: Tensor, arguments: Mapping[str, Any]) -> float:
    """What the products of queries and keys are multiplied with."""
    scaling = arguments.get("scaling")
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


def _is_short_and_whole(mask: MaskFacts, edges: Edges) -> bool:
    """Whether all self-attention with this mask attends alike, and it matters how long looking it up takes.

    Where the tokens of a text stand that a cache holds a part of is known from earlier steps, and not from its mask.
    """
    keys = mask.allowed.shape[-1]
    return keys <= MOST_REPEATED and mask.offsets == (0, 0) and edges.structure(keys) is not None


def _leaves_out(query: Tensor, value: Tensor) -> bool:
    """Whether there is something that leaves cells out on the device of queries and values."""
    if query.device.type == "cpu":
        compiled = team.available() and team.PATHS[team.path()] != "torch"
        return compiled and query.dtype in (torch.float32, torch.bfloat16)
    # Compiling for the few queries of a step of a generation costs more than it can gain.
    fits = query.shape[-1] in flex.SIZES and value.shape[-1] in flex.SIZES and query.shape[2] > SIDE
    return query.device.type == "cuda" and fits


def plan_costs(
    sizes: Mapping[Site, int], edits: Sequence[Edit], length: int, *, causal: bool | None = None
) -> dict[Site, tuple[PlanCost, ...]]:
    """What the plans of edits cost at each site for a text, without running the model.

    Parameters
    ----------
    sizes : the sites of a model, each with the numbers of one head's key.
    edits : those that remove cells, and no others.
    length : tokens of the text.
    causal : whether queries see no later keys (default: those of decoders do not).

    Returns
    -------
    for each site that the edits are about, the cost of each of its patterns, heads that no edit is about among them;
    ``functools.reduce(operator.add, costs)`` is that of the site. A site where an edit does more than removing cells
    runs without a plan and is not there.
    """
    chosen: dict[Site, list[tuple[Edit, tuple[int, ...]]]] = {}
    for edit in edits:
        edit.check(list(sizes))
        for site, heads in edit.select.resolve(list(sizes)).items():
            chosen.setdefault(site, []).append((edit, heads))
    found = {}
    for site, own in chosen.items():
        is_causal = site.role == "decoder" if causal is None else causal
        plan = make_plan(
            whole_call(site, tuple(range(site.heads)), (length, length)), own, reorder=True, causal=is_causal
        )
        if plan is not None:
            found[site] = plan.costs(sizes[site])
    return found


def whole_call(site: Site, heads: tuple[int, ...], size: tuple[int, int]) -> Call:
    """A call in which every query may see every key, at no memory."""
    whole = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, *size)
    return Call(site, whole, whole[0, :, :, 0], whole[0, :, 0], heads)


def _plan(firing: Firing, mask: MaskFacts, edges: Edges, batch: int) -> SparsePlan | None:
    """The plan of a call; a long text's serves all shorter ones."""
    site, edits, place = firing.site, firing.plan.edits, firing.place(mask, batch)
    assert site is not None
    queries, keys = mask.allowed.shape[-2:]
    if place.slots is not None or any(
        lead is not None and bool(lead.any()) for lead in (place.query_lead, place.key_lead)
    ):
        return None
    if place.position or place.key_position:
        # A step of a generation: its row is asked for once.
        return make_plan(replace(place, site=site), edits, reorder=False)
    # Keys after a query, which a pattern may keep because no text had them, must not make blocks larger.
    causal = queries == keys and not edges.ahead
    size = _planned(queries), _planned(keys)
    known = firing.setup.sparse_plans
    name = *size, causal
    if name in known:
        return known.get(name)  # where another thread has cleared them meanwhile, the reference computes this call
    if len(known) >= MOST_SIZES:
        known.clear()
    plan = known[name] = _shared_plan(site, edits, size, causal)
    return plan


def _planned(length: int) -> int:
    """The length that a text's plan is made for.

    Below ``STEP`` it is a power of two: the few queries of a short text lie scattered over the blocks of a long plan,
    and each of these blocks is computed as if it were full.
    """
    return -(-length // STEP) * STEP if length > STEP else max(SIDE, 1 << (length - 1).bit_length())


def _shared_plan(site: Site, edits: Chosen, size: tuple[int, int], causal: bool) -> SparsePlan | None:
    """The plan of edits for texts up to a size; kept as long as the first edit is, for other contexts, too."""
    others = tuple((edit, heads) for edit, heads in edits[1:])
    name = (site, edits[0][1], others, size, causal)
    with _planning:
        known = _plans.setdefault(edits[0][0], {})
        if name not in known:
            if len(known) >= MOST_KEPT:
                known.clear()
            call = whole_call(site, tuple(range(site.heads)), size)
            plan = make_plan(call, edits, reorder=True, causal=causal)
            # Sites of the same pattern share a plan, which for long texts has megabytes.
            known[name] = next((other for other in known.values() if plan is not None and plan.equals(other)), plan)
        return known[name]


def make_plan(call: Call, edits: Chosen, reorder: bool, causal: bool = False) -> SparsePlan | None:
    """The plan of a call, by rule where that is possible; None where an edit does more than removing cells.

    Parameters
    ----------
    edits : with the heads that each is about.
    reorder : see :meth:`SparsePlan.of`; plans of long texts that rules make keep the order.
    causal : leave out the keys after a query's own position.
    """
    about = [(edit, [place for place, head in enumerate(call.heads) if head in set(heads)]) for edit, heads in edits]
    short = call.allowed.shape[-2] * call.allowed.shape[-1] <= FEW
    spans: Iterable[KeptSpans] | None = _by_rule(call, about) if short else _by_rule_of_long_texts(call, about)
    if spans is not None:
        return SparsePlan.by_rule(spans, reorder=reorder and short, causal=causal)
    kept = torch.ones(len(call.heads), *call.allowed.shape[-2:], dtype=torch.bool)
    for edit, axis in about:
        dropped = edit.drops(call.for_heads(axis))
        if dropped is None or dropped.shape[0] != 1:
            return None
        kept[axis] &= ~dropped[0].cpu()
    return SparsePlan.of(kept, reorder=reorder, causal=causal)


def _by_rule(call: Call, about: Sequence[tuple[Edit, list[int]]]) -> list[KeptSpans] | None:
    """What each head of a call keeps, where each of the edits says it by rule."""
    of_heads: list[list[KeptSpans]] = [[] for _ in call.heads]
    for edit, axis in about:
        kept = edit.kept_spans(call.for_heads(axis))
        if kept is None:
            return None
        for number, head in enumerate(axis):
            of_heads[head].append(kept[number if len(kept) > 1 else 0])
    everything = KeptSpans.everything((call.allowed.shape[-2], call.allowed.shape[-1]))
    # Heads of the same rules share the object, and so their plan.
    joined: dict[tuple[int, ...], KeptSpans] = {}
    for own in of_heads:
        name = tuple(map(id, own))
        if name not in joined:
            joined[name] = KeptSpans.intersection(own or [everything])
    return [joined[tuple(map(id, own))] for own in of_heads]


def _by_rule_of_long_texts(call: Call, about: Sequence[tuple[Edit, list[int]]]) -> Iterator[KeptSpans] | None:
    """As :func:`_by_rule`, but one head at a time, because the spans of all heads may have a hundred megabytes."""
    # Whether there is a rule, and whether it is one for all heads, depends on the edit and the text, not on the head.
    of_all: list[KeptSpans | None] = []
    for edit, axis in about:
        kept = edit.kept_spans(call.for_heads(axis[:2]))
        if kept is None:
            return None
        of_all.append(kept[0] if len(kept) == 1 else None)

    def of_head(head: int) -> KeptSpans:
        parts = []
        for (edit, axis), known in zip(about, of_all, strict=True):
            if head in axis:
                kept = [known] if known is not None else edit.kept_spans(call.for_heads([head]))
                assert kept is not None
                parts.append(kept[0])
        return KeptSpans.intersection(parts or [KeptSpans.everything((call.allowed.shape[-2], call.allowed.shape[-1]))])

    return map(of_head, range(len(call.heads)))
