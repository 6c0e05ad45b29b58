"""One pass forward and one back: gradient x attention of every head, kept, or computed again block by block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..core.call import Call
from ..core.modes import frozen, in_mode
from ..core.site import Site
from ..edits.base import Edit
from ..errors import SiteError
from ..scores.lrp import relevance_of
from ..scores.relevance import Relevance, Rules
from ..scores.taps import OutputTap, Tap, WeightTap, gradients
from ..scores.target import unlabelled
from .readout import Answered, Explained, answered, rows_read

BLOCK = 2**22
"""Cells of attention that are taken at once."""


class Products(Protocol):
    """Gradient x attention of one site."""

    @property
    def heads(self) -> int:
        """Number of heads."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        ...

    def rows(self, first: int, last: int) -> Tensor:
        """Some queries, with their sign: ``[B, H, last - first, K]`` in float64."""
        ...

    def totals(self) -> Tensor:
        """The sum over the cells of each head, ``[B, H]`` in float64."""
        ...


@dataclass(frozen=True, eq=False)
class StoredProducts:
    """From attention (or its relevance) and gradient ``[B, H, Q, K]`` that were kept."""

    attention: Tensor
    gradient: Tensor
    score: Tensor | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.attention.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.attention.shape[2], self.attention.shape[3]

    def rows(self, first: int, last: int) -> Tensor:
        """See :class:`Products`."""
        return self.attention[:, :, first:last].double() * self.gradient[:, :, first:last].double()

    def totals(self) -> Tensor:
        """See :class:`Products`."""
        return (self.attention * self.gradient).double().sum((-2, -1)) if self.score is None else self.score


@dataclass(frozen=True, eq=False)
class RecomputedProducts:
    """From queries, keys and values, and the output ``[B, H, Q, D]`` with its gradient: no attention is kept."""

    call: Call
    output: Tensor
    gradient: Tensor

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.output.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.output.shape[2], self._key.shape[2]

    def rows(self, first: int, last: int) -> Tensor:
        """See :class:`Products`."""
        query, value, scaling = self.call.query, self.call.value, self.call.scaling
        assert query is not None
        assert value is not None
        assert scaling is not None
        scores = query.detach()[:, :, first:last] @ self._repeated(self._key).mT * scaling
        allowed = self.call.allowed[:, :, first:last]
        # A query that may attend to nothing is padding, and has no gradient.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        attention = torch.softmax(scores.double(), dim=-1).masked_fill_(~allowed, 0)
        gradient = self.gradient[:, :, first:last] @ self._repeated(value.detach()).mT
        return attention.mul_(gradient)

    def totals(self) -> Tensor:
        """See :class:`Products`."""
        return (self.output * self.gradient).double().sum((-2, -1))

    @property
    def _key(self) -> Tensor:
        assert self.call.key is not None
        return self.call.key.detach()

    def _repeated(self, tensor: Tensor) -> Tensor:
        """Keys or values that groups of heads share, once for every head."""
        return tensor.repeat_interleave(self.heads // tensor.shape[1], dim=1)


def blocks(products: Products, examples: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries whose cells fit in bounded memory."""
    queries, keys = products.shape
    step = max(1, BLOCK // max(1, examples * products.heads * keys))
    yield from ((first, min(first + step, queries)) for first in range(0, queries, step))


@dataclass(frozen=True, eq=False)
class CallTap(Tap):
    """Keeps the calls that tensors come from, too."""

    calls: dict[str, Call] = field(default_factory=dict)

    def keep(self, tensor: Tensor, call: Call) -> Tensor:
        """See :meth:`Tap.keep`."""
        self.calls[call.site.name] = call
        return super().keep(tensor, call)


class KeptOutputs(CallTap, OutputTap):
    """Keeps the outputs of heads, and their calls."""


class KeptWeights(CallTap, WeightTap):
    """Keeps the attention weights, and their calls."""


@dataclass(frozen=True, eq=False)
class Watched:
    """What one pass showed.

    Attributes
    ----------
    found : what is explained.
    rows : by sequence ``[B, R, L]``, the rows that it is read from (:func:`rows_read`).
    products : by site name; without sites that have no influence on the answer.
    real : by sequence bool ``[B, L]``, tokens that are not padding.
    """

    found: Answered
    rows: dict[str, Tensor]
    products: dict[str, Products]
    real: dict[str, Tensor]

    @property
    def lengths(self) -> dict[str, int]:
        """Number of tokens of each sequence."""
        return {stream: real.shape[1] for stream, real in self.real.items()}

    @property
    def scores(self) -> dict[str, Tensor]:
        """By site name ``[B, H]``: the sum of gradient x attention of each head."""
        return {name: products.totals() for name, products in self.products.items()}


class Watcher:
    """Runs a model and keeps what relevance needs.

    Parameters
    ----------
    sites : of the model.
    use : ``attention``, or ``lrp`` for the relevance that the rules give to it.
    stored : keep all attention; otherwise it is computed again from queries, keys and values where that is possible.
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[Site], explained: Explained, use: str, rules: Rules, stored: bool
    ) -> None:
        self.model, self.sites, self.explained, self.use, self.rules = model, sites, explained, use, rules
        self.stored = stored or use == "lrp" or any(site.route != "interface" for site in sites)

    def __call__(
        self, batch: Mapping[str, Tensor], edits: Sequence[Edit] = (), answers: Tensor | None = None
    ) -> Watched:
        """Run a batch with edits; ``answers`` as in :func:`answered`."""
        if not self.stored:
            watched = self._outputs(batch, edits, answers)
            if watched is not None:
                return watched
            self.stored = True  # attention with soft caps, sinks or position biases cannot be computed again
        return self._weights(batch, edits, answers)

    def _outputs(self, batch: Mapping[str, Tensor], edits: Sequence[Edit], answers: Tensor | None) -> Watched | None:
        tap = KeptOutputs()
        with self._attached(*edits, tap):
            output = self.model(**unlabelled(batch))
            if any(call.scaling is None for call in tap.calls.values()):
                return None
            real = self._real(batch, tap.tensors, tap.calls)
            found = answered(self.model, output, batch, self.explained, answers)
            rows = rows_read(self.model, output, batch, found, real, self.explained)
            slopes = gradients(found.number().sum(), tap.tensors)
        products: dict[str, Products] = {
            name: RecomputedProducts(tap.calls[name], tap.tensors[name].detach(), slope)
            for name, slope in slopes.items()
        }
        return self._watched(found, rows, products, real)

    def _weights(self, batch: Mapping[str, Tensor], edits: Sequence[Edit], answers: Tensor | None) -> Watched:
        tap = KeptWeights()
        with self._attached(*edits, tap):
            output = self.model(**unlabelled(batch))
            real = self._real(batch, tap.tensors, tap.calls)
            found = answered(self.model, output, batch, self.explained, answers)
            rows = rows_read(self.model, output, batch, found, real, self.explained)
            slopes = gradients(found.number().sum(), tap.tensors)
            attention = {name: tap.tensors[name].detach() for name in slopes}
            scores = dict.fromkeys(slopes)
            if self.use == "lrp":
                scores |= {name: StoredProducts(attention[name], slope).totals() for name, slope in slopes.items()}
                attention = self._relevance(batch, tap, found.answers)
        products: dict[str, Products] = {
            name: StoredProducts(attention[name], slope, scores[name]) for name, slope in slopes.items()
        }
        return self._watched(found, rows, products, real)

    def _relevance(self, batch: Mapping[str, Tensor], tap: KeptWeights, answers: Tensor) -> dict[str, Tensor]:
        """The relevance ``[B, H, Q, K]`` of attention by site name."""
        tap.clear()
        run = Relevance(self.model, self.rules)
        found = answered(self.model, run(**unlabelled(batch)), batch, self.explained, answers)
        return relevance_of(found.number(), tap, run)[0]

    @contextlib.contextmanager
    def _attached(self, *edits: Edit) -> Iterator[None]:
        quiet = in_mode(self.model, training=False), frozen(self.model), torch.enable_grad()
        with contextlib.ExitStack() as stack:
            for context in (*quiet, attach(self.model, edits)):
                stack.enter_context(context)
            yield

    def _real(
        self, batch: Mapping[str, Tensor], tensors: Mapping[str, Tensor], calls: Mapping[str, Call]
    ) -> dict[str, Tensor]:
        """The real tokens of every sequence; one whose length changes on the way is refused."""
        real: dict[str, Tensor] = {}
        for site in self.sites:
            call, examples = calls[site.name], len(tensors[site.name])
            for stream, tokens in zip(site.streams, (call.queries, call.keys), strict=True):
                known = real.get(stream)
                if known is None:
                    real[stream] = tokens.expand(examples, -1)
                elif known.shape != (examples, tokens.shape[1]):
                    kind = getattr(getattr(self.model, "config", None), "model_type", type(self.model).__name__)
                    raise SiteError(
                        f"At {site.name} the sequence of {kind} has {examples} x {tokens.shape[1]} tokens, and "
                        f"{known.shape[0]} x {known.shape[1]} before, so relevance cannot be carried through its "
                        "layers; maps need an architecture whose sequences keep their length."
                    )
        mask = batch.get("decoder_attention_mask")
        if mask is not None and "encoder" in real and real["decoder"].shape == mask.shape:
            real["decoder"] = real["decoder"] & mask.bool()  # FSMT with a cache masks no padding there
        return real

    def _watched(
        self, found: Answered, rows: dict[str, Tensor], products: dict[str, Products], real: dict[str, Tensor]
    ) -> Watched:
        """What was seen, without the graph, which would keep everything, and without sequences that are not read."""
        found = found._replace(places=found.places._replace(logits=found.places.logits.detach()))
        if not any(len(set(site.streams)) == 2 for site in self.sites):
            real = {stream: tokens for stream, tokens in real.items() if stream in rows}
        read = {site.name for site in self.sites if set(site.streams) <= set(real)}
        return Watched(found, rows, {name: one for name, one in products.items() if name in read}, real)
