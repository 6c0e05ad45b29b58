"""The probe that fits a model and a task; what the model's configuration decides is decided here."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import DataError, ShapeError
from ..tasks.base import Task
from ..training.randomness import own_randomness, seed_everything
from .base import Probe
from .masked import MaskedProbe
from .sequence import SequenceProbe
from .token import TokenProbe

# The probes of these have no dropout before the classifier, a plain linear layer in place of RoBERTa's larger head.
_WITHOUT_DROPOUT = ("roberta", "camembert", "data2vec-text")
_DROPOUTS = ("cls_dropout", "classifier_dropout", "hidden_dropout_prob", "hidden_dropout", "dropout", "resid_pdrop")


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
