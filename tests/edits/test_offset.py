from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attrim
from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.core.registry import EDITS
from attrim.core.site import Select
from attrim.core.text import parse
from attrim.edits import Constant, Offset, load_edits, save_edits
from attrim.edits.offset import offset_curve
from attrim.edits.positions import gather_offsets
from attrim.errors import ParameterError, SelectionError, ShapeError
from attrim.stats.bundle import save_stats
from attrim.stats.mean import Mean
from watching import eager
from zoo import ZOO, batch

ANIMALS = {animal.name: animal for animal in ZOO}


def causal(length: int) -> torch.Tensor:
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


def measured(*lengths: int, causally: bool = False) -> Mean:
    mean = Mean()
    for length in lengths:
        weights = torch.softmax(3 * torch.randn(1, 2, length, length), -1)
        mean.update(weights, causal(length) if causally else None)
    return mean


def test_it_is_the_toeplitz_matrix_of_the_averages() -> None:
    mean = measured(6, 6, 4)
    offsets, averages = mean.offsets("plain")
    value = dict(zip(offsets.tolist(), averages.float().T, strict=True))
    matrix = torch.stack([torch.stack([value[key - query] for key in range(6)]) for query in range(6)]).permute(2, 0, 1)
    weights = torch.rand(2, 2, 6, 6)
    for mask in (None, torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]]), causal(6)):
        torch.testing.assert_close(Offset(mean).apply(weights, mask), Constant(matrix).apply(weights, mask))


def test_distances_beyond_those_seen_take_the_mean_of_the_last_few() -> None:
    curve = torch.tensor([[1.0, 3.0, 10.0, 5.0, 7.0]])  # distances -2 to 2
    slots = torch.arange(5)[None]
    rows = gather_offsets(curve, slots, slots, tail=2)[0, 0]
    assert rows[0].tolist() == [10, 5, 7, 6, 6]
    assert rows[4].tolist() == [2, 2, 1, 3, 10]
    assert gather_offsets(curve, slots, slots, tail=99)[0, 0, 0].tolist() == [10, 5, 7, 6, 6]
    alone = gather_offsets(torch.tensor([[4.0]]), slots[:, :3], slots[:, :3], tail=2)[0, 0]
    assert torch.equal(alone, 4 * torch.eye(3))  # nothing is known of any neighbour


def test_gaps_of_the_averages_are_filled_from_the_inside() -> None:
    """A text on slots 0, 1 and 5: distances 2 and 3 were never seen, and 4, 5 were."""
    mean = Mean()
    weights = torch.rand(1, 1, 6, 6)
    mean.update(weights, torch.tensor([[1, 1, 0, 0, 0, 1]]))
    curve = offset_curve(mean, "plain", tail=2)[0]
    assert curve.shape == (11,)
    one = weights[0, 0, 0, 1]
    torch.testing.assert_close(curve[5 + 1 : 5 + 6], torch.stack([one, one, one, *weights[0, 0, [1, 0], 5]]))


def test_a_causal_average_knows_nothing_of_the_future() -> None:
    curve = offset_curve(measured(5, causally=True), "plain")
    assert (curve[:, 5:] == 0).all()
    assert (curve[:, :5] > 0).all()
    longer = Offset(measured(5, causally=True)).apply(torch.rand(1, 2, 9, 9), causal(9))
    torch.testing.assert_close(longer.sum(-1), torch.ones(1, 2, 9))


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.integers(0, 4))
def test_any_length_and_padding_gives_rows_that_sum_to_one(length: int, reach: int, tail: int, lead: int) -> None:
    curve = torch.rand(2, 2 * reach + 1) + 0.1
    real = torch.arange(length + lead)[None] >= lead
    weights = torch.rand(1, 2, length + lead, length + lead)
    call = dataclasses.replace(
        Call.plain(weights, real), query_lead=torch.tensor([lead]), key_lead=torch.tensor([lead])
    )
    after = Plan([(Offset(curve, tail=tail), (0, 1))]).edited(weights, call)
    torch.testing.assert_close(after[..., lead:, :].sum(-1), torch.ones(1, 2, length))
    alone = Offset(curve, tail=tail).apply(weights[..., lead:, lead:])
    torch.testing.assert_close(after[..., lead:, lead:], alone)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_step_with_a_cache_is_a_row_of_the_full_pass(name: str) -> None:
    """Averages of texts of 6 tokens serve a generation of 14, padded left, with a cache and a sliding window."""
    animal = ANIMALS[name]
    model = eager(animal.build())
    mean = attrim.measure(model, [batch(animal, (6, 5))], Mean(), progress=False)["Mean"]
    inputs = batch(animal, (6, 3), side="left", seed=3)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), attrim.edit(model, Offset(mean)):
        result = model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 8, dtype=torch.long)], dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        full = model(result.sequences, attention_mask=mask, position_ids=positions).logits
        alone = model(result.sequences[1:, 3:]).logits
    with torch.no_grad():
        unedited = model(result.sequences, attention_mask=mask, position_ids=positions).logits
    for step in range(8):
        torch.testing.assert_close(result.logits[step], full[:, 5 + step], atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(alone[:, 2 + step], full[1:, 5 + step], atol=2e-4, rtol=1e-3)
    assert (full - unedited)[:, 5:].abs().max() > 0.05


def test_from_text_and_files(tmp_path) -> None:
    mean = measured(5)
    edit = parse(EDITS, f"offset:{save_stats([mean], tmp_path / 'mean')},tail=3,heads=1")
    weights = torch.rand(1, 2, 9, 9)
    expected = Offset(mean, tail=3, heads=1).apply(weights)
    assert torch.equal(edit.apply(weights), expected)
    (loaded,) = load_edits(save_edits(edit, tmp_path / "edits"))
    assert torch.equal(loaded.apply(weights), expected)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="middle entry"):
        Offset(torch.rand(2, 4))
    with pytest.raises(ParameterError, match="floating point"):
        Offset({"plain": torch.ones(2, 3, dtype=torch.int64)})
    with pytest.raises(ParameterError, match="NaN"):
        Offset(torch.tensor([[math.nan]]))
    with pytest.raises(ParameterError, match="tail"):
        Offset(torch.rand(2, 3), tail=0)
    with pytest.raises(SelectionError, match="head 1 of site 'plain' is all zero"):
        Offset(torch.tensor([[1.0], [0.0]])).apply(torch.rand(1, 2, 3, 3))
    with pytest.raises(SelectionError, match="Offset got heads both"):
        Offset(torch.rand(2, 3), heads=1, select=Select(heads=1))
