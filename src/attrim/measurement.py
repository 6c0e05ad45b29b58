"""Measure a model's attention over a data set: one pass, in memory that does not grow with the data."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .attention.context import attach
from .attention.discover import find_sites
from .attention.session import active_sessions
from .core.modes import in_mode, on_device, own_memory
from .core.progress import Bar, progress_bar
from .core.site import Select, require_select
from .edits.base import Edit
from .errors import DataError, ParameterError, SiteError, require_all, require_model, shorten
from .models.digests import attention_digests
from .models.loading import check_tokens
from .stats.base import Stat
from .stats.bundle import Stats
from .stats.origin import Fingerprint, Origin
from .stats.resume import Checkpoint, check_same_data, patient_interrupt

__all__ = ["Checkpoint", "Stats", "measure"]

LABELS = ("labels", "label", "label_ids", "start_positions", "end_positions", "next_sentence_label")
"""What a batch may hold for training only; without it a model computes no loss."""


def measure(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    stats: Stat | Sequence[Stat],
    select: Select | None = None,
    progress: bool = True,
    edits: Sequence[Edit] = (),
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Stats:
    """Run the model once over the batches and let the stats watch its attention.

    Parameters
    ----------
    model : any model; it is in evaluation mode meanwhile and comes back as it was.
    batches : dicts of tensors, as a data loader gives them; labels in them are dropped.
    stats : what to add up, for example ``[Histogram(), Mean()]``; stats that counted before go on counting.
    select : the heads to watch (default: all).
    progress : show a progress bar, with the time left where the batches have a length.
    edits : change the attention first; the stats see what comes out.
    device : where to run (default: where the model is); a model that is moved comes back too.
    checkpoint : keeps the stats so far on disk; a pass over the same batches that was stopped resumes, and
        gives the same numbers. Remove it when the finished stats are saved.

    Examples
    --------
    >>> stats = attrim.measure(model, loader, [attrim.Histogram(), attrim.Mean()])
    >>> stats["Histogram"].sparsity(1e-3)       # [sites, heads]
    """
    require_model(model)
    stats = list(stats) if isinstance(stats, Sequence) else [stats]
    require_all(stats, Stat, "a stat")
    if not stats:
        raise DataError("There is nothing to measure: give at least one stat, for example attrim.Histogram().")
    if len({id(stat) for stat in stats}) < len(stats):
        raise ParameterError("The same stat is given twice and would count everything twice; make one for each use.")
    if not _gives_items(batches):
        raise DataError(f"Batches are a list of dicts of tensors, or what gives them, not {shorten(batches)}.")
    select = Select() if select is None else select
    require_select(select)
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("There is nothing to measure on: the batches are empty.")
    total = len(batches) if isinstance(batches, Sized) else None
    with (
        on_device(model, device) as place,
        in_mode(model, training=False),
        own_memory(model),
        progress_bar(total, "measuring", progress) as bar,
    ):
        example = _inputs(first, place)
        with _explained(model, example):
            _find_sites(model, example)
        inputs = itertools.chain([example], (_inputs(batch, place) for batch in iterator))
        seen = _Seen(_origin(model, select, edits), bar)
        if checkpoint is not None:
            _resume(checkpoint, stats, seen, inputs, model)
        following = next(inputs, None)
        if following is None:  # a finished pass of which only the saving was stopped
            return Stats(stats, seen.origin)
        with attach(model, edits=edits, stats=stats, select=select, fast=True), torch.inference_mode():
            real = _watch(model, itertools.chain([following], inputs), stats, seen, checkpoint)
    if not real:
        raise DataError("Nothing was counted: every token of every batch is padding; check the attention masks.")
    return Stats(stats, seen.origin)


def _gives_items(value: Any) -> bool:
    """Whether something can be gone through and is more than numbers: arrays and tensors hold no stats and batches."""
    return isinstance(value, Iterable) and not hasattr(value, "__array__")


class _Seen:
    """What a pass has seen so far: how many batches, and the origin of the stats with their data in it."""

    def __init__(self, origin: Origin, bar: Bar) -> None:
        self.origin, self.bar = origin, bar
        self.batches = 0

    def add(self, inputs: Mapping[str, Any]) -> None:
        """Count one more batch."""
        self.origin = replace(self.origin, data=self.origin.data + Fingerprint.of(inputs))
        self.batches += 1
        self.bar.advance()


def _resume(
    checkpoint: Checkpoint, stats: Sequence[Stat], seen: _Seen, inputs: Iterator[dict[str, Any]], model: nn.Module
) -> None:
    """Fill the stats from a checkpoint and skip the batches that it covers, which must be those that it saw.

    A model that remembers earlier batches (those since texts began, as ``begins`` says) reads them again, unwatched.
    """
    covered, expected = checkpoint.resume(stats, seen.origin)
    remembered: list[dict[str, Any]] = []
    for batch in itertools.islice(inputs, covered):
        seen.add(batch)
        if "begins" in batch:
            remembered = [*([] if bool(batch["begins"].all()) else remembered), batch]
    check_same_data(seen.origin.data, expected, checkpoint.folder)
    with torch.inference_mode():
        for batch in remembered:
            model(**batch)


def _watch(
    model: nn.Module,
    inputs: Iterable[dict[str, Any]],
    stats: Sequence[Stat],
    seen: _Seen,
    checkpoint: Checkpoint | None,
) -> bool:
    """Run the model on every batch while the stats watch; whether the pass, earlier batches included, had real tokens.

    With a checkpoint, an interrupt waits until the batch that is running is counted and written.
    """
    real = seen.batches > 0
    with patient_interrupt(checkpoint is not None) as interrupted:
        for batch in inputs:
            for stat in stats:
                stat.begin(batch)
            with _explained(model, batch):
                model(**batch)
            real = real or active_sessions()[-1].saw_real()  # asked until the first real token only
            seen.add(batch)
            if checkpoint is not None:
                checkpoint.passed(stats, seen.origin, seen.batches, now=interrupted())
            if interrupted():
                raise KeyboardInterrupt
    return real


def _origin(model: nn.Module, select: Select, edits: Sequence[Edit]) -> Origin:
    """Where the stats come from, before any data is seen."""
    config = getattr(model, "config", None)
    return Origin(
        model=getattr(config, "_name_or_path", "") or type(model).__name__,
        revision=getattr(config, "_commit_hash", None) or "",
        selection=select,
        edits=tuple(str(edit) for edit in edits),
        version=__version__,
        attention=attention_digests(model),
    )


def _inputs(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch on the device, without labels."""
    if not isinstance(batch, Mapping):
        raise DataError(f"A batch must be a dict of tensors, not {type(batch).__name__}; name the model's arguments.")
    kept = {name: value for name, value in batch.items() if name not in LABELS}
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in kept.items()}


def _find_sites(model: nn.Module, inputs: dict[str, Any]) -> None:
    """Find the sites on the first example of the batch, which is cheap; on all of it where one does not run."""
    size = next((len(value) for value in inputs.values() if isinstance(value, Tensor) and value.ndim), 1)
    one = {
        name: value[:1] if isinstance(value, Tensor) and value.ndim and len(value) == size else value
        for name, value in inputs.items()
    }
    try:
        find_sites(model, one)
    except SiteError:
        find_sites(model, inputs)


@contextlib.contextmanager
def _explained(model: nn.Module, inputs: dict[str, Any]) -> Iterator[None]:
    """Say so when a model fails because it has no embedding for a token number.

    Only a model that failed is asked: some replace numbers beyond their embeddings by images, and run.
    """
    try:
        yield
    except (IndexError, RuntimeError, SiteError):
        check_tokens(model, inputs)
        raise
