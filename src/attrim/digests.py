"""Hashes that tell one model, or one tokenizer, from another."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import nn

from .artefacts import content


def tokenizer_digest(tokenizer: Any) -> str:
    """A hash of a tokenizer's class and vocabulary."""
    vocabulary = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """A hash of a model's class, configuration and weights, so that a trained copy is not taken for the model."""
    config: Any = model.config
    digest = hashlib.sha256(f"{type(model).__name__} {config.to_json_string(use_diff=False)}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()
