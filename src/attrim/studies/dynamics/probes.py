"""What a model's attention looks at (alpha), what each key argues for (beta), and what each input is worth (delta).

All of them are read for the right answer, with dropout off. A batch has ``input_ids [B, K]``, ``attention_mask`` and
``labels`` (``[B]`` of a classifier, ``[B, T]`` of an encoder-decoder model or a language model), as tasks give them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...attention.context import attach, edit
from ...attention.prefix import Prefix
from ...core.call import Call
from ...core.modes import device_of, in_mode
from ...core.site import Select, Site
from ...edits.base import Edit
from ...edits.gate import Gate
from ...errors import DataError, ParameterError
from ...models.recurrent import RecurrentClassifier, RecurrentSeq2Seq
from ...stats.base import Stat
from .readings import Readings

Batch = Mapping[str, Tensor]
Others = Literal["as-they-are", "ablated"]
IGNORED = -100
MOST_LOGITS = 20_000_000
"""How many logits beta holds at a time."""
MOST_ROWS = 128
"""How many texts a forward pass has that reads beta of a head: each with another key to attend to."""


class LastWeights(Stat):
    """Keeps the weights of the last call of every site."""

    moment = "weights"

    def __init__(self) -> None:
        self.weights: dict[Site, Tensor] = {}
        self.calls: dict[Site, Call] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`."""
        self.weights[call.site], self.calls[call.site] = tensor.detach(), call


@dataclass
class Gathering:
    """Readings that grow batch by batch."""

    matrices: list[Any] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, scores: Tensor, mask: Tensor, batch: Batch) -> None:
        """Add scores and their mask ``[B, Q, K]``; a batch may say where its examples belong, as ``index [B]``."""
        index = batch.get("index")
        first = len(self.matrices)
        self.places += range(first, first + len(scores)) if index is None else index.tolist()
        self.matrices += list(scores.detach().cpu().double().numpy())
        self.masks += list(mask.expand_as(scores).cpu().numpy())

    def readings(self) -> Readings:
        """All of them, in the order of their places."""
        order = np.argsort(self.places, kind="stable")
        return Readings.of([self.matrices[place] for place in order], [self.masks[place] for place in order])


def _inputs(batch: Batch, model: nn.Module) -> dict[str, Tensor]:
    """The batch where the model is; the labels of a language model are moved, so that each stands at its prediction."""
    device = device_of(model)
    inputs = {name: value.to(device) for name, value in batch.items() if name != "index"}
    if "labels" not in inputs or "input_ids" not in inputs:
        raise DataError(f"A batch needs input_ids and labels for probes; it has {', '.join(inputs)}.")
    if _predicts_next(model, inputs):
        labels = inputs["labels"]
        inputs["labels"] = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)
    return inputs


def _predicts_next(model: nn.Module, inputs: Batch) -> bool:
    """Whether the model is a language model without encoder."""
    alone = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    generates: Callable[[], bool] = getattr(model, "can_generate", lambda: False)
    return alone and inputs["labels"].ndim == 2 and generates()


def _without_labels(inputs: Batch, model: nn.Module) -> dict[str, Tensor]:
    """The inputs of a forward pass; a decoder reads the labels, moved by one."""
    given = {name: value for name, value in inputs.items() if name != "labels"}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and "decoder_input_ids" not in given:
        labels = inputs["labels"]
        given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
        given["decoder_attention_mask"] = (labels != IGNORED).long()
    return given


def key_mask(inputs: Batch) -> Tensor:
    """Bool ``[B, K]``: the real keys of a batch."""
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask.bool()


def cells(inputs: Batch, *, causal: bool = False) -> Tensor:
    """Bool ``[B, Q, K]``: the real predictions and keys of a batch."""
    labels, keys = inputs["labels"], key_mask(inputs)
    if labels.ndim == 1:
        return keys[:, None]
    found = (labels != IGNORED)[:, :, None] & keys[:, None]
    return found.tril() if causal else found


def gold_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-probability of every right answer ``[B, Q]`` from logits ``[B, C]`` or ``[B, Q, V]``; 0 without label."""
    if logits.ndim == 2:
        logits, labels = logits[:, None], labels[:, None]
    chosen = labels.clamp(min=0)[..., None]
    scores = logits.float().log_softmax(-1).gather(-1, chosen)[..., 0]
    return scores.masked_fill(labels == IGNORED, 0.0)


def predictions(model: nn.Module, inputs: Batch) -> tuple[Tensor, Tensor]:
    """The logits of every prediction, and the labels that go with them."""
    logits = model(**_without_labels(inputs, model)).logits
    return logits, inputs["labels"]


@dataclass
class Performance:
    """Right answers and losses, of examples or of target tokens, the true ones before each given."""

    right: int = 0
    total: int = 0
    loss: float = 0.0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch of predictions."""
        known = labels != IGNORED
        self.right += int(((logits.argmax(-1) == labels) & known).sum())
        self.total += int(known.sum())
        self.loss -= float(gold_scores(logits, labels).sum())

    def numbers(self) -> dict[str, float]:
        """Accuracy as a share, and perplexity."""
        if not self.total:
            raise DataError("There is no label to compare answers with.")
        return {"acc": self.right / self.total, "perplexity": math.exp(min(self.loss / self.total, 80.0))}


def performance(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Accuracy as a share, and perplexity, of examples or of target tokens."""
    found = Performance()
    with in_mode(model, training=False), torch.no_grad():
        for batch in batches:
            found.add(*predictions(model, _inputs(batch, model)))
    return found.numbers()


def alpha(model: nn.Module, batches: Iterable[Batch], select: Select | None = None) -> Readings:
    """The attention of the one chosen head, for each prediction.

    Where a classifier has more queries than predictions (a Transformer), this is what its keys get on average.
    """
    (found,) = alphas(model, batches, select or Select()).values()
    return found


def alphas(model: nn.Module, batches: Iterable[Batch], select: Select) -> dict[tuple[Site, int], Readings]:
    """:func:`alpha` of every chosen head."""
    gathered: dict[tuple[Site, int], Gathering] = {}
    watched = LastWeights()
    with in_mode(model, training=False), torch.no_grad():
        for batch in batches:
            inputs = _inputs(batch, model)
            given = _without_labels(inputs, model)
            with attach(model, stats=[watched], select=select):
                model(**given)
            for site, weights in watched.weights.items():
                call = watched.calls[site]
                for place, head in enumerate(call.heads):
                    one = weights[:, place].float()
                    if inputs["labels"].ndim == 1 and one.shape[1] > 1:
                        real = call.queries.to(one.dtype)[:, :, None]
                        one = (one * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
                    mask = cells(inputs, causal=site.role == "decoder")
                    gathered.setdefault((site, head), Gathering()).add(one, mask, batch)
    return {head: one.readings() for head, one in gathered.items()}


@dataclass(frozen=True)
class Observed:
    """What one forward pass of a recurrent network with one head shows of a batch.

    Attributes
    ----------
    logits : of every prediction, ``[B, C]`` or ``[B, T, V]``.
    alpha, beta : of every prediction and key, ``[B, Q, K]``.
    """

    logits: Tensor
    alpha: Tensor
    beta: Tensor


def observe(model: nn.Module, inputs: Batch) -> Observed:
    """Alpha, beta and the answers of a recurrent network, from one forward pass."""
    if not isinstance(model, (RecurrentClassifier, RecurrentSeq2Seq)):
        raise ParameterError(
            f"{type(model).__name__} has no closed form of beta; use betas() for the heads of a Transformer."
        )
    attention = model.pooling if isinstance(model, RecurrentClassifier) else model.cross_attention
    given: list[tuple[Tensor, ...]] = []
    handle = attention.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    watched = LastWeights()
    try:
        with attach(model, stats=[watched]):
            logits, _ = predictions(model, inputs)
    finally:
        handle.remove()
    (weights,) = watched.weights.values()
    first, second, *_ = given[-1]  # the first time, finding the sites runs the model, too
    if isinstance(model, RecurrentClassifier):
        found = classifier_beta(second, inputs["labels"])
    else:
        found = seq2seq_beta(model, first, second, inputs["labels"])
    return Observed(logits, weights[:, 0].float(), found)


def alpha_and_beta(model: nn.Module, batches: Iterable[Batch]) -> tuple[Readings, Readings, dict[str, float]]:
    """The two probes of a recurrent network with one head, and its :func:`performance`, from one pass over batches.

    Beta is what each key argues for, were it the only one: the probe of knowledge about single words. Of the classifier
    it is the logit of a position, towards the gold label; of the encoder-decoder network it is the log-probability of
    the right token with all attention on one source position, with the true decoder state.
    """
    alphas, betas, answers = Gathering(), Gathering(), Performance()
    with in_mode(model, training=False), torch.no_grad():
        for batch in batches:
            inputs = _inputs(batch, model)
            seen = observe(model, inputs)
            answers.add(seen.logits, inputs["labels"])
            alphas.add(seen.alpha, cells(inputs), batch)
            betas.add(seen.beta, cells(inputs), batch)
    return alphas.readings(), betas.readings(), answers.numbers()


def beta(model: nn.Module, batches: Iterable[Batch]) -> Readings:
    """What each key argues for, were it the only one; see :func:`alpha_and_beta`."""
    return alpha_and_beta(model, batches)[1]


def classifier_beta(values: Tensor, labels: Tensor) -> Tensor:
    """The logits of positions ``[B, K, 1]`` with the sign of the gold label, ``[B, 1, K]``."""
    sign = 2.0 * labels - 1.0
    return values.transpose(1, 2) * sign[:, None, None]


def seq2seq_beta(model: RecurrentSeq2Seq, states: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    """The log-probability of the right tokens with one-hot attention, ``[B, T, S]``; one head only.

    Parameters
    ----------
    states, keys : what attention gets: decoder states ``[B, T, D]`` and encoder states ``[B, S, K]``.
    labels : int64 ``[B, T]``.
    """
    if model.config.heads != 1:
        raise ParameterError("Only a network with one head has a closed form of beta; use betas() for several.")
    context = model.cross_attention.parts()[0].output(keys)
    steps, sources = labels.shape[1], context.shape[1]
    found = []
    # Few examples at a time: the logits of a batch are as many as in training, times the length of the source.
    size = max(1, MOST_LOGITS // (steps * sources * model.config.vocab_size))
    for part in range(0, len(labels), size):
        here = slice(part, part + size)
        state = states[here, :, None].expand(-1, -1, sources, -1)
        word = context[here, None].expand(-1, steps, -1, -1)
        # Where the two are added up, the word alone is the probe: the state would be the same for all of them.
        logits = model.output(word) if model.mix is None else model.predict(state, word)
        gold = labels[here, :, None].expand(-1, -1, sources)
        scores = gold_scores(logits.flatten(0, 1), gold.flatten(0, 1))
        found.append(scores.unflatten(0, (-1, steps)))
    return torch.cat(found)


@dataclass(frozen=True, eq=False)
class OneKey(Edit):
    """Let every query of an example attend to one key only, where it may.

    Parameters
    ----------
    keys : int64 ``[B]``, the key of each example.
    """

    keys: Tensor

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` for all keys but one."""
        others = call.key_slots()[:, None, None] != self.keys[:, None, None, None]
        return scores.masked_fill(others, float("-inf"))


def betas(
    model: nn.Module,
    batches: Iterable[Batch],
    heads: Sequence[tuple[Site, int]],
    others: Others = "as-they-are",
) -> dict[tuple[Site, int], Readings]:
    """The log-probability of the right answer when a head attends to one key only, for heads of any model.

    Every query that may attend to the key does so with all its weight; one that may not attends to nothing.

    Parameters
    ----------
    others : what the other heads of the site do meanwhile; ``ablated`` ones give nothing.
    """
    gathered = {head: Gathering() for head in heads}
    prefix = Prefix(model)
    with in_mode(model, training=False), torch.no_grad():
        for batch in batches:
            inputs = _inputs(batch, model)
            inputs |= _without_labels(inputs, model)
            real = key_mask(inputs)
            if not bool(real[:, 0].all()):
                raise DataError("Keys are counted from the first one; pad texts on the right.")
            examples, keys = real.shape
            columns: dict[tuple[Site, int], list[Tensor]] = {head: [] for head in heads}
            for some in torch.arange(keys).split(max(1, MOST_ROWS // examples)):
                # Every example once for each of these keys.
                tiled = {name: value.repeat(len(some), *[1] * (value.ndim - 1)) for name, value in inputs.items()}
                chosen = some.repeat_interleave(examples).to(real.device)
                with attach(model, strict=False), prefix.record():
                    predictions(model, tiled)
                for head, found in columns.items():
                    edits = _one_key(head, chosen, others)
                    # The layers before the head's give what they gave in the unedited pass.
                    with prefix.replay(prefix.unedited(edits)), edit(model, *edits):
                        found += gold_scores(*predictions(model, tiled)).unflatten(0, (len(some), examples))
            for head, found in columns.items():
                mask = cells(inputs, causal=head[0].role == "decoder")
                gathered[head].add(torch.stack(found, -1), mask, batch)
    return {head: gathering.readings() for head, gathering in gathered.items()}


def _one_key(head: tuple[Site, int], keys: Tensor, others: Others) -> list[Edit]:
    """The edits that put all attention of one head on one key ``[B]``."""
    site, number = head
    edits: list[Edit] = [OneKey(keys, select=Select(names=site.name, heads=[number]))]
    rest = [other for other in range(site.heads) if other != number]
    if others == "ablated" and rest:
        edits.append(Gate(0.0, select=Select(names=site.name, heads=rest)))
    return edits


def delta(model: nn.Module, batches: Iterable[Batch]) -> Readings:
    """What each input is worth to the right answer: minus the gradient of its loss by a factor of the embedding.

    Input times gradient, positive where the input supports the right answer; one backward pass for each target step.
    """
    gathered = Gathering()
    for batch in batches:
        inputs = _inputs(batch, model)
        factor = torch.ones(inputs["input_ids"].shape, device=device_of(model), requires_grad=True)
        # The recurrent layers of CUDA have no backward pass outside of training mode, where there would be dropout.
        with (
            in_mode(model, training=False),
            scaled_embeddings(model, factor),
            torch.backends.cudnn.flags(enabled=False),
        ):
            slopes = _slopes(model, inputs, factor)
        gathered.add(-slopes, cells(inputs, causal=_predicts_next(model, batch)), batch)
    return gathered.readings()


def _slopes(model: nn.Module, inputs: Batch, factor: Tensor) -> Tensor:
    """The gradient ``[B, Q, K]`` of the loss of each prediction by the factor ``[B, K]`` of each input."""
    given: list[Tensor] = []
    layer = output_layer(model)
    handle = None if layer is None else layer.register_forward_pre_hook(lambda _, read: given.append(read[0]))
    try:
        losses = -gold_scores(*predictions(model, inputs))
    finally:
        if handle is not None:
            handle.remove()
    if not given or given[-1].shape[:2] != losses.shape:
        parts = [torch.autograd.grad(loss, factor, retain_graph=True)[0] for loss in losses.sum(0)]
        return torch.stack(parts, 1)
    # The output layer works on each prediction alone, so that one backward pass through it serves all of them; it has
    # the size of the vocabulary, and would take most of the time of every other pass.
    (slope,) = torch.autograd.grad(losses.sum(), given[-1], retain_graph=True)
    parts = []
    for step in range(losses.shape[1]):
        alone = torch.zeros_like(slope)
        alone[:, step] = slope[:, step]
        parts.append(torch.autograd.grad(given[-1], factor, alone, retain_graph=True)[0])
    return torch.stack(parts, 1)


def output_layer(model: nn.Module) -> nn.Module | None:
    """The layer that gives the logits of tokens; None where there is none."""
    if isinstance(model, RecurrentSeq2Seq):
        return model.output
    find: Callable[[], nn.Module | None] = getattr(model, "get_output_embeddings", lambda: None)
    return find()


@contextmanager
def scaled_embeddings(model: nn.Module, factor: Tensor) -> Iterator[None]:
    """The embeddings of the source ``[B, K, D]`` times a factor ``[B, K]``; later calls of the table are not."""
    calls = iter([factor])

    def scale(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        found = next(calls, None)
        return None if found is None else output * found[..., None]

    handle = source_embeddings(model).register_forward_hook(scale)
    try:
        yield
    finally:
        handle.remove()


def source_embeddings(model: nn.Module) -> nn.Module:
    """The table that the tokens of the source are looked up in; an encoder may have its own module for it."""
    owner: Any = model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        encoder = owner.get_encoder()
        owner = encoder if hasattr(encoder, "get_input_embeddings") else model
    table: nn.Module = owner.get_input_embeddings()
    return table


def evenness(attention: Readings) -> float:
    """The mean entropy of attention as a share of that of even attention; 1 is even, 0 is on one key."""
    several = [row for row in attention.rows() if len(row) > 1]
    shares = [float(-(row[row > 0] * np.log(row[row > 0])).sum() / np.log(len(row))) for row in several]
    return float(np.mean(shares)) if shares else 1.0


def attention_gradient(model: nn.Module, batch: Batch) -> float:
    """The norm of the gradient of the mean loss by the parameters that only the attention weights depend on."""
    names = attention_parameters(model)
    parameters = [parameter for name, parameter in model.named_parameters() if name in names]
    with in_mode(model, training=False), torch.backends.cudnn.flags(enabled=False):
        logits, labels = predictions(model, _inputs(batch, model))
        loss = -gold_scores(logits, labels).sum() / (labels != IGNORED).sum()
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    return float(sum(float(slope.square().sum()) for slope in slopes if slope is not None) ** 0.5)


def attention_parameters(model: nn.Module) -> frozenset[str]:
    """The names of the parameters that only the attention weights depend on."""
    kinds = ("pooling.", ".query.")
    return frozenset(name for name, _ in model.named_parameters() if any(kind in f".{name}" for kind in kinds))
