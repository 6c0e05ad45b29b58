from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attrim
from attrim.core.site import Select
from attrim.core.text import parse_chain
from attrim.edits.mask import Mask
from attrim.edits.mask_outside_window import MaskOutsideWindow
from attrim.edits.saving import save_edits
from attrim.errors import ArtefactError, ParameterError, ShapeError, SiteError

SCORES = torch.tensor([1.0, 2.0, 3.0, 0.0])[None, None, None]


def removed(*keys: int, size: int = 4) -> Tensor:
    cells = torch.zeros(1, 1, size, dtype=torch.bool)
    cells[..., list(keys)] = True
    return cells


def allowed(*keys: int) -> Tensor:
    return torch.tensor([key in keys for key in range(4)])[None, None, None]


@pytest.mark.parametrize(
    ("prune", "allow", "expected"),
    [
        ((0, 2, 3), (0, 1, 2), (0, 1, 0, 0)),
        ((0, 3), (0, 1, 2), (0, 0.268941, 0.731059, 0)),
        ((0, 1, 2, 3), (0, 1, 2), (0, 0, 0, 0)),
        ((0, 1, 2, 3), (0, 1), (0, 0, 0, 0)),
        ((0,), (0, 1), (0, 1, 0, 0)),
    ],
)
def test_oracle_p5(prune: tuple[int, ...], allow: tuple[int, ...], expected: tuple[float, ...]) -> None:
    """Oracle P5 of spec/attention-pruning.md with the corrected rule: a row with nothing left gives zeros."""
    after = Mask(removed(*prune)).apply(SCORES, allowed(*allow))
    torch.testing.assert_close(after, torch.tensor(expected, dtype=torch.float32)[None, None, None], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("allow", "expected"), [((0, 1, 2), (1 / 3, 1 / 3, 1 / 3, 0)), ((0, 1), (0.5, 0.5, 0, 0)), ((), (0, 0, 0, 0))]
)
def test_oracle_p5_as_coded(allow: tuple[int, ...], expected: tuple[float, ...]) -> None:
    """BERT and fairseq: a row with nothing left is even over what is allowed; Transformer-XL's leak is not there."""
    after = Mask(removed(0, 1, 2, 3), empty="uniform").apply(SCORES, allowed(*allow))
    torch.testing.assert_close(after[0, 0, 0], torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)
    partly = Mask(removed(0, 3), empty="uniform").apply(SCORES, allowed(0, 1, 2))
    torch.testing.assert_close(partly[0, 0, 0], torch.tensor([0, 0.268941, 0.731059, 0]), rtol=0, atol=1e-6)


def test_nothing_removed_is_the_softmax() -> None:
    scores = torch.randn(2, 3, 5, 5)
    assert torch.equal(Mask(torch.zeros(3, 5, 5, dtype=torch.bool)).apply(scores), torch.softmax(scores, -1))


def test_removing_padded_keys_only_changes_nothing() -> None:
    scores = torch.randn(2, 3, 5, 5)
    cells = torch.zeros(1, 5, 5, dtype=torch.bool)
    cells[..., 3:] = True
    real = torch.tensor([[1, 1, 1, 0, 0]] * 2).bool()
    unpruned = Mask(torch.zeros_like(cells)).apply(scores, real)
    assert torch.equal(Mask(cells).apply(scores, real), unpruned)


@pytest.mark.parametrize(("unseen", "expected"), [("keep", [False, False, True, True]), ("prune", [False] * 4)])
def test_cells_outside_of_the_stored_size(unseen: str, expected: list[bool]) -> None:
    after = Mask(removed(0, 1, size=2), unseen=unseen).apply(SCORES)
    assert (after[0, 0, 0] > 0).tolist() == expected


def test_longer_texts_go_by_the_distance_of_query_and_key() -> None:
    """Keys two and more before their query are mostly removed; the exception at (2, 0) does not spread."""
    distance = torch.arange(5)[:, None] - torch.arange(5)[None, :]
    cells = (distance >= 2)[None].clone()
    cells[0, 2, 0] = False
    causal = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    kept = Mask(cells, unseen="offset").apply(torch.zeros(1, 1, 9, 9), causal)[0, 0] > 0
    assert kept[2].nonzero().flatten().tolist() == [0, 1, 2]
    assert kept[4].nonzero().flatten().tolist() == [3, 4]
    assert kept[8].nonzero().flatten().tolist() == [7, 8]


def test_a_row_with_nothing_left_may_keep_its_strongest_cell() -> None:
    edit = Mask(removed(0, 1, 2, 3), empty="strongest")
    assert edit.apply(SCORES, allowed(0, 1, 3))[0, 0, 0].tolist() == [0, 1, 0, 0]
    assert edit.apply(SCORES, allowed())[0, 0, 0].tolist() == [0, 0, 0, 0]
    partly = Mask(removed(0, 2), empty="strongest").apply(SCORES)
    assert torch.equal(partly, Mask(removed(0, 2)).apply(SCORES))


def test_each_head_has_its_own_cells() -> None:
    cells = torch.stack([removed(0)[0], removed(1)[0], removed()[0]])
    after = Mask({"plain": cells}).apply(SCORES.expand(1, 3, 1, 4))
    assert (after == 0)[0, :, 0].tolist() == [[True, False, False, False], [False, True, False, False], [False] * 4]
    chosen = Mask({"plain": cells}, select=Select(heads=1)).apply(SCORES.expand(1, 3, 1, 4))
    assert (chosen == 0)[0, :, 0].tolist() == [[False] * 4, [False, True, False, False], [False] * 4]


def test_gradient_is_zero_on_removed_cells_and_on_empty_rows() -> None:
    scores = torch.randn(1, 1, 2, 4, dtype=torch.float64, requires_grad=True)
    cells = torch.tensor([[[True, False, False, False], [True] * 4]])
    edit = Mask(cells)
    assert torch.autograd.gradcheck(edit.apply, scores)
    (gradient,) = torch.autograd.grad(edit.apply(scores)[..., 1].sum(), scores)
    assert (gradient == 0)[0, 0].tolist() == [[True, False, False, False], [True] * 4]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ParameterError, match="boolean"):
        Mask(torch.zeros(1, 4, 4))
    with pytest.raises(ShapeError, match=r"\[H, N, M\]"):
        Mask(torch.zeros(4, 4, dtype=torch.bool))
    with pytest.raises(ParameterError, match="'keep', 'prune' or 'offset'"):
        Mask(removed(0), unseen="distance")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="'zero', 'strongest' or 'uniform'"):
        Mask(removed(0), empty="nothing")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="leave them out"):
        Mask(removed(0), distances=torch.zeros(1, 3))
    with pytest.raises(ShapeError, match="middle entry"):
        Mask(removed(0), "offset", distances=torch.zeros(1, 4))
    with pytest.raises(SiteError, match="no mask for site 'plain'"):
        Mask({"layer.0": removed(0)}).apply(SCORES)
    with pytest.raises(ShapeError, match="2 heads but the site has 1"):
        Mask(torch.zeros(2, 4, 4, dtype=torch.bool)).apply(SCORES)


@pytest.mark.parametrize("field", ["about", "made_for"])
@pytest.mark.parametrize("given", [True, 2.5, float("nan"), b"x", ("x",), torch.tensor(3)], ids=repr)
def test_what_is_said_of_a_mask_is_text(field: str, given: Any) -> None:
    for edit in (Mask, lambda cells, **said: MaskOutsideWindow(cells, 2, **said)):
        with pytest.raises(ParameterError, match=f"{field} must be a text"):
            edit(torch.zeros(1, 2, 2, dtype=torch.bool), **{field: given})


def test_a_folder_that_does_not_say_which_mask_is_meant(tmp_path: Path) -> None:
    cells = torch.zeros(4, 3, 3, dtype=torch.bool)
    attrim.bake(attrim.load_model("tiny-bert"), Mask(cells)).save_pretrained(tmp_path)
    save_edits(Mask(~cells), tmp_path)
    with pytest.raises(ArtefactError, match=r"holds a baked model and edits .* folder of their own"):
        parse_chain(f"mask:{tmp_path}")
