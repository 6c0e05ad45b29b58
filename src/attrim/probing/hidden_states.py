"""Hidden states of a frozen model, computed once and kept, to train and evaluate probes on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from ..attention.context import attach
from ..core.modes import evaluation_mode
from ..edits.base import Edit
from ..edits.saving import fingerprint
from ..errors import ArtefactError, DataError
from ..models.digests import tokenizer_digest, weights_digest
from ..models.loading import DTYPES, check_fit, longest_input
from ..runs.artefact import Artefact
from ..runs.files import file_digest, remove_folder, storage
from ..runs.mapped import Writer, mapped
from ..runs.run import config_hash
from ..stats.zero_count import ZeroCount
from ..tasks.base import Task
from ..tasks.batching import Batch
from ..tasks.encoding import IGNORED
from ..training.data import Epochs
from .backbone import Backbone, PackedStates

Rows = NDArray[np.int64]
STORE = Artefact("features", source="a folder of extract", remedy="remove the folder to compute them again")
_COLUMNS = ("slots", "starts", "index", "labels")
# Where the data is read from, and how many examples run together, change nothing.
_IRRELEVANT = ("data", "batch_size")
_FORMAT = 1
# Bytes of hidden states that are kept in memory when there is a choice.
BUDGET = 512 * 2**20


@dataclass(frozen=True, eq=False)
class CachedStates:
    """The hidden states of the tokens of some examples, without padding, and what the task wants to know about them.

    Attributes
    ----------
    parts : the states ``[T, L+1, D]`` of all tokens, cut between examples.
    slots : int64 ``[T]``, where each token stood in its text.
    starts : int64 ``[E+1]``, where the tokens of each example (row of the task) begin, and T.
    index, labels : ``[E]``, as in :class:`attrim.tasks.Batch`.
    targets, token_targets : ``[E]`` each, and ``[T, ...]`` each.
    key : what the states depend on, as a hash.
    zero_share : exact-zero share of the valid attention cells while they were computed.
    seconds : how long that took.
    """

    parts: tuple[Tensor, ...]
    slots: Tensor
    starts: Tensor
    index: Tensor
    labels: Tensor
    targets: dict[str, Tensor] = field(default_factory=dict)
    token_targets: dict[str, Tensor] = field(default_factory=dict)
    key: str = ""
    zero_share: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        begins = np.cumsum([0, *(len(part) for part in self.parts)])
        starts = self.starts.numpy()
        # For each example its part, and where it begins in it.
        numbers = np.searchsorted(begins, starts[:-1], side="right") - 1
        object.__setattr__(self, "_place", (numbers, starts[:-1] - begins[numbers], np.diff(starts)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states, in memory or in a file."""
        return sum(part.nbytes for part in self.parts)

    def packed(self, rows: Rows) -> PackedStates:
        """The tokens of some examples."""
        numbers, begins, counts = (column[rows] for column in self._place)  # type: ignore[attr-defined]
        states = torch.cat(
            [
                self.parts[number][begin : begin + count]
                for number, begin, count in zip(numbers, begins, counts, strict=True)
            ]
        )
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        return PackedStates(states.float(), self._tokens(self.slots, rows), starts)

    def batch(self, rows: Rows) -> Batch:
        """What the task knows about some examples; token targets ``[B, n, ...]`` stand in the order of the tokens."""
        counts = self._place[2][rows]  # type: ignore[attr-defined]
        places = torch.arange(int(counts.max(initial=1))) < torch.from_numpy(counts)[:, None]
        targets = {name: column[rows] for name, column in self.targets.items()}
        for name, column in self.token_targets.items():
            targets[name] = column.new_full((*places.shape, *column.shape[1:]), IGNORED)
            targets[name][places] = self._tokens(column, rows)
        return Batch(self.index.numpy()[rows], {}, self.labels.numpy()[rows], targets)

    def answers(self, task: Task, model: nn.Module) -> Tensor:
        """The labels to train with: ``[E]``, or ``[T]`` where each token has one.

        Parameters
        ----------
        model : has the labels in its configuration, as in :meth:`attrim.tasks.Task.train_labels`.
        """
        if not task.trains_as_evaluated:
            raise DataError(
                f"The task {task.registered_name} trains on other inputs than it is evaluated on, so hidden states "
                "cannot be kept for it; train the probe together with the model (Probed)."
            )
        everything = {name: column[None] for name, column in self.token_targets.items()}
        batch = Batch(self.index.numpy(), {}, self.labels.numpy(), {**self.targets, **everything})
        return task.train_labels(batch, model)["labels"].flatten()

    def epochs(self, labels: Tensor, batch_size: int, seed: int) -> Epochs:
        """The batches of an epoch by its number, for the training loop, in an order that seed and epoch fix.

        Parameters
        ----------
        labels : of :meth:`answers`.
        """

        def batches(epoch: int) -> Iterator[dict[str, Tensor]]:
            for rows in orders(len(self), batch_size, seed, epoch):
                wanted = self._tokens(labels, rows) if self.token_targets else labels[rows]
                yield {**self.packed(rows)._asdict(), "labels": wanted}

        return batches

    def _tokens(self, column: Tensor, rows: Rows) -> Tensor:
        """The entries ``[T, ...]`` of some examples."""
        starts = self.starts.numpy()
        return torch.cat([column[starts[row] : starts[row + 1]] for row in rows])


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
) -> CachedStates:
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
    compact : leave the empty slots of a grid out where this changes nothing (:class:`.backbone.Backbone`).
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
) -> CachedStates:
    flat = joined([{name: part[name] for name in ("slots", "counts", "index", "labels")} for part in columns])
    starts = torch.nn.functional.pad(flat.pop("counts").cumsum(0), (1, 0))
    return CachedStates(
        parts,
        starts=starts,
        **flat,
        targets=joined([part["targets"] for part in columns]),
        token_targets=joined([part["token_targets"] for part in columns]),
        key=key,
        zero_share=zero_share,
        seconds=seconds,
    )


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


def save_columns(features: CachedStates, folder: Path) -> None:
    """Write all but the hidden states, which are there already; those of another key are removed."""
    tensors = {name: getattr(features, name) for name in _COLUMNS}
    for group in ("targets", "token_targets"):
        tensors |= {f"{group}/{name}": column for name, column in getattr(features, group).items()}
    entries = {"key": features.key, "zero_share": features.zero_share, "seconds": features.seconds}
    with storage(folder):
        STORE.save(folder, entries | {"states_digest": file_digest(states_file(folder, features.key))}, tensors)
        for stale in {*folder.glob("states-*.safetensors")} - {states_file(folder, features.key)}:
            stale.unlink()


def load_features(folder: Path, key: str) -> CachedStates | None:
    """The features in a folder, if they are those of the key; None when there are none, others, or half of some."""
    try:
        if STORE.read_index(folder)["key"] != key:
            return None
        index, tensors = STORE.read(folder)
        if file_digest(states_file(folder, key)) != index["states_digest"]:
            return None
        states = mapped(states_file(folder, key))
    except (ArtefactError, OSError, SafetensorError, KeyError):
        return None  # what is not whole, or has changed, is computed again
    if len(states) != int(tensors["starts"][-1]):
        return None
    fields: dict[str, Any] = {name: tensors[name] for name in _COLUMNS}
    for group in ("targets", "token_targets"):
        prefix = f"{group}/"
        fields[group] = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
    return CachedStates((states,), **fields, key=key, zero_share=index["zero_share"], seconds=index["seconds"])


def states_file(folder: Path, key: str) -> Path:
    """The file with the hidden states of a key; named after it, so that an index never finds the states of another."""
    return folder / f"states-{key[:16]}.safetensors"


def remove_features(folder: str | Path) -> None:
    """Remove the folder of features, if it is there."""
    folder = Path(folder)
    with storage(folder):
        if folder.exists():
            remove_folder(folder)


def orders(count: int, batch_size: int, seed: int, epoch: int) -> list[Rows]:
    """Which examples are in each batch of an epoch; the last one may be smaller."""
    numbers = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(numbers)
    return [np.array(numbers[start : start + batch_size]) for start in range(0, count, batch_size)]


def joined(columns: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Named columns that came part by part."""
    return {name: torch.cat([part[name] for part in columns]) for name in columns[0]} if columns else {}
