"""What a probe is: a small head on all hidden states of a frozen model (PAPA, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..errors import ArtefactError, DataError, ParameterError, ShapeError
from ..runs.artefact import UNFIT, Artefact
from ..tasks.base import Task
from ..training.loop import own_randomness, seed_everything
from .backbone import HiddenStates, PackedStates, pack, unpack

STANDARD_DEVIATION = 0.02
# The probes of these have no dropout before the classifier, a plain linear layer in place of RoBERTa's larger head.
_WITHOUT_DROPOUT = ("roberta", "camembert", "data2vec-text")
_DROPOUTS = ("cls_dropout", "classifier_dropout", "hidden_dropout_prob", "hidden_dropout", "dropout", "resid_pdrop")
STORE = Artefact("probes", source="a folder of save_probe", remedy="save it again")
_TIED = "embeddings"


class Probe(nn.Module):
    """Base of the probes.

    Parameters
    ----------
    layers : L, the layers of the model; a probe reads ``L+1`` hidden states, that of the embeddings first.
    hidden : D, the width of the model.
    labels : outputs; 1 means regression.
    """

    kind: ClassVar[str]  # of the tasks that it is for, as in attrim.models.loading.KINDS
    by_token: ClassVar[bool]  # one answer a token, or one a text

    def __init__(self, layers: int, hidden: int, labels: int) -> None:
        super().__init__()
        if min(layers, hidden, labels) < 1:
            raise ParameterError(f"A probe needs layers, a width and labels, not {layers}, {hidden} and {labels}.")
        self.layers, self.hidden, self.labels = layers, hidden, labels

    def forward(self, hidden_states: HiddenStates | PackedStates, mask: Tensor | None = None) -> Tensor:
        """Logits from hidden states.

        Parameters
        ----------
        hidden_states : ``[B, L+1, N, D]``, ``L+1`` tensors ``[B, N, D]``, or packed ones.
        mask : ``[B, N]``, nonzero at real tokens; packed hidden states need none.

        Returns
        -------
        ``[B, labels]`` for a probe of texts. For a probe of tokens ``[B, N, labels]``, zeros at padding, or
        ``[T, labels]`` when the hidden states are packed.
        """
        if isinstance(hidden_states, PackedStates):
            return self.read(hidden_states)
        if mask is None:
            raise ParameterError("A probe needs the mask of real tokens beside the hidden states; give mask [B, N].")
        logits = self.read(pack(hidden_states, mask))
        return unpack(logits, mask) if self.by_token else logits

    def read(self, packed: PackedStates) -> Tensor:
        """Logits ``[B, labels]`` of the texts, or ``[T, labels]`` of the tokens."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What the probe is made from, as JSON values."""
        return {"layers": self.layers, "hidden": self.hidden, "labels": self.labels}

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of logits ``[..., labels]`` for labels ``[...]``: cross-entropy without those that are -100,
        or the square error for a single output.
        """
        if self.labels == 1:
            return nn.functional.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def checked(self, packed: PackedStates) -> Tensor:
        """The states ``[T, L+1, D]`` of packed tokens; an error when they are of another model."""
        states = packed.states
        if states.shape[1:] != (self.layers + 1, self.hidden):
            raise ShapeError(
                f"The probe reads {self.layers + 1} hidden states of width {self.hidden}, not {states.shape[1]} of "
                f"width {states.shape[2]}; make a probe for this model."
            )
        return states


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer as BERT begins with: weights from a normal distribution of 0.02, biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=STANDARD_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer


class SequenceProbe(Probe):
    """One answer a text: a weighted sum over the slots in every layer, then a hidden layer and a classifier.

    ``z_l = sum_j w[l, j] h[l, j]`` over the real tokens j, ``pooled = tanh(W [z_0; ...; z_L] + b)``. The sum is not
    divided by the number of tokens (https://arxiv.org/abs/2211.03495).

    Parameters
    ----------
    layers, hidden, labels : see :class:`Probe`.
    length : N, the slots of the layout.
    dropout : before the classifier, while training.
    """

    kind: ClassVar[str] = "sequence-classification"
    by_token: ClassVar[bool] = False

    def __init__(self, layers: int, length: int, hidden: int, labels: int, dropout: float = 0.0) -> None:
        super().__init__(layers, hidden, labels)
        self.length = length
        self.weights = nn.Parameter(torch.full((layers + 1, length), 1 / length))
        self.pooler = linear((layers + 1) * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = linear(hidden, labels)

    def read(self, packed: PackedStates) -> Tensor:
        """Logits ``[B, labels]``."""
        pooled = torch.tanh(self.pooler(self.sums(packed).flatten(1)))
        return self.classifier(self.dropout(pooled))

    def sums(self, packed: PackedStates) -> Tensor:
        """The weighted sums ``[B, L+1, D]`` over the tokens of each text."""
        states = self.checked(packed)
        if len(packed.slots) and int(packed.slots.max()) >= self.length:
            raise ShapeError(
                f"A token stands in slot {int(packed.slots.max())} but the probe has {self.length} slots; "
                "make it for the task's max_length."
            )
        # One product of a sparse [B, T] by [T, D] in every layer: as dense matrices this still takes no longer than
        # reading the states once, and nothing of their size is written.
        spread = states.new_zeros(self.layers + 1, len(packed.starts) - 1, len(packed.slots))
        tokens = torch.arange(len(packed.slots), device=states.device)
        spread[:, packed.rows(), tokens] = self.weights.to(states.dtype).index_select(1, packed.slots)
        return torch.bmm(spread, states.transpose(0, 1)).transpose(0, 1)

    def options(self) -> dict[str, Any]:
        """See :meth:`Probe.options`."""
        return {**super().options(), "length": self.length, "dropout": self.dropout.p}


class TokenProbe(Probe):
    """One answer a token: ``W2 tanh(W1 [h_0; ...; h_L] + b1) + b2`` (https://arxiv.org/abs/2211.03495)."""

    kind: ClassVar[str] = "token-classification"
    by_token: ClassVar[bool] = True

    def __init__(self, layers: int, hidden: int, labels: int) -> None:
        super().__init__(layers, hidden, labels)
        self.pooler = linear((layers + 1) * hidden, hidden)
        self.classifier = linear(hidden, labels)

    def read(self, packed: PackedStates) -> Tensor:
        """Logits ``[T, labels]``."""
        return self.classifier(torch.tanh(self.pooler(self.checked(packed).flatten(1))))


class MaskedProbe(Probe):
    """One word a token: a hidden layer, and a decoder tied to the model's input embeddings, with a bias of its own.

    Parameters
    ----------
    layers, hidden : see :class:`Probe`.
    embeddings : the weights ``[labels, E]`` of the model's input embeddings, shared and not copied; they are trained
        only when the model is.
    activation : name of the model's activation in ``transformers``.
    """

    kind: ClassVar[str] = "masked-lm"
    by_token: ClassVar[bool] = True

    def __init__(self, layers: int, hidden: int, embeddings: nn.Parameter, activation: str = "gelu") -> None:
        super().__init__(layers, hidden, len(embeddings))
        self.activation = activation
        self.pooler = linear((layers + 1) * hidden, embeddings.shape[1])
        self.embeddings = embeddings
        self.bias = nn.Parameter(torch.zeros(len(embeddings)))

    def read(self, packed: PackedStates) -> Tensor:
        """Logits ``[T, labels]``."""
        inner = ACT2FN[self.activation](self.pooler(self.checked(packed).flatten(1)))
        return nn.functional.linear(inner, self.embeddings, self.bias)

    def options(self) -> dict[str, Any]:
        """See :meth:`Probe.options`; the embeddings come from the model."""
        return {"layers": self.layers, "hidden": self.hidden, "activation": self.activation}


def make_probe(backbone: nn.Module, task: Task, *, seed: int = 0) -> Probe:
    """Make a new probe for a model without a head.

    Parameters
    ----------
    backbone : an ``AutoModel``; it is not called.
    task : says what to answer, and by ``max_length`` how many slots a text has.
    seed : fixes the weights that the probe begins with.
    """
    config: Any = backbone.config
    sizes = {"layers": config.num_hidden_layers, "hidden": config.hidden_size}
    with own_randomness():
        seed_everything(seed, "probe")
        if task.kind == SequenceProbe.kind:
            labels = task.num_labels or 1
            return _beside(
                SequenceProbe(length=task.max_length, labels=labels, dropout=dropout_of(config), **sizes), backbone
            )
        if task.kind == TokenProbe.kind:
            return _beside(TokenProbe(labels=task.num_labels or 1, **sizes), backbone)
        if task.kind == MaskedProbe.kind:
            return _beside(
                MaskedProbe(embeddings=embeddings_of(backbone), activation=activation_of(config), **sizes), backbone
            )
    raise DataError(
        f"There is no probe for the task {task.registered_name} ({task.kind}); use a task with one label a text or a "
        "token, or masked-lm."
    )


def dropout_of(config: Any) -> float:
    """The dropout before the classifier: that of the model's own head, and none for RoBERTa."""
    if any(name in config.model_type for name in _WITHOUT_DROPOUT):
        return 0.0
    values = (getattr(config, name, None) for name in _DROPOUTS)
    return next((float(value) for value in values if isinstance(value, float | int)), 0.0)


def activation_of(config: Any) -> str:
    """The name of the model's hidden activation."""
    for name in ("hidden_act", "hidden_activation", "activation_function", "activation"):
        if isinstance(value := getattr(config, name, None), str):
            return value
    return "gelu"


def embeddings_of(backbone: nn.Module) -> nn.Parameter:
    """The weights ``[V, E]`` of the model's input embeddings."""
    table = backbone.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(getattr(table, "weight", None), nn.Parameter) or table.weight.ndim != 2:
        raise ShapeError(f"{type(backbone).__name__} has no plain input embeddings to tie the probe's decoder to.")
    return table.weight


def _beside(probe: Probe, backbone: nn.Module) -> Probe:
    """The probe on the device of the model."""
    return probe.to(next(backbone.parameters()).device)


KINDS: dict[str, type[Probe]] = {kind.kind: kind for kind in (SequenceProbe, TokenProbe, MaskedProbe)}


def save_probe(probe: Probe, folder: str | Path, about: Mapping[str, Any] | None = None) -> Path:
    """Write a probe to ``folder`` and return it.

    Parameters
    ----------
    about : JSON values to keep with it, such as the model, the task and the order of the constant heads.
    """
    # A tied decoder is part of the model, and much larger than the probe.
    tensors = {name: tensor for name, tensor in probe.state_dict().items() if name != _TIED}
    entries = {"kind": probe.kind, "options": probe.options(), "about": dict(about or {})}
    return STORE.save(folder, entries, tensors)


def load_probe(folder: str | Path, backbone: nn.Module | None = None) -> tuple[Probe, dict[str, Any]]:
    """The probe that :func:`save_probe` wrote to ``folder``, and what it kept with it.

    Parameters
    ----------
    backbone : the model that the probe is for; the decoder of a masked probe is tied to it.
    """
    index, tensors = STORE.read(folder)
    try:
        kind, options = KINDS[index["kind"]], dict(index["options"])
        if kind is MaskedProbe:
            if backbone is None:
                raise ArtefactError(f"The probe in {str(folder)!r} is tied to its model; give it as backbone=.")
            options[_TIED] = embeddings_of(backbone)
            tensors[_TIED] = options[_TIED]
        probe = kind(**options)
        probe.load_state_dict(tensors)
        about = dict(index["about"])
    except UNFIT as error:
        raise STORE.damaged(folder, " ".join(str(error).split())) from error
    if backbone is not None:
        probe.to(next(backbone.parameters()).device)
    return probe, about
