"""Constant families: what each of them looks at, with masks and in models, and how sure averages are."""

from __future__ import annotations

import pytest
import torch

import attrim
from attrim.core.registry import FAMILIES
from attrim.core.site import Site
from attrim.edits import Constant, Offset
from attrim.edits.families import constant_edits, make_constants
from attrim.errors import DataError, ParameterError, ShapeError, UnknownName
from attrim.scores import budget
from attrim.stats.mean import Counts, Mean, count_summary, split_half
from watching import eager, output_of
from zoo import ZOO, batch

SITES = [Site("plain", "encoder", 0, 2), Site("other", "encoder", 1, 3)]
NAMES = ["average", "identity", "learned", "next", "offset", "previous", "random", "uniform"]
GAP = torch.tensor([[1, 1, 1, 0, 0, 1]])


def measured(seed: int, *lengths: int, sites: list[Site] = SITES) -> Mean:
    generator = torch.Generator().manual_seed(seed)
    mean = Mean()
    for length in lengths:
        for site in sites:
            weights = torch.softmax(2 * torch.randn(1, site.heads, length, length, generator=generator), -1)
            mean.update(weights, site=site)
    return mean


def applied(family: str, mask: torch.Tensor | None = None, length: int = 6, **options) -> torch.Tensor:
    matrix = make_constants(family, SITES, length, mean=measured(0, 6, 6, 4), **options)
    return Constant(matrix).apply(torch.rand(1, 2, length, length), mask)[0]


def test_every_family_is_registered() -> None:
    assert list(FAMILIES) == NAMES
    assert [name for name in NAMES if FAMILIES[name].measured] == ["average", "learned", "offset"]
    assert [name for name in NAMES if FAMILIES[name].trained] == ["learned"]


@pytest.mark.parametrize("family", NAMES)
def test_shape_dtype_and_rows(family: str) -> None:
    constants = make_constants(family, SITES, 6, mean=measured(0, 6, 6))
    assert {name: (matrix.dtype, matrix.shape) for name, matrix in constants.items()} == {
        "plain": (torch.float32, (2, 6, 6)),
        "other": (torch.float32, (3, 6, 6)),
    }
    for mask in (None, GAP, torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()):
        real = GAP[0].bool() if mask is GAP else torch.ones(6, dtype=torch.bool)
        rows = applied(family, mask).sum(-1)
        torch.testing.assert_close(rows[:, real], torch.ones(2, int(real.sum())))


def test_average_and_learned_are_the_measured_cells() -> None:
    mean = measured(0, 6, 6, 4)
    for family in ("average", "learned"):
        constants = make_constants(family, SITES, 5, mean=mean)
        torch.testing.assert_close(constants["other"], mean.matrix("other")[:, :5, :5].float())
    trained = {name: matrix.requires_grad_() for name, matrix in make_constants("learned", SITES, 5, mean=mean).items()}
    (edit,) = constant_edits(trained, [("plain", 1)], train_constants=True)
    edit.apply(torch.rand(1, 2, 5, 5))[..., 0].sum().backward()
    assert (trained["plain"].grad[1] != 0).any()
    assert (trained["plain"].grad[0] == 0).all()


def test_offset_goes_on_beyond_the_averages() -> None:
    mean = measured(0, 6, 4)
    weights = torch.rand(1, 2, 20, 20)
    constants = make_constants("offset", SITES, 20, mean=mean)
    torch.testing.assert_close(Constant(constants).apply(weights), Offset(mean).apply(weights))


def test_neighbours_with_and_without_a_gap() -> None:
    assert applied("previous")[0].argmax(-1).tolist() == [0, 0, 1, 2, 3, 4]
    assert applied("next")[1].argmax(-1).tolist() == [1, 2, 3, 4, 5, 5]
    assert applied("previous")[0].amax(-1).tolist() == [1.0] * 6
    # Slots 3 and 4 are padding: the last token has no neighbour and looks at itself, as does slot 2 for the next.
    assert applied("previous", GAP)[0].argmax(-1)[[0, 1, 2, 5]].tolist() == [0, 0, 1, 5]
    assert applied("next", GAP)[0].argmax(-1)[[0, 1, 2, 5]].tolist() == [1, 2, 2, 5]
    assert applied("previous", GAP)[0, 5, 5] == 1.0
    assert applied("next", length=1).tolist() == [[[1.0]], [[1.0]]]


def test_identity_and_uniform() -> None:
    assert torch.equal(applied("identity"), torch.eye(6).expand(2, 6, 6))
    torch.testing.assert_close(applied("uniform", GAP)[0, 0], torch.tensor([0.25, 0.25, 0.25, 0, 0, 0.25]))


def test_random_is_fixed_by_seed_and_site() -> None:
    one, again = (make_constants("random", sites, 6) for sites in (SITES, SITES[::-1]))
    assert torch.equal(one["plain"], again["plain"])
    assert not torch.equal(one["plain"], make_constants("random", SITES, 6, seed=1)["plain"])
    assert not torch.equal(one["plain"][0], one["plain"][1])
    rows = make_constants("random", SITES, 200)["plain"]
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 200))
    # Of a Dirichlet with all parameters 1 over n cells the variance of a cell is (n - 1) / (n^2 (n + 1)).
    assert float(rows.var() * 200**2) == pytest.approx(199 / 201, rel=0.02)


def test_refusals() -> None:
    with pytest.raises(UnknownName, match="no constant family named 'averge'; did you mean 'average'"):
        make_constants("averge", SITES, 4)
    with pytest.raises(DataError, match="give mean="):
        make_constants("offset", SITES, 4)
    with pytest.raises(ShapeError, match="cover 4 x 4 positions, not 9"):
        make_constants("average", SITES, 9, mean=measured(0, 4))
    with pytest.raises(ParameterError, match="at least one position"):
        make_constants("uniform", SITES, 0)


@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
@pytest.mark.parametrize("family", NAMES)
def test_in_models(name: str, family: str) -> None:
    """Also where several roles have the same layers, and where the future is forbidden."""
    animal = next(animal for animal in ZOO if animal.name == name)
    model, inputs = eager(animal.build()), batch(animal, (7, 4))
    sites = [site for site in attrim.sites(model) if site.role != "cross"]
    mean = attrim.measure(model, [batch(animal, (7, 7))], Mean(), progress=False)["Mean"]
    length = 5 if name == "bart" and family in ("average", "learned") else 7
    constants = make_constants(family, sites, length, mean=mean)
    heads = [(site.name, head) for site in sites for head in range(site.heads)]
    with torch.no_grad(), attrim.edit(model, Constant(constants, heads=heads, outside="zero")):
        assert torch.isfinite(output_of(model(**inputs))).all()


def test_no_heads_are_no_edit() -> None:
    constants = make_constants("uniform", SITES, 4)
    assert constant_edits(constants, budget([("plain", 0)], 0)) == ()
    assert constant_edits(constants, [("plain", 0)])[0].select.heads == (("plain", 0),)


def test_counts() -> None:
    mean = Mean()
    mean.update(torch.full((3, 1, 4, 4), 0.25), torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0]]))
    # Slots 0, 1 and 3 have 9 cells: three texts have one of them, two texts three, and one text the other five.
    assert count_summary(mean) == {"plain": Counts(cells=16, unseen=7, lowest=1, median=1.0, highest=3)}
    with pytest.raises(DataError, match="Nothing was measured"):
        empty = Mean()
        empty.record(SITES[0], (0, 1))
        count_summary(empty)


def test_split_half() -> None:
    mean = measured(0, 6, 6)
    own = split_half(mean, mean)
    assert {name: r.shape for name, r in own.items()} == {"plain": (2,), "other": (3,)}
    torch.testing.assert_close(own["other"], torch.ones(3, dtype=torch.float64))
    one, other = measured(1, 6), measured(2, 9)  # only the cells that both have count
    expected = [
        torch.corrcoef(torch.stack([a[:6, :6].flatten(), b[:6, :6].flatten()]))[0, 1]
        for a, b in zip(one.matrix("other"), other.matrix("other"), strict=True)
    ]
    torch.testing.assert_close(split_half(one, other)["other"], torch.stack(expected))
    flat = Mean()
    flat.update(torch.full((1, 2, 6, 6), 1 / 6), site=SITES[0])
    assert split_half(flat, flat)["plain"].isnan().all()
    with pytest.raises(DataError, match="different sites"):
        split_half(mean, flat)


def test_more_texts_agree_better() -> None:
    """Averages of many noisy copies of one pattern approach it, so halves agree better than halves of fewer."""
    pattern = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(9))

    def half(seed: int, count: int) -> Mean:
        noise = 3 * torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed))
        mean = Mean()
        mean.update(torch.softmax(pattern + noise, -1), site=SITES[0])
        return mean

    few, some, many = (split_half(half(1, count), half(2, count))["plain"] for count in (4, 32, 256))
    assert (few < some).all()
    assert (some < many).all()
    assert (many > 0.9).all()
