from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.core.registry import EDITS
from attrim.core.site import Select, Site
from attrim.core.text import parse
from attrim.edits import Mix
from attrim.edits.constant import Constant, constant
from attrim.edits.offset import Offset
from attrim.errors import ArtefactError, AttrimError, ParameterError, SelectionError, ShapeError, SiteError
from attrim.stats.bundle import save_stats
from attrim.stats.histogram import Histogram
from attrim.stats.mean import Mean

# The average of oracle O1, and the matrix of O2c, of spec/papa.md.
O1 = torch.tensor([[0.55, 0.35, 0.2, 0], [0.15, 0.8, 0.1, 0], [0.25, 0.25, 0.5, 0], [0, 0, 0, 0]])
O2C = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0, 0, 1, 0]])


def apply(matrix: Tensor, real: list[int]) -> Tensor:
    weights = torch.rand(1, 1, len(real), len(real))
    return Constant(matrix[None]).apply(weights, torch.tensor([real]))[0, 0]


@pytest.mark.parametrize(
    ("matrix", "real", "expected"),
    [
        (
            O1,
            [1, 1, 1, 1],
            [[0.5, 0.318182, 0.181818, 0], [0.142857, 0.761905, 0.095238, 0], [0.25, 0.25, 0.5, 0], [0.0] * 4],
        ),
        (O1, [1, 1, 0, 0], [[0.611111, 0.388889, 0, 0], [0.157895, 0.842105, 0, 0], [0.0] * 4, [0.0] * 4]),
        (O2C, [1, 1, 0, 1], [[0.5, 0.375, 0, 0.125], [0.142857, 0.285714, 0, 0.571429], [0.0] * 4, [0.0] * 4]),
    ],
)
def test_oracle_o2(matrix: Tensor, real: list[int], expected: list[list[float]]) -> None:
    torch.testing.assert_close(apply(matrix, real), torch.tensor(expected), rtol=0, atol=1e-6)


def test_oracle_o3() -> None:
    """Constant and softmax heads side by side; the padded query's row is checked for the constant heads only."""
    softmax_head = torch.tensor([[0.7, 0.2, 0, 0.1], [0.1, 0.6, 0, 0.3], [0.3, 0.3, 0, 0.4], [0.2, 0.2, 0, 0.6]])
    matrix = torch.stack([O2C, torch.zeros(4, 4), torch.eye(4)])
    value = torch.tensor([[1.0, 0], [0, 1], [5, 5], [2, 2]])
    weights = softmax_head.expand(1, 3, 4, 4)
    after = Constant(matrix, heads=[0, 2]).apply(weights, torch.tensor([[1, 1, 0, 1]]))[0]
    assert torch.equal(after[1], softmax_head)
    context = after @ value
    expected = torch.tensor(
        [
            [[0.75, 0.625], [1.285714, 1.428571], [0, 0], [0, 0]],
            [[0.9, 0.4], [0.7, 1.2], [1.1, 1.1], [1.4, 1.4]],
            [[1, 0], [0, 1], [0, 0], [2, 2]],
        ]
    )
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-6)


def test_negative_entries_count_by_their_size() -> None:
    matrix = torch.tensor([[[0.5, -1.5]]])
    after = constant(matrix[None], torch.ones(1, 1, 1, 2, dtype=torch.bool))
    torch.testing.assert_close(after[0, 0, 0], torch.tensor([0.25, -0.75]))


def test_sources_of_the_matrix_agree() -> None:
    weights = torch.rand(2, 3, 4, 4)
    matrix = torch.rand(3, 4, 4)
    expected = Constant(matrix).apply(weights)
    assert torch.equal(Constant({"plain": matrix}).apply(weights), expected)
    mean = Mean()
    mean.update(matrix[None])
    mean.update(torch.rand(1, 3, 9, 9), site=Site("other", "encoder", 1, 3))
    edit = Constant(mean)
    torch.testing.assert_close(edit.apply(weights), expected)
    mean.update(torch.rand(1, 3, 4, 4))
    torch.testing.assert_close(edit.apply(weights), expected)  # the stat went on counting, the edit did not change


def test_averages_from_a_folder(tmp_path) -> None:
    """Oracle O1 and O2b of spec/papa.md, from the texts to a file to the edit."""
    mean = Mean()
    first = [[0.5, 0.3, 0.2, 0], [0.1, 0.8, 0.1, 0], [0.25, 0.25, 0.5, 0], [0.4, 0.3, 0.3, 0]]
    second = [[0.6, 0.4, 0, 0], [0.2, 0.8, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.3, 0, 0]]
    mean.update(torch.tensor([[first], [second]]), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]))
    edit = parse(EDITS, f"constant:{save_stats([mean], tmp_path)},heads=0")
    after = edit.apply(torch.rand(1, 1, 3, 3), torch.tensor([[1, 1, 0]]))[0, 0]
    expected = torch.tensor([[0.611111, 0.388889, 0], [0.157895, 0.842105, 0], [0, 0, 0]])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    with pytest.raises(ArtefactError, match="no average attention"):
        parse(EDITS, f"constant:{save_stats([Histogram()], tmp_path)}")
    with pytest.raises(ArtefactError, match="no saved stats"):
        parse(EDITS, f"constant:{tmp_path / 'nowhere'}")


def test_heads_is_short_for_select() -> None:
    matrix = torch.rand(3, 4, 4)
    order = [(Site("plain", "encoder", 0, 3), 2), (Site("plain", "encoder", 0, 3), 0)]
    assert Constant(matrix, heads=order).select == Select(heads=[("plain", 2), ("plain", 0)])
    assert Constant(matrix, heads=order, select=Select(roles="encoder")).select.roles == ("encoder",)
    assert dataclasses.replace(Constant(matrix, heads=1), outside="zero").select == Select(heads=1)
    with pytest.raises(SelectionError, match="give them once"):
        Constant(matrix, heads=1, select=Select(heads=2))


def test_a_text_longer_than_the_averages() -> None:
    weights = torch.rand(1, 1, 6, 6)
    with pytest.raises(ShapeError, match=r"6 x 6 positions.*longer than the averages.*4 x 4.*outside='zero'"):
        Constant(O1[None]).apply(weights)
    after = Constant(O1[None], outside="zero").apply(weights)[0, 0]
    torch.testing.assert_close(after[:4, :4], apply(O1, [1, 1, 1, 1]))
    assert (after[4:] == 0).all()
    assert (after[:, 4:] == 0).all()
    padded = Constant(O1[None]).apply(weights, torch.tensor([[1, 1, 1, 1, 0, 0]]))[0, 0]
    torch.testing.assert_close(padded, after)  # padding beyond the stored size is no reason to complain


def test_keys_beyond_the_averages_are_refused_although_others_are_stored() -> None:
    """A cross-attention query may have keys on both sides of the border; half a row would be silently wrong."""
    weights = torch.rand(2, 1, 3, 6)
    for edit in (Constant(O1[None]), Mix(O1[None], 0.0)):
        with pytest.raises(ShapeError, match=r"3 x 5 positions.*4 x 4"):
            edit.apply(weights, torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]))
        assert edit.apply(weights, torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)).isfinite().all()
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[2:4].expand(1, 1, 2, 6)
    call = dataclasses.replace(Call.plain(torch.rand(1, 1, 2, 6), causal), position=2)
    assert Plan([(Constant(O1[None]), (0,))]).edited(torch.rand(1, 1, 2, 6), call).isfinite().all()


def test_a_generation_step_takes_its_own_row() -> None:
    """Row t of the matrix at step t, also when a sliding cache has dropped the first keys."""
    weights = torch.rand(1, 1, 1, 2)
    call = dataclasses.replace(Call.plain(weights), position=2, key_position=1)
    after = Plan([(Constant(O1[None]), (0,))]).edited(weights, call)
    torch.testing.assert_close(after[0, 0, 0], torch.tensor([0.25, 0.5]) / 0.75)


def test_constants_learn_only_when_asked() -> None:
    matrix = (torch.rand(2, 4, 4, dtype=torch.float64) + 0.1).requires_grad_()
    weights = torch.rand(1, 2, 4, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0]])
    assert not Constant(matrix).apply(weights, mask).requires_grad
    edit = Constant(matrix, train_constants=True)
    (gradient,) = torch.autograd.grad(edit.apply(weights, mask)[..., 0].sum(), matrix)
    assert (gradient[:, :3, :3] != 0).all()
    assert (gradient[:, 3] == 0).all()
    assert torch.autograd.gradcheck(lambda given: Constant(given, train_constants=True).apply(weights, mask), matrix)


def test_half_precision_is_normalised_in_float32() -> None:
    matrix = torch.full((1, 1, 300), 1e-6)
    after = Constant(matrix).apply(torch.zeros(1, 1, 1, 300, dtype=torch.float16))
    torch.testing.assert_close(after.float().sum(), torch.ones(()), rtol=1e-2, atol=0)


def test_what_does_not_fit_is_refused() -> None:
    weights = torch.rand(1, 3, 4, 4)
    with pytest.raises(SiteError, match="no matrix for site 'plain', only for layer"):
        Constant({"layer.0": torch.rand(3, 4, 4)}).apply(weights)
    with pytest.raises(ShapeError, match="2 heads but the site has 3"):
        Constant(torch.rand(2, 4, 4)).apply(weights)
    with pytest.raises(ShapeError, match=r"\[H, N, M\]"):
        Constant(torch.rand(4, 4))
    with pytest.raises(ParameterError, match="floating point"):
        Constant(torch.ones(1, 4, 4, dtype=torch.int64))
    with pytest.raises(ParameterError, match="NaN"):
        Constant(torch.full((1, 4, 4), float("nan")))
    with pytest.raises(ParameterError, match="outside"):
        Constant(torch.rand(1, 4, 4), outside="crop")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="must be a tensor"):
        Constant({"plain": [1, 2]})  # type: ignore[dict-item]
    unmeasured = torch.stack([torch.rand(4, 4), torch.rand(4, 4), torch.zeros(4, 4)])
    with pytest.raises(SelectionError, match="head 2 of site 'plain' is all zero"):
        Constant(unmeasured, heads=[1, 2]).apply(weights)
    with pytest.raises(ParameterError, match="no tensors to train"):
        Constant(Mean(), train_constants=True)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_both_ways_to_the_sum_of_a_row_agree(batch: int, heads: int) -> None:
    """One mask for all heads and one matrix for all examples is the common case and has a way of its own."""
    cells = torch.randn(1, 2, 5, 6)
    valid = torch.rand(batch, heads, 5, 6) < 0.6
    valid[0, 0, 2] = False
    expected = torch.nn.functional.normalize(cells * valid, p=1, dim=-1, eps=1e-12)
    torch.testing.assert_close(constant(cells, valid), expected)
    torch.testing.assert_close(constant(cells.expand(batch, -1, -1, -1), valid), expected)
    assert (constant(cells, valid)[0, 0, 2] == 0).all()


@pytest.mark.parametrize("kind", [Constant, Offset])
def test_a_class_in_place_of_averages_is_refused(kind: type[Constant | Offset]) -> None:
    with pytest.raises(AttrimError):
        kind(Mean)
