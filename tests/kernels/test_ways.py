"""Each head by its cheapest way: every way gives what the kernel gives, and the cheapest one is chosen."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attrim
from attrim.baking.carrying import carrying
from attrim.core.site import Select
from attrim.kernels import rates as timing
from attrim.kernels import team, ways
from attrim.kernels.blocks import Edges
from attrim.kernels.rates import Rates, Timing, measure_rates, rates
from attrim.kernels.sparse import SparsePlan, attend_sparse
from attrim.kernels.ways import Choice, HeadPattern, Way, choose, kept_cells, patterns_of
from baked_models import ANIMALS

pytestmark = pytest.mark.skipif(
    not team.available() or team.PATHS[team.path()] == "torch", reason="the compiled passes are not used here"
)
EQUAL = Rates(dense=1.0, causal=0.5, masked=3.0, formed=1.0, computed=1.0, copied=0.0, moved=0.0)
"""A cell costs the kernel what it costs SDPA."""
SLOW_KERNEL = Rates(dense=1.0, causal=0.5, masked=1.2, formed=0.1, computed=4.0, copied=0.0, moved=0.0)


def pattern(heads: tuple[int, ...], share: float, length: int = 100) -> HeadPattern:
    return HeadPattern(heads, int(share * length**2), share == 1)


@pytest.mark.parametrize(
    ("costs", "shares", "expected"),
    [
        (EQUAL, (1.0, 0.1), {"sparse": (0, 1)}),  # the kernel does dense heads as well, in one call
        (SLOW_KERNEL, (1.0, 0.1), {"dense": (0,), "sparse": (1,)}),
        (SLOW_KERNEL, (1.0, 0.5), {"dense": (0,), "masked": (1,)}),
        (SLOW_KERNEL, (0.9, 0.8), {"masked": (0, 1)}),
        (SLOW_KERNEL, (1.0, 0.5, 0.1), {"dense": (0,), "masked": (1,), "sparse": (2,)}),
    ],
)
def test_the_cheapest_ways(costs: Rates, shares: tuple[float, ...], expected: dict[Way, tuple[int, ...]]) -> None:
    choice = choose([pattern((head,), share) for head, share in enumerate(shares)], 2, 100, 100, "whole", costs)
    assert {way: heads for way, heads in choice.heads.items() if heads} == expected


def test_heads_stay_together_where_splitting_costs_more() -> None:
    heads = [pattern((0,), 1.0), pattern((1,), 0.1)]
    split = choose(heads, 1, 100, 100, "whole", SLOW_KERNEL)
    dear = Rates(**{**vars(SLOW_KERNEL), "moved": 1000.0})
    together = choose(heads, 1, 100, 100, "whole", dear)
    assert split.heads["dense"] == (0,)
    assert together.heads["masked"] == (0, 1)


@given(
    shares=st.lists(st.sampled_from([0.05, 0.3, 0.7, 1.0]), min_size=1, max_size=5),
    costs=st.builds(Rates, *[st.floats(0.01, 10.0)] * 7),
    structure=st.sampled_from([None, "whole", "causal"]),
)
def test_never_slower_than_all_dense_with_a_mask(shares: list[float], costs: Rates, structure: Any) -> None:
    patterns = [pattern((head,), share) for head, share in enumerate(shares)]
    choice = choose(patterns, 3, 100, 100, structure, costs)
    assert sorted(head for heads in choice.heads.values() for head in heads) == list(range(len(shares)))
    assert choice.seconds <= choice.masked / ways.WORTH
    assert set(choice.heads["dense"]) <= {head for head, share in enumerate(shares) if share == 1}


def forced(heads: dict[Way, tuple[int, ...]]) -> Any:
    return lambda *_: Choice({way: heads.get(way, ()) for way in ways.WAYS}, 0.0, 0.0, 0.0)


SPLITS: list[dict[Way, tuple[int, ...]]] = [
    {"sparse": (0, 1, 2, 3)},
    {"masked": (0, 1, 2, 3)},
    {"dense": (1,), "sparse": (0, 2, 3)},
    {"dense": (1,), "masked": (0,), "sparse": (2, 3)},
    {"masked": (2, 3), "sparse": (0, 1)},
]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("structure", ["whole", "causal", "padded"])
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_way_gives_the_same(
    split: dict[Way, tuple[int, ...]], structure: str, groups: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    length, batch = 90, 2
    kept = torch.rand(4, 128, 128) < 0.3
    kept[1] = True
    kept[0, 5] = False  # a row with nothing left
    plan = SparsePlan.of(kept)
    query = torch.randn(batch, 4, length, 16).to(dtype)
    key, value = torch.randn(2, batch, groups, length, 16).to(dtype).unbind()
    start, stop = torch.zeros(1, length, dtype=torch.int64), torch.full((1, length), length)
    if structure == "causal":
        stop = torch.arange(1, length + 1)[None]
    if structure == "padded":
        start, stop = start.expand(batch, -1), torch.tensor([[length], [40]]).expand(-1, length)
    expected = attend_sparse(query, key, value, 0.3, plan, start.expand(batch, -1), stop.expand(batch, -1))
    monkeypatch.setattr(ways, "SMALL", 0)
    monkeypatch.setattr(ways, "choose", forced(split))
    with torch.inference_mode(), ways.noting() as noted:
        for _ in range(2):  # the second time with what was kept of the first
            found = ways.attend(query, key, value, 0.3, plan, Edges(start, stop), "here")
            torch.testing.assert_close(found, expected, atol=2e-5 if dtype == torch.float32 else 2e-2, rtol=1e-3)
    assert [note.site for note in noted] == ["here", "here"]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_batches_of_other_sizes(name: str, split: dict[Way, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch of a data set is smaller than those before it, and has texts of the same length."""
    model = ANIMALS[name].build()
    edit = attrim.Mask(torch.rand(4, 50, 50, generator=torch.Generator().manual_seed(0)) < 0.5)
    edit = attrim.Mask(edit.cells & (torch.arange(4) != 1)[:, None, None])  # a head that keeps everything
    baked = attrim.bake(model, edit)
    monkeypatch.setattr(ways, "SMALL", 0)
    monkeypatch.setattr(ways, "choose", forced(split))
    for size in (2, 1, 3, 5, 2):
        ids = torch.randint(5, 50, (size, 33), generator=torch.Generator().manual_seed(size))
        with attrim.edit(model, edit):
            expected = model(ids).logits
        with torch.no_grad(), ways.noting() as noted:
            torch.testing.assert_close(baked(ids).logits, expected, atol=1e-4, rtol=1e-4)
        assert noted


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_cells_of_a_plan_are_those_that_it_was_made_of(seed: int, queries: int, keys: int, causal: bool) -> None:
    kept = torch.rand(3, queries, keys, generator=torch.Generator().manual_seed(seed)) < 0.3
    plan = SparsePlan.of(kept, causal=causal)
    for head in range(3):
        cells = kept_cells(plan, int(plan.pattern_of[head]))
        assert (torch.from_numpy(cells) == (kept[head].tril() if causal else kept[head])).all()


def test_patterns_count_what_a_shorter_or_causal_text_needs() -> None:
    kept = torch.ones(2, 64, 64, dtype=torch.bool)
    kept[1] = kept[1].tril().triu(-3)
    plan = SparsePlan.of(kept, reorder=False)
    whole, band = sorted(patterns_of(plan, 64, 64, causal=False), key=lambda own: own.heads)
    assert (whole.heads, whole.computed, whole.whole) == ((0,), 64 * 64, True)
    assert (band.heads, band.computed, band.whole) == ((1,), 16 * (16 + 3 * 19), False)
    assert patterns_of(plan, 32, 32, causal=False)[int(plan.pattern_of[0])].computed == 32 * 32
    assert [own.whole for own in patterns_of(plan, 32, 32, causal=False)] == [True, False]
    assert patterns_of(plan, 64, 64, causal=True)[int(plan.pattern_of[0])].computed == 16 * (16 + 32 + 48 + 64)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2), st.booleans())
def test_whole_patterns_keep_everything_of_a_shorter_text(
    seed: int, queries: int, keys: int, removed: int, causal: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.ones(3, 40, 40, dtype=torch.bool)
    for head in range(3):
        places = torch.randint(0, 40, (removed, 2), generator=generator)
        kept[head, places[:, 0], places[:, 1]] = False
    plan = SparsePlan.of(kept, causal=causal)
    size = (queries, min(queries, keys)) if causal else (queries, keys)
    for own in patterns_of(plan, *size, causal=causal):
        cells = kept[own.heads[0], : size[0], : size[1]]
        everything = torch.ones_like(cells).tril() if causal else torch.ones_like(cells)
        assert own.whole == bool((cells | ~everything).all())


def test_rates_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIM_CACHE", str(tmp_path / "cache"))
    measured: list[int] = []

    def measure(dtype: torch.dtype, size: int, length: int) -> Timing:
        measured.append(length)
        return Timing(EQUAL, 0.01, time.time())

    monkeypatch.setattr(timing, "measure_rates", measure)

    def ask(length: int) -> Rates:
        timing._used.clear()  # as a new process would
        return rates(torch.float32, 64, length)

    assert ask(100) == EQUAL == ask(128)
    assert measured == [128]
    ask(100_000)
    assert measured == [128, timing.LENGTHS[-1]]
    path = tmp_path / "cache" / timing.FILE
    before = path.read_text()
    for damage in ("", "{}", "[1]", before[:-40], before.replace('"dense": 1.0', '"dense": 2.0'), json.dumps({"a": 1})):
        path.write_text(damage)
        measured.clear()
        assert ask(128) == EQUAL
        assert measured == [128]
        ask(128)
        assert measured == [128], "it was written again"
    timing._used.clear()


def test_seconds_of_a_busy_machine_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used, but every process measures again until two rounds agree, and the steadiest are kept."""
    monkeypatch.setenv("ATTRIM_CACHE", str(tmp_path))
    now, month = time.time(), timing.OLD * 86400
    measured: list[Timing] = []

    def ask(*given: tuple[float, float, float]) -> float:
        """What a new process takes for the seconds of a dense cell, where it would measure what is given."""
        coming = [Timing(dataclasses.replace(EQUAL, dense=dense), spread, at) for dense, spread, at in given]

        def measure(*_: object) -> Timing:
            measured.append(coming.pop(0))
            return measured[-1]

        monkeypatch.setattr(timing, "measure_rates", measure)
        timing._used.clear()
        return rates(torch.float32, 64, 128).dense

    assert ask((3.0, 0.5, now)) == 3.0
    assert "while it was busy" in str(timing.source())
    assert ask((4.0, 0.8, now)) == 3.0
    assert ask((2.0, 0.3, now)) == 2.0
    assert ask((1.0, 0.05, now - 2 * month)) == 1.0
    assert len(measured) == 4
    # What is old is measured again, and kept all the same where that does not go well.
    assert ask((5.0, 0.4, now)) == 1.0
    assert ask((1.5, 0.07, now)) == 1.5
    assert len(measured) == 6
    assert ask() == 1.5, "nothing is measured"
    assert "while it was busy" not in str(timing.source())
    assert str(tmp_path / timing.FILE) in str(timing.source())
    timing._used.clear()


def test_rounds_go_on_until_two_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def spread_of(lengths: list[float]) -> tuple[float, float, int]:
        clock, taken = [0.0], iter(lengths)
        monkeypatch.setattr(timing.time, "process_time", lambda: clock[0])

        def way() -> None:
            clock[0] += next(taken)

        least, spread = timing._timed({"one": way})
        return least["one"] * torch.get_num_threads(), spread, len(list(taken))

    # The first number is that of the round that warms up, the last one of what is returned how many rounds were left.
    assert spread_of([9, 2.0, 3, 4, 2.1]) == pytest.approx((2.0, 0.05, 0))
    assert spread_of([9, 2.0, 3, 4, 5, 5, 1.0, 5, 1.05, 7, 7]) == pytest.approx((1.0, 0.05, 2))
    rising = [1.2**number for number in range(timing.MOST_ROUNDS + 1)]
    assert spread_of(rising) == pytest.approx((1.2, 0.2, 0))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTRIM_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(timing, "measure_rates", lambda *_: Timing(EQUAL, 0.01, time.time()))
    timing._used.clear()
    assert rates(torch.float32, 64, 128) == EQUAL
    timing._used.clear()


def test_measured_rates_are_seconds() -> None:
    timed = measure_rates(torch.float32, 16, 128)
    found = timed.rates
    assert timed.spread >= 0
    assert 0 <= time.time() - timed.measured < 600
    assert all(0 <= value < 1e-3 for value in vars(found).values())
    assert min(found.dense, found.masked, found.computed) > 0


def test_a_mask_never_saves_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that other work did not slow down said so, and heads that are whole went by the slower way."""
    seconds = {"dense": 2.0, "causal": 1.0, "masked": 1.5, "formed": 1.0, "full": 3.0, "band": 1.0, "moved": 0.1}
    monkeypatch.setattr(timing, "_timed", lambda _: (seconds, 0.01))
    found = measure_rates(torch.float32, 16, 128).rates
    assert found.masked == found.dense == pytest.approx(2.0 / (4 * 128**2))
    seconds["masked"] = 3.0
    assert measure_rates(torch.float32, 16, 128).rates.masked == pytest.approx(1.5 * found.dense)


def test_a_baked_model_by_any_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense heads by SDPA and masked ones with a mask compute what the edited model does."""
    model = ANIMALS["llama"].build()
    baked = attrim.bake(model, attrim.Window(3, first=1, select=Select(heads=[(0, 1), (1, 2)])))
    tokens = torch.randint(5, 50, (2, 30))
    monkeypatch.setattr(ways, "SMALL", 0)
    outputs: list[Tensor] = []
    with torch.no_grad():
        for split in ({"sparse": (0, 1, 2, 3)}, {"masked": (0, 1, 2, 3)}):
            monkeypatch.setattr(ways, "choose", forced(split))  # type: ignore[arg-type]
            ways._choices.clear()
            with carrying(baked), ways.noting() as noted:
                outputs.append(baked(tokens).logits)
            assert len(noted) == 2
        with attrim.edit(model, attrim.Window(3, first=1, select=Select(heads=[(0, 1), (1, 2)]))):
            expected = model(tokens).logits
    for found in outputs:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_large_masks_are_not_kept(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be one for each layer; the choice counts what forming one in every pass takes."""
    pattern = (HeadPattern((0, 1), 64 * 64, whole=False),)
    monkeypatch.setattr(ways, "MOST_MASK", 2 * 64 * 64 * 4 - (not kept))
    costs = Rates(dense=1.0, causal=1.0, masked=1.0, formed=8.0, computed=3.0, copied=0.0, moved=0.0)
    choice = choose(pattern, 1, 64, 64, "whole", costs)
    assert choice.heads["masked" if kept else "sparse"] == (0, 1)
    plan = SparsePlan.of(torch.rand(2, 64, 64) < 0.5)
    edges = Edges(torch.zeros(1, 64, dtype=torch.int64), torch.full((1, 64), 64))
    ways._mask(plan, (0, 1), 64, 64, edges, "whole", torch.float32)
    assert len(ways._masks[plan]) == kept
