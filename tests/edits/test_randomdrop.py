from __future__ import annotations

import dataclasses

import pytest
import torch

from attrim.core.call import Call
from attrim.core.site import Site
from attrim.edits.randomdrop import RandomDrop, noise, random_drop
from attrim.errors import ParameterError

SIDE = 128


def dropped(seed: int = 0, share: float = 0.3, site: str = "plain") -> torch.Tensor:
    weights = torch.ones(1, 4, SIDE, SIDE)
    call = Call.plain(weights, site=Site(site, "encoder", 0, 4))
    return random_drop(weights, share, seed, call) == 0


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.8, 1.0])
def test_the_share_is_met(share: float) -> None:
    cells = 4 * SIDE * SIDE
    error = (share * (1 - share) / cells) ** 0.5
    assert dropped(share=share).double().mean().item() == pytest.approx(share, abs=4 * error + 1e-12)


def test_the_noise_is_even_and_independent_over_rows_keys_and_heads() -> None:
    values = noise(0, Call.plain(torch.ones(1, 4, SIDE, SIDE))).double() / 2**32
    counts = torch.histc(values.float(), 64, 0, 1)
    expected = values.numel() / 64
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert 30 < chi_squared < 110  # 63 degrees of freedom: outside with a probability below 1e-3
    limit = 4 / (4 * SIDE * SIDE) ** 0.5
    centred = values - 0.5
    for axis in (1, 2, 3):
        assert abs((centred * centred.roll(1, axis)).mean().item() * 12) < limit
    for axis in (2, 3):  # no row and no column is special
        spread = values.mean(axis).std().item()
        assert spread == pytest.approx((1 / 12 / SIDE) ** 0.5, rel=0.15)


def test_same_seed_same_cells_other_seed_or_site_other_cells() -> None:
    assert torch.equal(dropped(), dropped())
    for other in (dropped(seed=1), dropped(site="other")):
        agreement = (dropped() == other).double().mean().item()
        assert agreement == pytest.approx(0.3**2 + 0.7**2, abs=0.01)


def test_a_larger_share_drops_the_same_cells_and_more() -> None:
    assert (dropped(share=0.8) | ~dropped(share=0.3)).all()


def test_a_head_loses_the_same_cells_when_selected_alone() -> None:
    weights = torch.ones(1, 4, 8, 8)
    call = Call.plain(weights)
    alone = random_drop(weights[:, [2]], 0.5, 0, call.for_heads([2]))
    assert torch.equal(alone, random_drop(weights, 0.5, 0, call)[:, [2]])


def test_forbidden_cells_do_not_count_when_renormalized() -> None:
    allowed = torch.ones(1, 1, SIDE, SIDE, dtype=torch.bool).tril()
    kept = RandomDrop(0.5, renormalize=True).apply(torch.ones(1, 1, SIDE, SIDE), allowed)
    sums = kept.sum(-1)
    assert torch.logical_or(torch.isclose(sums, torch.ones(())), sums == 0).all()
    assert (kept.masked_select(~allowed) == 0).all()


def test_wrong_share_is_refused() -> None:
    with pytest.raises(ParameterError, match="between 0 and 1"):
        RandomDrop(1.5)
    assert dataclasses.replace(RandomDrop(0.5), share=0.2).share == 0.2
