"""Any split of the examples, in any order, gives the same integers; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.core.call import Call
from attrim.core.site import Site
from attrim.errors import ArtefactError
from attrim.stats import Histogram, Mean, Sample
from attrim.stats.base import SiteStat
from methods import STATS

LENGTHS = [1, 7, 3, 6, 2, 7]


def example(number: int) -> torch.Tensor:
    """The attention ``[2, n, n]`` of one example."""
    generator = torch.Generator().manual_seed(number)
    return torch.softmax(6 * torch.randn(2, LENGTHS[number], LENGTHS[number], generator=generator), -1)


def batch(numbers: list[int], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples padded to one length, with something that must not count on the padding."""
    weights = torch.full((len(numbers), 2, longest, longest), 0.123)
    for place, number in enumerate(numbers):
        weights[place, :, : LENGTHS[number], : LENGTHS[number]] = example(number)
    real = torch.arange(longest)[None] < torch.tensor([LENGTHS[number] for number in numbers])[:, None]
    return weights, real


def equal(left: SiteStat, right: SiteStat) -> bool:
    (mine, _), (theirs, _) = left.state(), right.state()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("make", STATS)
@given(data=st.data())
def test_any_split_and_order_gives_the_same_integers(make: Callable[[], SiteStat], data: st.DataObject) -> None:
    whole = make()
    whole.update(*batch(list(range(len(LENGTHS))), 7))
    order = data.draw(st.permutations(range(len(LENGTHS))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(LENGTHS) - 1))))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(LENGTHS)], strict=True):
        numbers = order[start:stop]
        longest = max(LENGTHS[number] for number in numbers) + data.draw(st.integers(0, 3))
        part = make()
        part.update(*batch(numbers, longest))
        parts.append(part)
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert equal(merged, whole)


@pytest.mark.parametrize("make", [*STATS, Sample])
def test_state_and_load_are_inverse(make: Callable[[], SiteStat]) -> None:
    stat = make()
    stat.update(*batch([0, 1, 2], 7))
    loaded = type(stat).load(*stat.state())
    assert equal(stat, loaded)
    assert loaded.options() == stat.options()
    assert loaded.sites == stat.sites


def test_merging_leaves_the_other_alone() -> None:
    one, other = Mean(), Mean()
    other.update(*batch([0, 1], 7))
    before = {name: tensor.clone() for name, tensor in other.state()[0].items()}
    one.merge(other)
    one.update(*batch([1], 7))
    assert all(torch.equal(other.state()[0][name], tensor) for name, tensor in before.items())


def test_other_kinds_options_sites_and_heads_are_refused_by_name() -> None:
    weights, real = batch([1], 7)
    with pytest.raises(ArtefactError, match="Histogram"):
        Mean().merge(Histogram())  # type: ignore[arg-type]
    with pytest.raises(ArtefactError, match=r"bar=0\.1"):
        Histogram(bar=0.1).merge(Histogram())
    here, there = Mean(), Mean()
    here.update(weights, real)
    there.update(weights, real, Site("plain", "decoder", 0, 2))
    with pytest.raises(ArtefactError, match="site"):
        here.merge(there)
    some = Mean()
    some.watch(weights[:, :1], Call.plain(weights, real).for_heads([0]))
    with pytest.raises(ArtefactError, match="heads"):
        here.merge(some)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [*STATS, Sample])
def test_other_dtypes(make: Callable[[], SiteStat], dtype: torch.dtype) -> None:
    weights, real = batch([3, 4], 7)
    stat, same = make(), make()
    stat.update(weights.to(dtype), real)
    same.update(weights.to(dtype).to(torch.float64), real)
    if not isinstance(stat, Sample):
        assert equal(stat, same)
    else:
        assert stat.matrices("plain")[0].dtype == dtype
