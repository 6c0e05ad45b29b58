"""The compiled functions on torch's threads, by torch's stable C interface."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attrim.codebooks.base import make_codebook
from attrim.core.call import Call
from attrim.kernels import team
from attrim.kernels.attend import attend
from attrim.kernels.blocks import Block, Spans, find_edges
from attrim.kernels.feed import Feed
from attrim.kernels.sparse import SparsePlan, attend_sparse
from attrim.stats import Histogram, Mean, Moments

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")

Callback = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
SHAPE = 3, 5, 70, 8
HEADS = tuple(range(SHAPE[1]))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_parallel(function: Callable[[], None], ranges: int) -> None:
    """Call a function from inside of a parallel region of torch, once in each of at least two ranges."""
    failed: list[BaseException] = []

    def callback(begin: int, end: int, _: int) -> None:
        try:
            for _ in range(begin, end):
                function()
        except BaseException as error:  # it must not cross the C code that called
            failed.append(error)

    kept = Callback(callback)
    assert team._torch_library().torch_parallel_for(0, ranges, 1, ctypes.cast(kept, ctypes.c_void_p), None) == 0
    if failed:
        raise failed[0]


def inputs() -> tuple[Tensor, Tensor, Tensor, Call]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, *SHAPE, generator=generator)
    causal = torch.ones(1, 1, SHAPE[2], SHAPE[2], dtype=torch.bool).tril()
    return query, key, value, Call.plain(query.new_empty(*SHAPE[:3], SHAPE[2]), causal)


def fused() -> list[Tensor]:
    query, key, value, call = inputs()
    stats = Histogram(), Mean(), Moments()
    output = attend(query, key, value, call, find_edges(call.allowed), None, [(stat, HEADS) for stat in stats])
    assert output is not None
    return [output, *(tensor for stat in stats for tensor in stat.state()[0].values())]


def counted() -> list[Tensor]:
    query, key, _, call = inputs()
    weights = torch.softmax((query @ key.mT).masked_fill(~call.allowed, -torch.inf), -1)
    edges = find_edges(call.allowed)
    assert edges is not None
    spans = Spans.of(edges, call.queries, SHAPE[0])
    stats = Histogram(), Mean()
    everything = Block(slice(0, SHAPE[0]), slice(0, SHAPE[1]), slice(0, SHAPE[2]), slice(0, SHAPE[2]), full=False)
    Feed.begin(call, spans, [(stat, HEADS) for stat in stats]).add(weights, everything)
    return [tensor for stat in stats for tensor in stat.state()[0].values()]


def sparse() -> list[Tensor]:
    query, key, value, _ = inputs()
    kept = torch.rand(SHAPE[1], SHAPE[2], SHAPE[2], generator=torch.Generator().manual_seed(2)) < 0.2
    start, stop = (torch.full((SHAPE[0], SHAPE[2]), edge) for edge in (0, SHAPE[2]))
    return [attend_sparse(query, key, value, 1.0, SparsePlan.of(kept), start, stop)]


def quantised() -> list[Tensor]:
    weights = torch.rand(200_000, generator=torch.Generator().manual_seed(3))
    return [make_codebook("linear-slog-clamped-midval", bits=3).apply(weights)]


PASSES = pytest.mark.parametrize("work", [fused, counted, sparse, quantised])


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


@PASSES
def test_any_number_of_threads_gives_the_same(work: Callable[[], list[Tensor]]) -> None:
    results = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        results.append(work())
    for result in results[1:]:
        assert_same(result, results[0])


@PASSES
@pytest.mark.parametrize("ranges", [2, 3])
def test_inside_of_a_parallel_region_all_of_the_work_is_done(work: Callable[[], list[Tensor]], ranges: int) -> None:
    """There torch calls a function once and not once on each thread."""
    torch.set_num_threads(3)
    wanted, found = work(), []
    in_parallel(lambda: found.append(work()), ranges)
    assert len(found) == ranges
    for result in found:
        assert_same(result, wanted)


def test_a_function_is_called_once_on_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from attrim.kernels import _compiled

    calls = []
    kept = Callback(lambda begin, end, _: calls.append((begin, end)))
    monkeypatch.setattr(_compiled, "count", ctypes.cast(kept, ctypes.c_void_p).value)
    torch.set_num_threads(3)
    team.run("count", team.CountParameters())
    assert sorted(calls) == [(0, 1), (1, 2), (2, 3)]
    calls.clear()
    in_parallel(lambda: team.run("count", team.CountParameters()), 2)
    assert calls == [(0, 3), (0, 3)]


def test_an_error_of_torch_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def torch_parallel_for(self, *_: object) -> int:
            return 1

        def torch_exception_get_what_without_backtrace(self) -> bytes:
            return b"no threads"

    monkeypatch.setattr(team, "_torch_library", Failing)
    with pytest.raises(RuntimeError, match=r"'count' on its threads: no threads$"):
        team.run("count", team.CountParameters())


@pytest.mark.parametrize("name", ["COUNT_SIZE", "ATTEND_SIZE", "LOOK_UP_SIZE", "SPARSE_SIZE", "INTERFACE"])
@pytest.mark.parametrize("known", [True, False])
def test_a_build_of_another_version_is_not_used(
    name: str, known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from attrim.kernels import _compiled

    if known:
        monkeypatch.setattr(_compiled, name, getattr(_compiled, name) - 1)
    else:
        monkeypatch.delattr(_compiled, name)
    assert team.available()
    with caplog.at_level(logging.WARNING):
        assert not team.available.__wrapped__()
    assert "another version of attrim" in caplog.text
    assert "install attrim again" in caplog.text
