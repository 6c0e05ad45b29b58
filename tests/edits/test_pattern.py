"""Patterns from averages: the oracles of spec/attention-pruning.md, and what every pattern must keep."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attrim.core.call import Call
from attrim.core.site import Select, Site
from attrim.edits.mask import Mask
from attrim.edits.pattern import SparsePattern, matching_window
from attrim.edits.ranking import bounding_block, lowest, nearest_percentile, tile_arrays, tiles_of
from attrim.edits.window import Window
from attrim.errors import DataError, ParameterError
from attrim.kernels.sparse import SIDE, SparsePlan
from attrim.stats.mean import Mean

TAUS = (0, 0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8, 0.9, 1)
PEAKY = [[0.70, 0.10, 0.10, 0.10], [0.05, 0.80, 0.10, 0.05], [0.02, 0.08, 0.85, 0.05], [0.01, 0.03, 0.06, 0.90]]
FLAT = [[0.25, 0.25, 0.25, 0.25], [0.22, 0.28, 0.24, 0.26], [0.21, 0.23, 0.27, 0.29], [0.20, 0.19, 0.30, 0.31]]
TWO = torch.tensor([PEAKY, FLAT])
CAUSAL = torch.tensor([[1.0, 0, 0, 0], [0.6, 0.4, 0, 0], [0.5, 0.3, 0.2, 0], [0.4, 0.1, 0.2, 0.3]])[None]
FUTURE = torch.ones(1, 4, 4, dtype=torch.bool).triu(1)


def cells_of(pattern: SparsePattern, site: str = "") -> Tensor:
    cells = pattern.mask.cells
    assert not isinstance(cells, Mask)
    return cells if isinstance(cells, Tensor) else cells[site]


def flags(*rows: str) -> list[list[bool]]:
    return [[digit == "1" for digit in row] for row in rows]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(4, "0111222233"), (5, "0112223344"), (8, "0123445667"), (10, "0224457789"), (16, "0 3 4 6 8 9 11 12 14 15")],
)
def test_oracle_p1(size: int, expected: str) -> None:
    places = [int(entry) for entry in (expected.split() if " " in expected else expected)]
    values = torch.arange(size).float()
    assert [nearest_percentile(values, tau) for tau in TAUS] == places
    removed = [int(cells_of(SparsePattern(values[None, None], tau, as_coded="transformer-xl")).sum()) for tau in TAUS]
    assert removed == [place + 1 for place in places]


def test_oracle_p1_halves_go_to_the_even_index() -> None:
    assert [nearest_percentile(torch.arange(size).float(), 0.5) for size in (2, 4, 6, 8, 10)] == [0, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("tau", "whole", "block"),
    [
        (0, (1, 0), (2, 0)),
        (0.25, (12, 0), (12, 0)),
        (0.5, (12, 5), (12, 5)),
        (0.75, (12, 12), (12, 12)),
        (0.9, (13, 16), (13, 16)),
    ],
)
def test_oracle_p2(tau: float, whole: tuple[int, int], block: tuple[int, int]) -> None:
    for as_coded, expected in (("transformer-xl", whole), ("bert", block), ("fairseq", block)):
        removed = cells_of(SparsePattern(TWO, tau, as_coded=as_coded))
        assert tuple(removed.flatten(1).sum(1).tolist()) == expected


def test_oracle_p2_cells() -> None:
    cells = cells_of(SparsePattern(TWO, 0.5, as_coded="bert"))
    assert cells[0].tolist() == (~torch.eye(4, dtype=torch.bool)).tolist()
    assert cells[1].tolist() == flags("0000", "1000", "1100", "1100")
    assert cells_of(SparsePattern(TWO, 0.75, as_coded="bert"))[1, 0].all()
    pattern = SparsePattern(TWO, 0.9, as_coded="bert")
    assert cells_of(pattern)[1].all()
    assert pattern.total.empty_rows == 5


@pytest.mark.parametrize(
    ("tau", "all_cells", "bar", "rows"),
    [
        (0.2, (0.0, 0), 0.2, ("0", "00", "001", "0110")),
        (0.4, (0.1, 1), 0.3, ("0", "00", "011", "0111")),
        (0.6, (0.3, 5), 0.4, ("0", "01", "011", "1111")),
        (0.8, (0.4, 7), 0.5, ("0", "01", "111", "1111")),
    ],
)
def test_oracle_p3(tau: float, all_cells: tuple[float, int], bar: float, rows: tuple[str, ...]) -> None:
    """Ranking all cells removes little of what is usable; the percentile of the admissible cells removes its share."""
    assert nearest_percentile(CAUSAL, tau) == pytest.approx(all_cells[0])
    admissible = CAUSAL.masked_fill(FUTURE, -1.0)
    pattern = SparsePattern(admissible, tau, as_coded="transformer-xl")
    assert pattern.total.removed == all_cells[1]
    assert pattern.total.cells == 10
    known = CAUSAL[~FUTURE]
    assert nearest_percentile(known, tau) == pytest.approx(bar)
    removed = (nearest_percentile(known, tau) >= CAUSAL) & ~FUTURE
    assert removed[0].tolist() == flags(*(row.ljust(4, "0") for row in rows))
    corrected = SparsePattern(admissible, tau)
    assert corrected.total.removed == int(10 * tau + 1e-9)
    # With the exact count, ties aside, the same cells fall: the percentile takes one more, and all that equal it.
    assert bool((removed | ~cells_of(corrected))[~FUTURE].all())


@pytest.mark.parametrize(("tau", "bar"), [(0.2, 0.0), (0.4, 0.2), (0.6, 0.4), (0.8, 0.5)])
def test_oracle_p3_with_the_released_block(tau: float, bar: float) -> None:
    assert bounding_block(CAUSAL, as_coded=True) == (3, 3)
    cells = cells_of(SparsePattern(CAUSAL.masked_fill(FUTURE, -1.0), tau, as_coded="fairseq"))
    assert torch.equal(cells, bar + 1e-7 >= CAUSAL)


def test_oracle_p3_effective_sparsity_of_transformer_xl() -> None:
    """150 queries after a memory of 150: structural zeros fill the low end of the ranking."""
    future = torch.ones(150, 300, dtype=torch.bool).triu(151)
    values = torch.rand(1, 150, 300, generator=torch.Generator().manual_seed(0)).add(0.1).masked_fill(future, -1.0)
    expected = {0.2: 0.0, 0.4: 0.2018, 0.6: 0.4678, 0.8: 0.7339, 0.9: 0.8670}
    for tau, effective in expected.items():
        pattern = SparsePattern(values, tau, as_coded="transformer-xl")
        assert pattern.total.nominal == tau
        assert pattern.total.effective == pytest.approx(effective, abs=1e-4)
        assert SparsePattern(values, tau).total.effective == pytest.approx(tau, abs=1e-4)
    for size, share in ((10, 0.45), (50, 0.49), (128, 0.496094)):
        assert float(torch.ones(size, size).triu(1).mean()) == pytest.approx(share, abs=1e-6)


def test_oracle_p4_block() -> None:
    values = torch.zeros(2, 5, 6)
    values[:, :3, :4] = 1.0
    assert bounding_block(values, as_coded=True) == bounding_block(values) == (3, 4)
    assert bounding_block(torch.ones(1, 4, 4), as_coded=True) == (3, 3)
    assert bounding_block(torch.ones(1, 4, 4)) == (4, 4)


def test_oracle_p6_tiles() -> None:
    kept = torch.zeros(1, 5, 5, dtype=torch.bool)
    for row, column in ((0, 0), (3, 2), (4, 4)):
        kept[0, row, column] = True
    fine, block, coarse = tile_arrays(~kept, 2)
    assert torch.equal(fine, kept)
    assert block[0].tolist() == flags("100", "010", "001")
    assert coarse[0].tolist() == flags("11000", "11000", "00110", "00110", "00001")
    assert [float(each.float().mean()) for each in (fine, coarse, block)] == pytest.approx([0.12, 0.36, 1 / 3])
    pattern = SparsePattern(kept.float(), 0.88, tile=2)
    assert pattern.total.removed == 16
    assert torch.equal(cells_of(pattern), ~coarse)
    assert pattern.total.tile_sparsity == pytest.approx(2 / 3)


@given(
    queries=st.integers(1, 70),
    keys=st.integers(1, 40),
    tau=st.sampled_from([0.3, 0.75, 0.9]),
    scope=st.sampled_from([None, "head", "model"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_columns_of_blocks_go_by_the_mass_that_their_queries_have_there(
    queries: int, keys: int, tau: float, scope: Any, seed: int
) -> None:
    """What the kernel computes is kept as a whole, and no other choice of as many columns keeps more."""
    averages = {
        f"layer.{number}": torch.rand(2, queries, keys, generator=_seeded(seed + number)) for number in range(2)
    }
    pattern = SparsePattern(averages, tau, scope, tile=SIDE, tile_keys=1, tiles="rank")
    blocks = -(-queries // SIDE)
    padded = {name: torch.nn.functional.pad(own, (0, 0, 0, blocks * SIDE - queries)) for name, own in averages.items()}
    sums = {name: own.view(2, blocks, SIDE, keys).sum(2) for name, own in padded.items()}
    grouped = {
        None: [own.flatten() for own in sums.values()],
        "head": [head.flatten() for own in sums.values() for head in own],
        "model": [torch.cat([own.flatten() for own in sums.values()])],
    }[scope]
    best = sum(float(own.topk(len(own) - int(len(own) * tau + 1e-9)).values.double().sum()) for own in grouped)
    kept = {name: ~cells_of(pattern, name) for name in averages}
    assert sum(float(averages[name][own].double().sum()) for name, own in kept.items()) == pytest.approx(best)
    for own in kept.values():
        computed = SparsePlan.of(own, reorder=False).computed()
        assert int(computed.sum()) == SIDE * int(tiles_of(own, (SIDE, 1)).sum())
    assert f"tiles of {SIDE} x 1 " in str(pattern.total)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_oracle_p6_of_the_follow_up_for_llama() -> None:
    pattern = SparsePattern(TWO, 0.5, as_coded="llama")
    kept = ~cells_of(pattern)
    assert kept.flatten(1).sum(1).tolist() == [8, 6]
    assert tiles_of(kept, 2).tolist() == [flags("11", "01"), flags("11", "01")]


def average_of_o8() -> Mean:
    """The averages that the oracle P8 shares with the constants: a formula for scores, three texts."""
    mean = Mean()
    for layer in range(2):
        texts, real = [], []
        for number, length in enumerate((4, 3, 2)):
            query, key = torch.arange(4)[:, None] + 1, torch.arange(4)[None, :] + 1
            scores = [((number + 1) * query + (layer + 1) * (head + 1) * key) % 5 for head in range(2)]
            keys = torch.arange(4) < length
            texts.append(torch.softmax(torch.stack(scores).double().masked_fill(~keys, float("-inf")), -1))
            real.append(keys)
        mean.update(torch.stack(texts), torch.stack(real), Site(f"layer.{layer}", "encoder", layer, 2))
    return mean


def test_oracle_p8() -> None:
    mean = average_of_o8()
    bars = {0: (0.087144, 0.308631, 0.360302), 1: (0.088947, 0.263236, 0.393209)}
    heads = {0: ((4, 5), (8, 9), (12, 12)), 1: ((5, 4), (8, 9), (12, 12))}
    for place, tau in enumerate((0.25, 0.5, 0.75)):
        pattern = SparsePattern(mean, tau, as_coded="transformer-xl")
        for layer in range(2):
            name = f"layer.{layer}"
            assert nearest_percentile(mean.matrix(name), tau) == pytest.approx(bars[layer][place], abs=1e-6)
            cells = cells_of(pattern, name)
            assert tuple(cells.flatten(1).sum(1).tolist()) == heads[layer][place]
            # The corrected rule counts exactly; the percentile takes one cell more.
            exact = cells_of(SparsePattern(mean, tau), name)
            assert int(exact.sum()) == int(32 * tau)
            assert bool((cells | ~exact).all())
    half = cells_of(SparsePattern(mean, 0.5, as_coded="transformer-xl"), "layer.0")
    assert half[0].tolist() == flags("0001", "1001", "0101", "1110")
    assert half[1].tolist() == flags("0010", "0111", "0101", "1011")
    block = SparsePattern(mean, 0.5, as_coded="bert")
    assert [int(cells_of(block, f"layer.{layer}").sum()) for layer in range(2)] == [20, 19]


def test_the_released_random_baseline_removes_int_of_the_block() -> None:
    values = torch.zeros(2, 5, 6)
    values[:, :3, :4] = 1.0
    pattern = SparsePattern(values, 0.3, choose="random", as_coded="fairseq")
    cells = cells_of(pattern)
    assert int(cells.sum()) == 7
    assert not cells[:, 3:].any()
    assert not cells[:, :, 4:].any()


# What every pattern keeps.

sizes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
shares = st.floats(0, 1)
scopes = st.sampled_from(["model", "layer", "head", "row"])


def averages(shape: tuple[int, int, int], seed: int, sites: int = 2) -> dict[str, Tensor]:
    """Averages with ties and cells that no text had."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for site in range(sites):
        values = torch.randint(0, 6, shape, generator=generator) / 6
        unknown = torch.rand(shape[1:], generator=generator) < 0.3
        unknown[0, 0] = False
        found[f"site{site}"] = values.masked_fill(unknown, -1.0)
    return found


def groups(cells: dict[str, Tensor], scope: str) -> list[Tensor]:
    tensors = list(cells.values())
    if scope == "model":
        return [torch.cat([tensor.flatten() for tensor in tensors])]
    axis = {"layer": 0, "head": 1, "row": 2}[scope]
    return [part for tensor in tensors for part in tensor.flatten(0, axis - 1).unbind() if axis] or [
        tensor.flatten() for tensor in tensors
    ]


@given(shape=sizes, seed=st.integers(0, 99), tau=shares, scope=scopes)
@settings(max_examples=60, deadline=None)
def test_exact_counts_and_no_structural_cell(shape: Any, seed: int, tau: float, scope: Any) -> None:
    given_ = averages(shape, seed)
    for choose in ("weakest", "random"):
        cells = SparsePattern(given_, tau, scope, choose=choose).mask.cells
        assert isinstance(cells, dict)
        known = {name: values >= 0 for name, values in given_.items()}
        assert not any(bool((cells[name] & ~known[name]).any()) for name in cells)
        for removed, seen in zip(groups(cells, scope), groups(known, scope), strict=True):
            assert int(removed.sum()) == int(int(seen.sum()) * tau + 1e-9)


@given(shape=sizes, seed=st.integers(0, 99), first=shares, second=shares, scope=scopes)
@settings(max_examples=60, deadline=None)
def test_a_larger_share_removes_the_same_cells_and_more(
    shape: Any, seed: int, first: float, second: float, scope: Any
) -> None:
    given_ = averages(shape, seed)
    low, high = sorted((first, second))
    for options in ({}, {"choose": "random"}, {"keep_row": 1}, {"tile": 2}, {"tile": 2, "tiles": "rank"}):
        less, more = (SparsePattern(given_, tau, scope, **options).mask.cells for tau in (low, high))
        assert all(bool((more[name] | ~less[name]).all()) for name in less)


@given(shape=sizes, seed=st.integers(0, 99), tau=shares, scope=scopes)
@settings(max_examples=40, deadline=None)
def test_removed_cells_are_not_stronger_than_kept_ones(shape: Any, seed: int, tau: float, scope: Any) -> None:
    given_ = averages(shape, seed)
    cells = SparsePattern(given_, tau, scope).mask.cells
    for removed, values in zip(groups(cells, scope), groups(given_, scope), strict=True):
        kept = values[~removed & (values >= 0)]
        if removed.any() and len(kept):
            assert values[removed].max() <= kept.min()


@given(shape=sizes, seed=st.integers(0, 99), tau=shares, rows=st.integers(1, 3), scope=scopes)
@settings(max_examples=40, deadline=None)
def test_what_is_protected_stays(shape: Any, seed: int, tau: float, rows: int, scope: Any) -> None:
    given_ = averages(shape, seed)
    key = min(1, max(each.shape[2] for each in given_.values()) - 1)  # one that the averages have
    pattern = SparsePattern(given_, tau, scope, keep_row=rows, keep_diagonal=True, keep_keys=(key,))
    for name, cells in pattern.mask.cells.items():
        known = given_[name] >= 0
        kept = (known & ~cells).sum(-1)
        assert bool((kept >= known.sum(-1).clamp_max(rows)).all())
        assert not cells.diagonal(dim1=1, dim2=2).any()
        assert not cells[:, :, key : key + 1].any()
    assert pattern.total.empty_rows == 0


@given(shape=sizes, seed=st.integers(0, 99), mass=st.floats(0.01, 1), scope=scopes)
@settings(max_examples=40, deadline=None)
def test_the_kept_mass_is_reached_with_the_fewest_cells(shape: Any, seed: int, mass: float, scope: Any) -> None:
    given_ = averages(shape, seed)
    cells = SparsePattern(given_, mass=mass, scope=scope).mask.cells
    for removed, values in zip(groups(cells, scope), groups(given_, scope), strict=True):
        values = values.double()
        kept = values[~removed & (values >= 0)]
        total = float(values.clamp_min(0).sum())
        assert float(kept.sum()) >= mass * total * (1 - 1e-9)
        if len(kept) and total:
            assert float(kept.sum() - kept.min()) < mass * total


def test_nothing_is_removed_at_zero_and_everything_at_one() -> None:
    assert not cells_of(SparsePattern(TWO, 0)).any()
    assert SparsePattern(TWO, 0).total.effective == 0
    assert cells_of(SparsePattern(TWO, 1)).all()
    assert SparsePattern(TWO, 1).total.empty_rows == 8


def test_of_equal_cells_the_later_go_first() -> None:
    cells = cells_of(SparsePattern(torch.ones(2, 2, 2), 0.5))
    assert cells.tolist() == [flags("00", "00"), flags("11", "11")]
    assert int(cells_of(SparsePattern(torch.ones(1, 10, 10), 0.29)).sum()) == 29  # 0.29 * 100 is below 29


def test_scopes_differ_as_they_should() -> None:
    removed = {scope: cells_of(SparsePattern(TWO, 0.5, scope)) for scope in ("layer", "head", "row")}
    assert removed["layer"].flatten(1).sum(1).tolist() == [12, 4]
    assert removed["head"].flatten(1).sum(1).tolist() == [8, 8]
    assert removed["row"].sum(-1).tolist() == [[2] * 4] * 2
    both = {"a": TWO[:1], "b": TWO[1:]}
    model = SparsePattern(both, 0.5, "model").mask.cells
    assert torch.equal(torch.cat(list(model.values())), removed["layer"])


def test_random_baselines_match_in_cells_or_in_mass_and_depend_on_the_seed_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    given_ = {name: torch.rand(2, 12, 12, generator=generator) ** 3 for name in ("a", "b")}
    learned = SparsePattern(given_, 0.6)
    drawn = SparsePattern(given_, 0.6, choose="random", seed=1)
    assert {name: facts.removed for name, facts in drawn.facts.items()} == {
        name: facts.removed for name, facts in learned.facts.items()
    }
    assert drawn.total.kept_mass < learned.total.kept_mass
    again, other = (SparsePattern(given_, 0.6, choose="random", seed=seed) for seed in (1, 2))
    assert all(torch.equal(drawn.mask.cells[name], again.mask.cells[name]) for name in given_)
    assert not torch.equal(drawn.mask.cells["a"], other.mask.cells["a"])
    assert not torch.equal(drawn.mask.cells["a"], drawn.mask.cells["b"])
    alone = SparsePattern({"b": given_["b"]}, 0.6, choose="random", seed=1)
    assert torch.equal(alone.mask.cells["b"], drawn.mask.cells["b"])
    mass = SparsePattern(given_, 0.6, choose="random-mass", seed=1)
    assert mass.total.kept_mass == pytest.approx(learned.total.kept_mass, abs=0.01)
    assert mass.total.kept_mass >= learned.total.kept_mass
    assert mass.total.removed < learned.total.removed


def test_tiles_are_ranked_by_their_mass_to_meet_a_budget() -> None:
    values = torch.rand(2, 7, 9, generator=torch.Generator().manual_seed(0))
    pattern = SparsePattern(values, 0.5, tile=2, tiles="rank")
    total = pattern.total
    assert (total.tiles, total.empty_tiles) == (2 * 4 * 5, 20)
    rounded = SparsePattern(values, 0.5, tile=2)
    assert rounded.total.tile_sparsity < 0.5
    sums = {}
    for head, row, column in itertools.product(range(2), range(4), range(5)):
        tile = values[head, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        gone = cells_of(pattern)[head, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert bool(gone.all()) == bool(gone.any())
        sums[head, row, column] = float(tile.sum()), bool(gone.all())
    ranked = [gone for _, gone in sorted(sums.values())]
    assert ranked == [True] * 20 + [False] * 20


@pytest.mark.parametrize("unseen", ["keep", "prune", "offset"])
def test_cells_that_no_text_had(unseen: Any) -> None:
    """Near keys matter, far ones do not; a cell in the middle was never seen, and longer texts come."""
    distance = (torch.arange(6)[:, None] - torch.arange(6)[None, :]).abs()
    values = torch.where(distance <= 1, 0.5, 0.01)[None]
    values[0, 4, 0] = values[0, 2, 3] = -1.0
    pattern = SparsePattern(values, 18 / 34, unseen=unseen)
    cells = cells_of(pattern)[0]
    assert pattern.total.cells == 34
    expected = {"keep": (False, False), "prune": (True, True), "offset": (True, False)}[unseen]
    assert (bool(cells[4, 0]), bool(cells[2, 3])) == expected
    scores = torch.zeros(1, 1, 9, 9)
    beyond = pattern.apply(scores)[0, 0, 8] > 0
    wanted = {"keep": [True] * 9, "prune": [False] * 9, "offset": [False] * 7 + [True] * 2}[unseen]
    assert beyond.tolist() == wanted


def test_a_selection_is_ranked_alone() -> None:
    mean = average_of_o8()
    pattern = SparsePattern(mean, 0.5, select=Select(layers=1, heads=[0]))
    assert list(pattern.facts) == ["layer.1"]
    cells = cells_of(pattern, "layer.1")
    assert (int(cells[0].sum()), int(cells[1].sum())) == (8, 0)
    assert pattern.total.cells == 16


def test_facts_are_said() -> None:
    pattern = SparsePattern(TWO, 0.75, tile=2)
    assert str(pattern.total) == (
        "nominal 75.0%, effective 50.0% of the cells removed, tiles of 2 50.0%, kept mass 71.0%, empty rows 0 of 8"
    )


def test_the_note_says_beyond_which_length_everything_is_kept() -> None:
    values = torch.rand(1, 6, 6)
    assert "beyond" not in SparsePattern(values, 0.5).note()
    values[:, 4:] = values[:, :, 4:] = -1.0
    assert SparsePattern(values, 0.5).note().endswith("texts up to 4 tokens, and every cell beyond these is kept")
    assert "beyond" not in SparsePattern(values, 0.5, unseen="prune").note()


def test_a_pattern_is_saved_as_its_mask() -> None:
    pattern = SparsePattern(TWO, 0.5, unseen="offset", empty="strongest")
    saved = pattern.to_save()
    assert isinstance(saved, Mask)
    assert saved.note() == f"pattern:2x4x4,tau=0.5,unseen=offset,empty=strongest: {pattern.total}"
    drawn = SparsePattern(TWO, 0.5, choose="random", seed=7).to_save()
    assert "seed=7" in drawn.note()
    scores = torch.randn(2, 2, 6, 6)
    assert torch.equal(saved.apply(scores), pattern.apply(scores))


def test_the_window_that_removes_as_much() -> None:
    mean = Mean()
    mean.update(torch.rand(1, 2, 20, 20), torch.ones(1, 1, 20, 20).tril())
    pattern = SparsePattern(mean, 0.6)
    size = matching_window(pattern, first=1)
    scores, allowed = torch.zeros(1, 1, 20, 20), torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()

    def share(width: int) -> float:
        kept = Window(width, first=1).apply(scores, allowed) > 0
        return 1 - float(kept.sum() / allowed.sum())

    nearest = min(range(1, 21), key=lambda width: abs(share(width) - pattern.total.effective))
    assert size == nearest


def test_lowest_takes_only_what_is_eligible() -> None:
    values, eligible = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[False, True, True]])
    assert lowest(values, eligible, torch.tensor([[5]])).tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs tau"),
        ({"tau": 0.5, "mass": 0.5}, "needs tau"),
        ({"tau": 1.5}, "between 0 and 1"),
        ({"tau": 80}, "not a percentage"),
        ({"mass": 0}, "above 0"),
        ({"tau": 0.5, "scope": "site"}, "one of model, layer, head, row"),
        ({"tau": 0.5, "tiles": "rank"}, "needs the side"),
        ({"tau": 0.5, "tile_keys": 1}, "tile_keys needs tile"),
        ({"tau": 0.5, "tile": 16, "tile_keys": 0}, "tile_keys must be at least 1"),
        ({"tau": 0.5, "tile": 0}, "at least 1"),
        ({"tau": 0.5, "seed": 3}, "leave it out"),
        ({"tau": 0.5, "scope": "row", "as_coded": "bert"}, "does not go with"),
        ({"tau": 0.5, "keep_row": -1}, "never negative"),
        ({"tau": 0.5, "keep_keys": (0, 9)}, "only the keys 0 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        assert SparsePattern(TWO, **options).mask


def test_empty_averages_are_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        SparsePattern(Mean(), 0.5)
    with pytest.raises(DataError, match="empty"):
        SparsePattern(-torch.ones(1, 2, 2), 0.5).total  # noqa: B018
    mean = average_of_o8()
    with pytest.raises(DataError, match="was not measured"):
        partly = Mean()
        site = Site("a", "encoder", 0, 2)
        call = Call.plain(torch.rand(1, 2, 3, 3), site=site).for_heads([0])
        partly.watch(torch.rand(1, 1, 3, 3), call)
        SparsePattern(partly, 0.5).total  # noqa: B018
    assert SparsePattern(mean, 0.5).total.cells == 64


@pytest.mark.parametrize("wrong", [{"keep_keys": torch.tensor(1)}, {"keep_keys": ("x",)}, {"tiles": torch.zeros(2)}])
def test_fields_of_the_wrong_type_are_refused(wrong: Any) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        SparsePattern(torch.rand(1, 3, 3), 0.5, **wrong)


def test_the_mass_that_is_kept_of_other_texts() -> None:
    averages, others = average_of_o8(), Mean()
    for layer in range(2):
        weights = torch.softmax(torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(layer)), -1)
        others.update(weights, None, Site(f"layer.{layer}", "encoder", layer, 2))
    pattern = SparsePattern(averages, 0.5, unseen="prune", others=others)
    assert pattern.kept_mass(averages) == pytest.approx(pattern.total.kept_mass)
    # The other texts are longer by one token, whose cells go.
    kept, mass = 0.0, 0.0
    for layer in range(2):
        matrix = others.matrix(others.sites[layer]).double()
        kept += float((matrix[:, :4, :4] * ~cells_of(pattern, f"layer.{layer}")).sum())
        mass += float(matrix.sum())
    assert pattern.kept_mass(others) == pytest.approx(kept / mass)
    assert pattern.note() == f"{pattern.total}, of other texts {kept / mass:.1%}"
    assert torch.equal(cells_of(pattern, "layer.0"), cells_of(SparsePattern(averages, 0.5, unseen="prune"), "layer.0"))
    with pytest.raises(ParameterError, match="others must be a Mean"):
        SparsePattern(averages, 0.5, others=TWO)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="empty"):
        SparsePattern(averages, 0.5, others=Mean())
