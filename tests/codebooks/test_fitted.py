"""Codebooks that are fitted to a histogram: Lloyd-Max and calibrated ranges."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attrim.codebooks import make_codebook
from attrim.codebooks.fitted import bin_values, entropy_search, grid_search, lloyd_max, mean_divergence
from attrim.codebooks.fixed import quant_8_linear
from attrim.core.call import Call
from attrim.core.registry import EDITS
from attrim.core.site import Select, Site
from attrim.core.text import describe, parse
from attrim.edits import load_edits, save_edits
from attrim.edits.quantize import Quantize
from attrim.errors import ArtefactError, AttrimError, DataError, ParameterError, SiteError
from attrim.stats.bundle import save_stats
from attrim.stats.histogram import Histogram
from attrim.stats.mean import Mean
from codebooks.tables import FITTED, X

SITE = Site("plain", "encoder", 0, 3)


def attention(seed: int = 0) -> Tensor:
    scale = torch.tensor([0.5, 2.0, 6.0])[None, :, None, None]
    return torch.softmax(torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(seed)) * scale, -1)


def histogram(site: Site = SITE) -> Histogram:
    stat = Histogram()
    stat.update(attention(), site=site)
    return stat


def error(values: Tensor, counts: Tensor, levels: Tensor) -> float:
    """Mean square error with the nearest of zero and the levels."""
    levels = torch.cat([levels.new_zeros(1), levels])
    nearest = (values[:, None] - levels).abs().min(-1).values
    return float((nearest**2 * counts).sum() / counts.sum())


@given(seed=st.integers(0, 30), bits=st.integers(1, 3), power=st.floats(1, 6))
def test_lloyd_max_cannot_be_improved_by_moving_a_level(seed: int, bits: int, power: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(200, generator=generator, dtype=torch.float64).pow(power).sort().values
    counts = torch.randint(0, 50, (200,), generator=generator).double()
    levels = lloyd_max(values, counts, bits).values[1:]
    best = error(values, counts, levels)
    for place in range(len(levels)):
        for factor in (0.99, 1.01):
            moved = levels.clone()
            moved[place] *= factor
            assert error(values, counts, moved) >= best - 1e-15


def test_lloyd_max_finds_the_best_of_all_small_cases() -> None:
    """Against all ways to cut 12 values into zero's bin and three more."""
    values = torch.tensor([0.001, 0.002, 0.004, 0.01, 0.03, 0.05, 0.1, 0.11, 0.3, 0.35, 0.8, 0.9], dtype=torch.float64)
    counts = torch.tensor([900, 500, 400, 300, 100, 60, 40, 30, 20, 10, 5, 4], dtype=torch.float64)
    best = min(
        error(values, counts, torch.stack([_mean(values, counts, cut) for cut in ((a, b), (b, c), (c, 12))]))
        for a in range(10)
        for b in range(a + 1, 11)
        for c in range(b + 1, 12)
    )
    assert error(values, counts, lloyd_max(values, counts, 2).values[1:]) == pytest.approx(best, rel=1e-9)


def _mean(values: Tensor, counts: Tensor, cut: tuple[int, int]) -> Tensor:
    part = slice(*cut)
    return (values[part] * counts[part]).sum() / counts[part].sum()


def test_lloyd_max_beats_every_fixed_codebook_in_square_error() -> None:
    weights = attention()
    for scope in ("head", "layer"):
        fitted = Quantize("lloyd-max", 3, scope=scope, fitted=histogram()).apply(weights)
        for method in ("linear-slinear", "linear-slog-clamped-midval", "quant-8-log", "linear-slog-midval"):
            fixed = make_codebook(method, 3).apply(weights)
            assert (fitted - weights).square().mean() < (fixed - weights).square().mean()


def test_scopes_of_a_fit() -> None:
    weights = attention()
    by_head = Quantize("lloyd-max", 2, fitted=histogram()).apply(weights)
    by_layer = Quantize("lloyd-max", 2, scope="layer", fitted=histogram()).apply(weights)
    assert [len(by_head[:, head].unique()) for head in range(3)] == [4, 4, 4]
    assert len(by_layer.unique()) == 4
    assert (by_head - weights).square().mean() < (by_layer - weights).square().mean()
    # A fitted codebook does not depend on what else is quantised.
    some = Quantize("lloyd-max", 2, fitted=histogram(), select=Select(heads=[0, 2])).apply(weights)
    assert torch.equal(some[:, [0, 2]], by_head[:, [0, 2]])
    assert torch.equal(some[:, 1], weights[:, 1])


@pytest.mark.parametrize("method", ["lloyd-max", "calibrated-linear", "calibrated-log"])
def test_saved_loaded_and_read_from_text(method: str, tmp_path) -> None:
    edit = Quantize(method, 4, fitted=histogram())
    weights = attention(3)
    expected = edit.apply(weights)
    assert torch.equal(load_edits(save_edits(edit, tmp_path / "edits"))[0].apply(weights), expected)
    save_stats([Mean(), histogram()], tmp_path / "stats")
    read = parse(EDITS, f"quantize:{method},4,fitted={tmp_path / 'stats'}")
    assert torch.equal(read.apply(weights), expected)
    assert describe(read) == f"quantize:{method},bits=4,fitted=1 site"


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@pytest.mark.parametrize("method", FITTED)
def test_edge_cases_of_fitted_codebooks(method: str, bits: int) -> None:
    """The vector X of the other methods: nothing above 1, the top weight not zero, zero stays zero, growing, stable."""
    edit = Quantize(method, bits, fitted=histogram())
    weights = torch.tensor(X).expand(1, 3, 1, len(X))
    found = edit.edit_weights(weights, Call.plain(weights, site=SITE))
    assert (found <= 1).all()
    assert (found[..., 0] > 0).all()
    assert (found[..., -1] == 0).all()
    assert (found.diff(dim=-1) <= 0).all()  # X falls
    torch.testing.assert_close(edit.edit_weights(found, Call.plain(found, site=SITE)), found)


def test_without_a_fit(tmp_path) -> None:
    with pytest.raises(ParameterError, match="fitted to data; give fitted"):
        Quantize("lloyd-max", 3)
    with pytest.raises(ParameterError, match="not fitted to data"):
        Quantize("linear-slog", 3, fitted=histogram())
    with pytest.raises(ParameterError, match="not in the paper's code"):
        Quantize("lloyd-max", 3, fitted=histogram(), as_coded=True)
    with pytest.raises(SiteError, match="There is no codebook for site 'plain'"):
        Quantize("lloyd-max", 3, fitted=histogram(Site("other", "encoder", 0, 3))).apply(attention())
    with pytest.raises(AttrimError, match="did you mean 'grid'"):
        Quantize("calibrated-linear", 3, search="gird", fitted=histogram())
    save_stats([Mean()], tmp_path)
    with pytest.raises(ArtefactError, match="holds no histogram"):
        parse(EDITS, f"quantize:lloyd-max,3,fitted={tmp_path}")
    partly = Histogram()
    weights = attention()
    partly.watch(weights[:, :2], Call.plain(weights, site=SITE).for_heads([0, 1]))
    with pytest.raises(DataError, match="Head 2 of site 'plain' was not measured"):
        Quantize("lloyd-max", 3, fitted=partly)
    assert Quantize("lloyd-max", 3, scope="layer", fitted=partly).apply(weights).shape == weights.shape


def test_the_grid_search_tries_all_ranges() -> None:
    """Against the released definition, written out with numpy on the weights themselves."""
    generator = numpy.random.default_rng(0)
    values = generator.beta(0.3, 5, 4000)

    def released(low: float, high: float) -> float:
        quantised = quant_8_linear(3, low, high).apply(torch.from_numpy(values)).numpy()
        first, second = (numpy.histogram(side, 200, (0, 1))[0] / len(values) for side in (values, quantised))
        with numpy.errstate(divide="ignore", invalid="ignore"):
            from scipy.special import kl_div

            terms = kl_div(first, second)
        return float(terms[numpy.isfinite(terms)].mean())

    weights = torch.from_numpy(values)
    low, high = grid_search(weights, torch.ones_like(weights), lambda *ends: quant_8_linear(3, *ends), False)
    every = {(a / 10000, b / 1000): released(a / 10000, b / 1000) for a in range(20) for b in range(990, 1001)}
    assert released(low, high) == pytest.approx(min(every.values()), rel=1e-9)


def test_divergence_by_hand() -> None:
    before, after = numpy.array([2.0, 1.0, 1.0]), numpy.array([1.0, 1.0, 0.0])
    # Shares 1/2, 1/4, 1/4 and 1/2, 1/2, 0: the last term is infinite and left out.
    expected = (0.0 + 0.25 * numpy.log(0.5) - 0.25 + 0.5) / 2
    assert mean_divergence(before, after) == pytest.approx(expected)
    assert mean_divergence(before, before) == 0


@pytest.mark.parametrize("logarithmic", [False, True])
def test_the_entropy_search_drops_an_empty_lower_end(logarithmic: bool) -> None:
    """With nothing below 0.5 the best range begins near 0.5; with much there it begins lower."""
    high = torch.linspace(0.5, 0.999, 3000, dtype=torch.float64) ** 1.5
    low_end = entropy_search(high, torch.ones_like(high), 4, logarithmic)
    assert low_end < 0.5
    counts = torch.cat([torch.ones(3000), torch.full((3000,), 5.0)]).double()
    both = torch.cat([torch.linspace(0.001, 0.35, 3000, dtype=torch.float64), high])
    assert entropy_search(both, counts, 4, logarithmic) <= low_end


def test_bins_of_the_histogram_have_values_in_them() -> None:
    values = bin_values()
    stat = Histogram()
    stat.update(values.float()[values.float() > 1e-37].view(1, 1, 1, -1))
    counts = stat.records["plain"].tensors["counts"][0]
    assert counts[2:].tolist()[-100:] == [1] * 100


def test_calibrated_ranges_are_in_the_codebook() -> None:
    edit = Quantize("calibrated-linear", fitted=histogram())
    assert edit.fitted["plain"]["bits"] in (None, 8)
    top = float(edit.fitted["plain"]["values"].max())
    assert 0.99 <= top <= 1
    entropy = Quantize("calibrated-log", 4, search="entropy", fitted=histogram())
    assert float(entropy.fitted["plain"]["values"].max()) == 1
