"""Work in one line: in turn, bounded, and given up when its client has gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from attrim.web.guard import Refused
from attrim.web.live import LiveModel
from attrim.web.looking import Watching
from attrim.web.worker import Cancelled, Superseded, WorkLine


class Client:
    """Somebody who waits for an answer until told to go."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Runs a test that is a coroutine."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


@in_loop
async def test_work_is_done_one_by_one_in_its_turn() -> None:
    line = WorkLine()
    at_work: list[int] = []
    done: list[int] = []

    def piece(number: int) -> int:
        at_work.append(number)
        assert len(at_work) == 1
        time.sleep(0.01)
        at_work.remove(number)
        done.append(number)
        return number

    found = await asyncio.gather(*(line.run(Client().receive, lambda _, own=own: piece(own)) for own in range(8)))
    assert found == done == list(range(8))
    line.close()


@in_loop
async def test_errors_come_back_and_the_line_goes_on() -> None:
    line = WorkLine()

    def broken(_: Cancelled) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await line.run(Client().receive, broken)
    assert await line.run(Client().receive, lambda _: 7) == 7
    line.close()


@in_loop
async def test_the_line_is_bounded() -> None:
    line = WorkLine(waiting=2)
    go = threading.Event()
    jobs = [asyncio.ensure_future(line.run(Client().receive, lambda _: go.wait(10))) for _ in range(3)]
    await asyncio.sleep(0.05)
    with pytest.raises(Refused, match="2 requests wait") as refused:
        await line.run(Client().receive, lambda _: None)
    assert refused.value.status == 503
    go.set()
    await asyncio.gather(*jobs)
    assert await line.run(Client().receive, lambda _: 1) == 1  # places are free again
    line.close()


@in_loop
async def test_nobody_waits_forever() -> None:
    line = WorkLine(patience=0.2)
    go = threading.Event()
    first = asyncio.ensure_future(line.run(Client().receive, lambda _: go.wait(10)))
    await asyncio.sleep(0.02)
    with pytest.raises(Refused, match="busy for") as refused:
        await line.run(Client().receive, lambda _: None)
    assert refused.value.status == 503
    go.set()
    await first
    assert await line.run(Client().receive, lambda _: 1) == 1
    line.close()


@in_loop
async def test_who_goes_while_waiting_is_never_served() -> None:
    line = WorkLine()
    go, served, leaver = threading.Event(), [], Client()
    first = asyncio.ensure_future(line.run(Client().receive, lambda _: go.wait(10)))
    await asyncio.sleep(0.02)
    second = asyncio.ensure_future(line.run(leaver.receive, lambda _: served.append(1)))
    await asyncio.sleep(0.02)
    leaver.gone.set()
    with pytest.raises(Superseded):
        await second
    go.set()
    await first
    assert await line.run(Client().receive, lambda _: 1) == 1
    assert not served
    assert line.dropped == 1
    line.close()


@in_loop
async def test_who_goes_while_served_is_told_so() -> None:
    line = WorkLine()
    leaver, steps = Client(), []

    def work(cancelled: Cancelled) -> None:
        for step in range(1000):
            steps.append(step)
            time.sleep(0.01)
            cancelled.check()

    job = asyncio.ensure_future(line.run(leaver.receive, work))
    await until(lambda: len(steps) > 2)
    leaver.gone.set()
    with pytest.raises(Superseded):
        await job
    assert len(steps) < 100
    assert line.dropped == 1
    assert await line.run(Client().receive, lambda _: 1) == 1
    line.close()


@in_loop
async def test_closing_ends_what_is_at_work() -> None:
    line = WorkLine()
    begun = threading.Event()

    def work(cancelled: Cancelled) -> None:
        begun.set()
        while True:
            time.sleep(0.01)
            cancelled.check()

    job = asyncio.ensure_future(line.run(Client().receive, work))
    await until(begun.is_set)
    await asyncio.to_thread(line.close)
    with pytest.raises(Superseded):
        await job


def test_a_pass_through_the_model_ends_between_sites(classifier: LiveModel) -> None:
    from attrim.attention.context import attach

    cancelled = Cancelled()
    watching = Watching(cancelled)
    seen = []
    watch = watching.watch

    def leave_after_one(*given: Any) -> None:
        watch(*given)
        seen.append(given)
        cancelled.set()

    watching.watch = leave_after_one  # type: ignore[method-assign]
    batch = dict(classifier.tokenizer("a text", return_tensors="pt"))
    with pytest.raises(Superseded), attach(classifier.model, stats=[watching]):
        classifier.model(**batch)
    assert len(seen) == 1
    assert len(classifier.sites) > 1
    assert classifier.model(**batch).logits.shape[0] == 1  # the model is as it was
