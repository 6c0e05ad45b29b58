"""Checkpoints of a measurement: stopped after any batch it goes on, with the same numbers as an uninterrupted pass."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attrim.stats.resume
from attrim.core import registry
from attrim.core.site import Select
from attrim.errors import ArtefactError, ParameterError
from attrim.measurement import Checkpoint, measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.stats import Histogram, Mean, Stat
from attrim.stats.bundle import Stats
from attrim.stats.resume import patient_interrupt
from attrim.stats.spread import Extremes
from methods import OTHER_STATS, STATS

Batch = dict[str, Tensor]


class Stop(Exception):
    """What stops a pass here."""


def every_stat() -> list[Stat]:
    return [parameter.values[0]() for parameter in STATS + OTHER_STATS]


@pytest.fixture(autouse=True)
def _after_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``every=0`` writing may take any share of the time."""
    monkeypatch.setattr(attrim.stats.resume, "MOST_COST", float("inf"))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return load_model("tiny-bert")


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    tokenizer = load_tokenizer("tiny-bert")
    texts = ["one", "a longer text", "and", "the longest text of them all", "x", "the end", "no", "yes, the end"]
    return [dict(tokenizer(texts[n : n + 2], return_tensors="pt", padding=True)) for n in range(0, 8, 2)]


def until(batches: Sequence[Batch], count: int) -> Iterator[Batch]:
    yield from batches[:count]
    raise Stop


def same(one: Stats, other: Stats) -> None:
    assert one.origin == other.origin
    assert list(one) == list(other)
    for name in one:
        (mine, fields), (theirs, others) = one[name].state(), other[name].state()
        assert fields == others
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name


def test_every_registered_stat_is_tried() -> None:
    assert {stat.registered_name for stat in every_stat()} == set(registry.STATS)


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_stopped_pass_goes_on_with_the_same_numbers(
    model: torch.nn.Module, batches: list[Batch], tmp_path: Path, stop: int
) -> None:
    whole = measure(model, batches, every_stat(), progress=False)
    checkpoint = Checkpoint(tmp_path / "unfinished", every=0)
    with pytest.raises(Stop):
        measure(model, until(batches, stop), every_stat(), progress=False, checkpoint=checkpoint)
    stats, seen = every_stat(), []
    stats[0].begin = seen.append  # type: ignore[method-assign, assignment]
    resumed = measure(model, batches, stats, progress=False, checkpoint=checkpoint)
    assert len(seen) == len(batches) - stop
    assert [resumed[name] for name in resumed] == stats
    same(resumed, whole)
    checkpoint.remove()
    assert not list(tmp_path.iterdir())


def test_what_a_broken_batch_counted_is_not_kept(
    model: torch.nn.Module, batches: list[Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer has counted the third batch when the second one fails."""
    # Of a stat without a compiled pass, which has watch called.
    checkpoint = Checkpoint(tmp_path / "unfinished", every=0)
    calls = iter(range(100))
    watch = Extremes.watch

    def breaking(self: Extremes, tensor: Tensor, call: object) -> None:
        if next(calls) == 2 * 2 + 1:
            raise Stop
        watch(self, tensor, call)  # type: ignore[arg-type]

    monkeypatch.setattr(Extremes, "watch", breaking)
    with pytest.raises(Stop):
        measure(model, batches, Extremes(), progress=False, checkpoint=checkpoint)
    resumed = measure(model, batches, Extremes(), progress=False, checkpoint=checkpoint)
    same(resumed, measure(model, batches, Extremes(), progress=False))


def test_ctrl_c_waits_for_the_batch_and_keeps_it(model: torch.nn.Module, batches: list[Batch], tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "unfinished", every=1000)

    def pressed() -> Iterator[Batch]:
        yield batches[0]
        signal.raise_signal(signal.SIGINT)
        yield from batches[1:]

    with pytest.raises(KeyboardInterrupt):
        measure(model, pressed(), Mean(), progress=False, checkpoint=checkpoint)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert checkpoint.resume([Mean()], Stats.load(checkpoint.folder).origin)[0] == 2
    same(measure(model, batches, Mean(), progress=False, checkpoint=checkpoint), measure(model, batches, Mean()))


def test_a_second_ctrl_c_does_not_wait_and_threads_have_none() -> None:
    with pytest.raises(KeyboardInterrupt), patient_interrupt(True) as pressed:
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        signal.raise_signal(signal.SIGINT)
    handlers = []

    def look() -> None:
        with patient_interrupt(True):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_it_is_written_when_it_is_time(model: torch.nn.Module, batches: list[Batch], tmp_path: Path) -> None:
    rare = Checkpoint(tmp_path / "rare", every=1000)
    with pytest.raises(Stop):
        measure(model, until(batches, 3), Mean(), progress=False, checkpoint=rare)
    assert not rare.folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda: {"stats": [Histogram(rows=True)]},
        lambda: {"stats": [Histogram(), Mean()]},
        lambda: {"select": Select(layers=[0])},
        lambda: {"identity": {"dtype": "bfloat16"}},
    ],
)
def test_another_measurement_begins_anew(
    model: torch.nn.Module, batches: list[Batch], tmp_path: Path, change: Callable[[], dict]
) -> None:
    with pytest.raises(Stop):
        measure(model, until(batches, 3), Histogram(), progress=False, checkpoint=Checkpoint(tmp_path / "u", every=0))
    other = {"stats": [Histogram()], "select": None, "identity": {}, **change()}
    checkpoint = Checkpoint(tmp_path / "u", every=0, identity=other["identity"])
    found = measure(model, batches, other["stats"], other["select"], False, checkpoint=checkpoint)
    assert found.origin.data.examples == 8
    assert found["Histogram"].total.sum() == sum(  # type: ignore[attr-defined]
        int(batch["attention_mask"].sum(1).square().sum()) * 4 * len(found["Histogram"].sites)  # type: ignore[attr-defined]
        for batch in batches
    )


def test_other_data_is_refused_and_a_damaged_checkpoint_is_not_used(
    model: torch.nn.Module, batches: list[Batch], tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "unfinished", every=0)
    with pytest.raises(Stop):
        measure(model, until(batches, 3), Mean(), progress=False, checkpoint=checkpoint)
    for changed in (batches[::-1], batches[:2]):
        with pytest.raises(ArtefactError, match=r"begun on other data \(6 examples.*remove that folder"):
            measure(model, changed, Mean(), progress=False, checkpoint=checkpoint)
    with pytest.raises(ParameterError, match="counted before"):
        measure(model, batches, measure(model, batches, Mean(), progress=False)["Mean"], checkpoint=checkpoint)
    next(checkpoint.folder.glob("*.safetensors")).write_bytes(b"short")
    same(
        measure(model, batches, Mean(), progress=False, checkpoint=checkpoint),
        measure(model, batches, Mean(), progress=False),
    )
