"""Compute the hidden states of a frozen, edited model once for all examples of a task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..edits.base import Edit
from ..errors import DataError
from ..evaluate import ZeroCount, evaluation_mode
from ..loading import DTYPES, check_fit, longest_input
from ..probes.backbone import Backbone
from ..sites.context import attach
from ..tasks.base import Task
from ..tasks.batching import Batch
from ..tasks.rows import IGNORED
from .features import Features, joined
from .key import features_key
from .rows import Writer
from .store import load_features, save_columns, states_file

# Bytes of hidden states that are kept in memory when there is a choice.
BUDGET = 512 * 2**20


def extract(
    backbone: nn.Module,
    task: Task,
    tokenizer: Any,
    edits: Sequence[Edit] | Edit = (),
    *,
    folder: str | Path | None = None,
    budget: int = BUDGET,
    dtype: Literal["float32", "float16"] = "float32",
    compact: bool = True,
) -> Features:
    """Run a model once over the examples of a task and keep the hidden states of their tokens.

    Tokens that a task of tokens asks nothing about (special ones, later parts of words) are not kept.

    Parameters
    ----------
    backbone : an ``AutoModel``; in evaluation mode meanwhile, and as before afterwards.
    edits : switched on meanwhile.
    folder : where states above the budget go, to a mapped file. States that are there already are used again when they
        are those of this model, with these edits, for this data; others are replaced.
    budget : bytes of states to keep in memory.
    dtype : float16 takes half of the room and changes scores a little.
    compact : leave the empty slots of a grid out where this changes nothing (:class:`attrim.probes.backbone.Backbone`).
    """
    edits = (edits,) if isinstance(edits, Edit) else tuple(edits)
    if dtype not in ("float32", "float16"):
        raise DataError(f"Hidden states are kept as float32 or float16, not {dtype}.")
    check_fit(backbone, tokenizer)
    folder = None if folder is None else Path(folder)
    key = features_key(backbone, task, tokenizer, edits, dtype)
    if folder is not None and (known := load_features(folder, key)) is not None:
        return known
    started, zeros, run = time.perf_counter(), ZeroCount(), Backbone(backbone, compact)
    device = next(backbone.parameters()).device
    columns: list[dict[str, Any]] = []
    with Writer(budget, None if folder is None else states_file(folder, key)) as writer:
        with evaluation_mode(backbone), attach(backbone, edits=edits, stats=[zeros]):
            for batch in task.batches(tokenizer, longest_input(backbone, tokenizer)):
                packed, mask = run({name: tensor.to(device) for name, tensor in batch.inputs.items()})
                mask = mask.cpu()
                targets = {name: tensor for name, tensor in batch.targets.items() if tensor.ndim > 1}
                wanted = mask & _asked(targets) if targets else mask
                kept = wanted[mask].to(device)
                writer.append(packed.states[kept].to(DTYPES[dtype]))
                columns.append(_columns(batch, packed.slots[kept].cpu(), wanted, targets))
        parts = writer.finish()
    features = _features(parts, columns, key, zeros.zeros / max(zeros.total, 1), time.perf_counter() - started)
    if folder is not None and writer.in_file:
        save_columns(features, folder)
    return features


def _asked(targets: dict[str, Tensor]) -> Tensor:
    """Bool ``[B, N]``: the tokens that some target ``[B, N, ...]`` says something about."""
    return torch.stack([(target != IGNORED).reshape(*target.shape[:2], -1).any(-1) for target in targets.values()]).any(
        0
    )


def _columns(batch: Batch, slots: Tensor, wanted: Tensor, targets: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "slots": slots,
        "counts": wanted.sum(1),
        "index": torch.from_numpy(batch.index),
        "labels": torch.from_numpy(batch.labels),
        "targets": {name: tensor for name, tensor in batch.targets.items() if name not in targets},
        "token_targets": {name: tensor[wanted] for name, tensor in targets.items()},
    }


def _features(
    parts: tuple[Tensor, ...], columns: list[dict[str, Any]], key: str, zero_share: float, seconds: float
) -> Features:
    flat = joined([{name: part[name] for name in ("slots", "counts", "index", "labels")} for part in columns])
    starts = torch.nn.functional.pad(flat.pop("counts").cumsum(0), (1, 0))
    return Features(
        parts,
        starts=starts,
        **flat,
        targets=joined([part["targets"] for part in columns]),
        token_targets=joined([part["token_targets"] for part in columns]),
        key=key,
        zero_share=zero_share,
        seconds=seconds,
    )
