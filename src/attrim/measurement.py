"""Measure a model's attention over a data set: one pass, in memory that does not grow with the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .attention.context import attach
from .attention.discover import find_sites
from .attention.session import active
from .core.modes import in_mode
from .core.site import Select
from .edits.base import Edit
from .errors import DataError, ParameterError, SiteError, require_all, require_model
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
    checkpoint : keeps the stats so far on disk; a pass over the same batches that was stopped goes on from there, and
        gives the same numbers. Remove it when the finished stats are saved.

    Examples
    --------
    >>> stats = attrim.measure(model, loader, [attrim.Histogram(), attrim.Mean()])
    >>> stats["Histogram"].sparsity(1e-3)       # [sites, heads]
    """
    require_model(model)
    stats = list(stats) if isinstance(stats, Iterable) else [stats]
    require_all(stats, Stat, "a stat")
    if not stats:
        raise DataError("There is nothing to measure: give at least one stat, for example attrim.Histogram().")
    if len({id(stat) for stat in stats}) < len(stats):
        raise ParameterError("The same stat is given twice and would count everything twice; make one for each use.")
    select = select or Select()
    iterator = iter(batches)
    batch = next(iterator, None)
    if batch is None:
        raise DataError("There is nothing to measure on: the batches are empty.")
    total = len(batches) if isinstance(batches, Sized) else None
    with _prepared(model, device) as place, _bar(progress, total) as advance:
        inputs = _inputs(batch, place)
        with _explained(model, inputs):
            _find_sites(model, inputs)
        origin = _origin(model, select, edits)
        covered, expected = checkpoint.resume(stats, origin) if checkpoint is not None else (0, Fingerprint())
        for _ in range(covered):
            if batch is None:
                break
            origin = _seen(origin, _inputs(batch, place))
            advance()
            batch = next(iterator, None)
        if checkpoint is not None:
            check_same_data(origin.data, expected, checkpoint.folder)
        if batch is None:  # a finished pass of which only the saving was stopped
            return Stats(stats, origin)
        done, real = covered, covered > 0
        with (
            attach(model, edits=edits, stats=stats, select=select, fast=True),
            torch.inference_mode(),
            patient_interrupt(checkpoint is not None) as interrupted,
        ):
            while batch is not None:
                inputs = _inputs(batch, place)
                for stat in stats:
                    stat.begin(inputs)
                with _explained(model, inputs):
                    model(**inputs)
                real = real or active.get()[-1].saw_real()  # looked at until the first real token, so at no cost
                origin = _seen(origin, inputs)
                advance()
                done += 1
                if checkpoint is not None:
                    checkpoint.passed(stats, origin, done, now=interrupted())
                if interrupted():
                    raise KeyboardInterrupt
                batch = next(iterator, None)
    if not real:
        raise DataError("Nothing was counted: every token of every batch is padding; check the attention masks.")
    return Stats(stats, origin)


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


def _seen(origin: Origin, inputs: dict[str, Any]) -> Origin:
    """The origin with one more batch."""
    return replace(origin, data=origin.data + Fingerprint.of(inputs))


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


@contextlib.contextmanager
def _prepared(model: nn.Module, device: torch.device | str | None) -> Iterator[torch.device]:
    """The model in evaluation mode on the device; afterwards every module is in the mode and place it was in."""
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
    try:
        if place != home:
            model.to(place)
        with in_mode(model, training=False):
            yield place
    finally:
        if place != home:
            model.to(home)


@contextlib.contextmanager
def _bar(show: bool, total: int | None) -> Iterator[Any]:
    """A function to call after every batch, which moves a progress bar on."""
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(task)
