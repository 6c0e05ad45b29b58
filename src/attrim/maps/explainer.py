"""Relevance maps: which tokens, regions and patches an answer comes from (https://arxiv.org/abs/2103.15679).

One pass forward and one back for a batch give the attention of every head and its gradient. Heads are averaged, and
relevance is carried through the layers (:mod:`attrim.maps.recursion`). Where sequences do not attend to each other,
only the row that is read is carried, from the last layer down, and neither attention nor relevance is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..attention.discover import find_sites
from ..core.modes import device_of, in_mode
from ..core.site import Site
from ..edits.gate import Gate
from ..errors import ParameterError, SelectionError, ShapeError
from ..scores.relevance import Rules
from ..scores.target import unlabelled
from .parts import MapPart, parts_of
from .passes import Products, Watched, Watcher, blocks
from .readout import Answered, AnswerKind, Explained, answered, reading_of
from .recursion import Crossing, CrossRule, Propagation

MaskIn = Literal["aggregation", "model", "both"]
"""Where heads that are left out are missing: in the average over heads (the original), or in the model, which is run
and differentiated without them. A head that the model does not have adds nothing to the average, so ``both`` gives the
same as ``model``."""


@dataclass(frozen=True, kw_only=True)
class MapOptions(Explained):
    """How relevance is computed; see :class:`Explained` for what is explained.

    Parameters
    ----------
    use : what the gradient is multiplied by: attention, or the relevance that LRP gives to it.
    rules : of LRP.
    normalize, self_in_cross_rule, as_coded : see :class:`CrossRule`; for sequences that attend to each other.
    start_layer : self-attention of the layers below is left out; negative numbers count from the end.
    mask_in : see :data:`MaskIn`.
    form : ``row`` carries only the row that is read, ``matrix`` all rows, with all attention kept; empty takes the row
        where that is possible.
    """

    use: Literal["attention", "lrp"] = "attention"
    rules: Rules = "original"
    normalize: bool = True
    self_in_cross_rule: bool = True
    as_coded: bool = False
    start_layer: int = 0
    mask_in: MaskIn = "aggregation"
    form: Literal["", "row", "matrix"] = ""


@dataclass(frozen=True, eq=False)
class Maps:
    """Relevance of the examples of a batch, at one or several levels of heads that are left out.

    Attributes
    ----------
    levels : share of the heads that is left out at each level.
    relevance : by part (``tokens``, ``regions``, ``patches``, ``source``, ``target``) float64 ``[V, B, L]``.
    parts : what these parts are.
    real : by part bool ``[B, L]``, what is not padding.
    answers : int64 ``[B, P]``, the answers that are explained.
    answer_kind : what they are (:data:`AnswerKind`).
    counted : bool ``[B, P]``, the places that count.
    predicted : int64 ``[V, B, P]``, what the model answers without the heads.
    logits, probabilities : float64 ``[V, B]``, of the explained answers (their mean, where there are several places).
    scores : by site float64 ``[B, H]``, gradient x attention of every head that has influence on the answer.
    kept : by site bool ``[V, B, H]``, heads that are not left out.
    """

    levels: tuple[float, ...]
    relevance: dict[str, Tensor]
    parts: dict[str, MapPart]
    real: dict[str, Tensor]
    answers: Tensor
    answer_kind: AnswerKind
    counted: Tensor
    predicted: Tensor
    logits: Tensor
    probabilities: Tensor
    scores: dict[str, Tensor]
    kept: dict[str, Tensor]

    def of(self, part: str, example: int) -> Tensor:
        """The relevance ``[V, L]`` of one part of one example, without padding."""
        return self.relevance[part][:, example, self.real[part][example]]

    def empty(self, part: str) -> Tensor:
        """Bool ``[V, B]``: maps of a part that are zero everywhere, or hold what is not a number."""
        found = self.relevance[part]
        return (found == 0).all(-1) | ~found.isfinite().all(-1)


def keep_highest(scores: Mapping[str, Tensor], levels: Sequence[float]) -> dict[str, Tensor]:
    """Heads that are left when, at each level, a share of the lowest scores of each example is left out.

    Parameters
    ----------
    scores : by site ``[B, H]``; all heads of all sites are in one order for each example.
    levels : shares from 0 to 1; ``round(share * heads)`` heads are left out.

    Returns
    -------
    by site bool ``[V, B, H]``.
    """
    for level in levels:
        if not 0 <= level <= 1:
            raise ParameterError(f"A level is the share of heads that is left out, from 0 to 1, not {level}.")
    names, widths = list(scores), [tensor.shape[1] for tensor in scores.values()]
    every = torch.cat([scores[name] for name in names], dim=1)
    ranks = every.argsort(dim=1, stable=True).argsort(dim=1)
    kept = torch.stack([ranks >= round(level * every.shape[1]) for level in levels])
    return dict(zip(names, kept.split(widths, dim=-1), strict=True))


class Explainer:
    """Explains the answers of a model, batch by batch.

    Parameters
    ----------
    model : any model whose sites are found and whose architecture is in the table (:mod:`attrim.maps.readout`).
    example : arguments of one forward pass, where attrim cannot make one up.

    Examples
    --------
    >>> maps = Explainer(model)(batch, levels=(0, 0.4, 0.6, 0.9))
    >>> maps.of("tokens", example=0)
    """

    def __init__(self, model: nn.Module, options: MapOptions | None = None, example: Any = None) -> None:
        self.model, self.options = model, options or MapOptions()
        self.device = device_of(model)
        reading_of(model, self.options.row)
        self.sites = find_sites(model, example)
        self.crosses = any(len(set(site.streams)) == 2 for site in self.sites)
        self._check_options()
        self.used = [site for site in self.sites if _from_layer(site, self.sites, self.options.start_layer)]
        stored = self.options.form == "matrix"
        self.watch = Watcher(model, self.sites, self.options, self.options.use, self.options.rules, stored)

    def __call__(self, batch: Mapping[str, Tensor], levels: Sequence[float] = (0.0,)) -> Maps:
        """Maps of a batch with the lowest heads of each example left out, by gradient x attention.

        Parameters
        ----------
        batch : dict of tensors for the model, and labels, where the target is the label.
        levels : shares of heads that are left out.
        """
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        whole = self.watch(batch)
        return self._maps(batch, whole, keep_highest(whole.scores, levels), tuple(levels))

    def with_heads(self, batch: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Maps:
        """Maps of a batch with some heads left out; the levels are the mean shares of heads that are missing.

        Parameters
        ----------
        kept : by site ``[B, H]`` or ``[V, B, H]``, 0 or False for heads that are left out; other sites keep all.
        """
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        whole = self.watch(batch)
        examples, heads = len(whole.found.answers), {site.name: site.heads for site in self.sites}
        given = {name: (mask if mask.ndim == 3 else mask[None]).to(self.device) != 0 for name, mask in kept.items()}
        levels = {len(mask) for mask in given.values()} or {1}
        for name, mask in given.items():
            if name not in heads:
                raise SelectionError(f"The model has no site {name!r}; list them with attrim.sites(model).")
            if len(levels) > 1 or mask.shape[1:] != (examples, heads[name]):
                raise ShapeError(
                    f"The heads to keep at {name!r} have the shape {list(mask.shape)}; give [levels, {examples}, "
                    f"{heads[name]}], the same number of levels at every site."
                )
        every = {
            name: torch.ones(*levels, *scores.shape, dtype=torch.bool, device=self.device)
            for name, scores in whole.scores.items()
        }
        masks = every | given
        missing = torch.cat([~mask for mask in masks.values()], dim=-1).double().mean((1, 2))
        return self._maps(batch, whole, masks, tuple(missing.tolist()))

    def answer(self, batch: Mapping[str, Tensor], answers: Tensor | None = None) -> Answered:
        """What the model answers, without an explanation.

        Parameters
        ----------
        answers : int64 ``[B, P]``, the answers whose numbers are wanted; by default those that the target means.
        """
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        answers = None if answers is None else answers.to(self.device)
        with in_mode(self.model, training=False), torch.no_grad():
            return answered(self.model, self.model(**unlabelled(batch)), batch, self.options, answers)

    def _maps(
        self, batch: Mapping[str, Tensor], whole: Watched, kept: dict[str, Tensor], levels: tuple[float, ...]
    ) -> Maps:
        if self.options.mask_in == "aggregation":
            relevance = self._carried(whole, kept)
        else:
            by_level = [self._pruned(batch, whole, kept, number) for number in range(len(levels))]
            relevance = {stream: torch.cat([one[stream] for one in by_level]) for stream in by_level[0]}
        answered = [self._answer(batch, whole, kept, number) for number in range(len(levels))]
        parts = parts_of(self.model, batch, {stream: whole.lengths[stream] for stream in relevance})
        return Maps(
            levels=levels,
            relevance={name: part.cut(relevance[part.stream]).cpu() for name, part in parts.items()},
            parts=parts,
            real={name: part.cut(whole.real[part.stream]).cpu() for name, part in parts.items()},
            answers=whole.found.answers.cpu(),
            answer_kind=whole.found.kind,
            counted=whole.found.places.counted.cpu(),
            predicted=torch.stack([each.places.logits.argmax(-1) for each in answered]).cpu(),
            logits=torch.stack([each.number() for each in answered]).double().cpu(),
            probabilities=torch.stack([each.probability() for each in answered]).double().cpu(),
            scores={name: values.cpu() for name, values in whole.scores.items()},
            kept={name: mask.cpu() for name, mask in kept.items()},
        )

    def _pruned(
        self, batch: Mapping[str, Tensor], whole: Watched, kept: Mapping[str, Tensor], number: int
    ) -> dict[str, Tensor]:
        """Relevance ``[1, B, L]`` by sequence, of the model that is differentiated without heads."""
        watched = self.watch(batch, [self._gate(kept, number)], whole.found.answers)
        return self._carried(watched, {name: mask[number : number + 1] for name, mask in kept.items()})

    def _answer(self, batch: Mapping[str, Tensor], whole: Watched, kept: Mapping[str, Tensor], number: int) -> Answered:
        """What the model answers without the heads that a level leaves out."""
        if all(bool(mask[number].all()) for mask in kept.values()):
            return whole.found
        with attach(self.model, [self._gate(kept, number)]):
            return self.answer(batch, whole.found.answers)

    def _gate(self, kept: Mapping[str, Tensor], number: int) -> Gate:
        """The edit that switches off the heads that a level leaves out."""
        factors: dict[str, float | Tensor] = {site.name: 1.0 for site in self.sites}
        return Gate(factors | {name: mask[number].float() for name, mask in kept.items()})

    def _carried(self, watched: Watched, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Relevance ``[V, B, L]`` of what is read, by sequence."""
        by_matrix = self.crosses or self.options.form == "matrix"
        return self._by_matrix(watched, kept) if by_matrix else self._by_row(watched, kept)

    def _by_row(self, watched: Watched, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From the last layer down: the row that is read, times every layer's average."""
        carried: dict[str, Tensor] = {}
        levels = _levels(kept)
        for stream, start in watched.rows.items():
            rows = start.expand(levels, *start.shape)
            for site in reversed(self.used):
                if site.streams == (stream, stream) and site.name in watched.products:
                    rows = rows + _times_average(rows, watched.products[site.name], kept[site.name])
            carried[stream] = _without_start(rows, start)
        return carried

    def _by_matrix(self, watched: Watched, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From the first layer up: all rows of all sequences."""
        options, examples = self.options, len(watched.found.answers)
        rule = CrossRule(options.normalize, options.self_in_cross_rule, options.as_coded)
        leading = (_levels(kept), examples)
        matrices = Propagation(watched.lengths, leading, rule, watched.real, self.device)
        together: list[Crossing] = []
        for site in self.used:
            if site.name not in watched.products:
                continue
            average = _average(watched.products[site.name], kept[site.name])
            query, key = site.streams
            if query != key:
                together.append(Crossing(query, key, average))
                continue
            matrices.attend_across(together)
            together = []
            matrices.attend_self(query, average)
        matrices.attend_across(together)
        carried: dict[str, Tensor] = {}
        for stream, start in watched.rows.items():
            carried[stream] = _without_start(start @ matrices.relevance[stream, stream], start)
            if self.crosses:
                others = [other for other in watched.lengths if other != stream]
                carried |= {other: (start @ matrices.relevance[stream, other]).mean(-2) for other in others}
        return carried

    def _check_options(self) -> None:
        options, usual, kind = self.options, MapOptions(), type(self.model).__name__
        if self.crosses and options.form == "row":
            raise ParameterError(
                f"The sequences of {kind} attend to each other, so a row cannot be carried alone; leave form out."
            )
        for name in ("normalize", "self_in_cross_rule", "as_coded"):
            if getattr(options, name) != getattr(usual, name) and not self.crosses:
                raise ParameterError(
                    f"{name} is about sequences that attend to each other, and those of {kind} do not; leave it out."
                )
        if options.rules != usual.rules and options.use != "lrp":
            raise ParameterError(f"rules={options.rules!r} is about LRP; give use='lrp' too, or leave it out.")


def _from_layer(site: Site, sites: Sequence[Site], start: int) -> bool:
    """Whether a site is not below the layer at which maps begin."""
    if len(set(site.streams)) == 2:
        return True
    depth = max(other.layer for other in sites if other.role == site.role) + 1
    if not -depth <= start < depth:
        raise ParameterError(f"start_layer={start} is not a layer: {site.role!r} has {depth}, numbered from 0.")
    return site.layer >= (start if start >= 0 else depth + start)


def _levels(kept: Mapping[str, Tensor]) -> int:
    return len(next(iter(kept.values())))


def _times_average(rows: Tensor, products: Products, kept: Tensor) -> Tensor:
    """Rows ``[V, B, R, Q]`` times the average ``[V, B, Q, K]`` of the heads that are kept ``[V, B, H]``."""
    total = rows.new_zeros(*rows.shape[:3], products.shape[1])
    for first, last in blocks(products, rows.shape[1]):
        part = rows[..., first:last]
        if bool(part.any()):  # of the last layer only the row that is read counts
            positive = products.rows(first, last).clamp_(min=0)
            total += torch.einsum("vbrq,vbh,bhqk->vbrk", part, kept.double(), positive)
    return total / products.heads


def _average(products: Products, kept: Tensor) -> Tensor:
    """The average ``[V, B, Q, K]`` of the positive cells over the heads that are kept ``[V, B, H]``."""
    parts = [
        torch.einsum("vbh,bhqk->vbqk", kept.double(), products.rows(first, last).clamp_(min=0))
        for first, last in blocks(products, kept.shape[1])
    ]
    return torch.cat(parts, dim=-2) / products.heads


def _without_start(rows: Tensor, start: Tensor) -> Tensor:
    """Rows ``[V, B, R, L]`` without what a token is to itself, averaged to ``[V, B, L]``.

    The entry of the token that is read becomes 0. A row that mixes several tokens loses what it started with.
    """
    return torch.where(start == 1, 0, rows - start).mean(-2)
