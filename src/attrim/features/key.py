"""What hidden states depend on, as a hash: the weights, the edits, the data and how it is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..digests import tokenizer_digest, weights_digest
from ..edits.base import Edit
from ..edits.store import fingerprint
from ..runs import config_hash
from ..tasks.base import Task

# Where the data is read from, and how many examples run together, change nothing.
_IRRELEVANT = ("data", "batch_size")
_FORMAT = 1


def features_key(backbone: nn.Module, task: Task, tokenizer: Any, edits: Sequence[Edit], dtype: str) -> str:
    """The hash of everything that the hidden states of a task's examples depend on."""
    options = {name: value for name, value in task.options().items() if name not in _IRRELEVANT}
    return config_hash(
        {
            "format": _FORMAT,
            "model": weights_digest(backbone),
            "edits": fingerprint(edits),
            "task": options,
            "data": task.fingerprint(),
            "tokenizer": tokenizer_digest(tokenizer),
            "dtype": dtype,
        }
    )
