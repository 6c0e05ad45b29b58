"""How good maps are: the pointing game, and curves of deletion and insertion."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attrim.core.charts import dump, load
from attrim.errors import DataError, ParameterError
from attrim.maps.explainer import Explainer, Maps
from attrim.maps.parts import MapPart
from attrim.maps.quality import Examiner, Quality, QualityOptions, mean_interval, pointing
from attrim.maps.removal import removable, without
from attrim.runs.run import Run
from zoo import HEADED, batch

LEVELS = (0.0, 0.9)


def of(name: str) -> Any:
    return next(animal for animal in HEADED if animal.name == name)


def test_pointing_at_the_top_region() -> None:
    scores = torch.tensor([[[0.1, 0.5, 0.2], [0.9, 0.0, 0.1], [0.2, 0.1, 0.3]], [[0.6, 0.5, 0.2]] * 3])
    relevant = torch.tensor([[0, 1, 0], [0, 1, 1], [0, 0, 0]])
    hit, chance = pointing(scores, torch.ones(3, 3, dtype=torch.bool), relevant)
    np.testing.assert_equal(hit, [[1, 0, np.nan], [0, 0, np.nan]])
    np.testing.assert_allclose(chance, [1 / 3, 2 / 3, np.nan])


def test_padding_is_neither_pointed_at_nor_counted() -> None:
    real = torch.tensor([[True, True, False, False]])
    hit, chance = pointing(torch.tensor([[[0.1, 0.2, 0.9, 0.0]]]), real, torch.tensor([[0, 1, -100, -100]]))
    assert hit.tolist() == [[1.0]]
    assert chance.tolist() == [0.5]
    with pytest.raises(DataError, match=r"shape \[1, 2\]"):
        pointing(torch.zeros(1, 1, 4), real, torch.zeros(1, 2))


class Additive:
    """Stands for an explainer of a model whose answer is the sum of the weights of the regions that it is given."""

    weights = torch.tensor([[4.0, 0.0, 2.0, 1.0], [1.0, 1.0, 5.0, 1.0]])

    def answer(self, inputs: dict[str, Tensor], answers: Tensor) -> Any:
        number = (inputs["visual_feats"][..., 0] * self.weights).sum(1)
        return SimpleNamespace(number=lambda: number, places=SimpleNamespace(logits=torch.zeros(2, 1, 2)))


def additive_maps(scores: Tensor) -> Maps:
    shape = scores.shape[1:]
    return Maps(
        levels=(0.0,) * len(scores),
        relevance={"regions": scores.double()},
        parts={"regions": MapPart("vision", "regions", 0, shape[1])},
        real={"regions": torch.ones(shape, dtype=torch.bool)},
        answers=torch.zeros(shape[0], 1, dtype=torch.long),
        answer_kind="label",
        counted=torch.ones(shape[0], 1, dtype=torch.bool),
        predicted=torch.zeros(len(scores), shape[0], 1, dtype=torch.long),
        logits=torch.zeros(scores.shape[:2]),
        probabilities=torch.zeros(scores.shape[:2]),
        scores={},
        kept={},
    )


def test_curves_of_a_model_that_adds_its_regions_up() -> None:
    """Removing from the right map costs the most at once, from the reversed one the least."""
    right = Additive.weights
    maps = additive_maps(torch.stack([right, -right]))
    options = QualityOptions(measure="logit", steps=(0, 0.25, 0.5, 0.75, 1))
    examiner = Examiner(Additive(), (0.0, 0.0), options)  # type: ignore[arg-type]
    found = examiner.measure({"visual_feats": torch.ones(2, 4, 1)}, maps, [0, 1])
    np.testing.assert_allclose(found.deletion[0], [[7, 3, 1, 0, 0], [8, 3, 2, 1, 0]])
    np.testing.assert_allclose(found.insertion[0], [[0, 4, 6, 7, 7], [0, 5, 6, 7, 8]])
    np.testing.assert_allclose(found.deletion[1], [[7, 7, 6, 4, 0], [8, 7, 6, 5, 0]])
    areas = found.numbers()
    np.testing.assert_allclose(areas["deletion"][0], [1.875, 2.5])
    assert (areas["deletion"][0] < areas["deletion"][1]).all()
    assert (areas["insertion"][0] > areas["insertion"][1]).all()
    # A random order begins and ends where the others do.
    np.testing.assert_allclose(found.random_deletion[:, [0, -1]], [[7, 0], [8, 0]])


def test_options_of_quality() -> None:
    with pytest.raises(ParameterError, match="rise from 0 to 1"):
        QualityOptions(steps=(0.0, 0.5))
    with pytest.raises(ParameterError, match="no part 'tokens', only regions"):
        QualityOptions(part="tokens").part_of(additive_maps(torch.zeros(1, 2, 4)))


@pytest.mark.parametrize("name", ["bert", "vit", "visual_bert", "lxmert"])
def test_every_kind_of_input_can_lose_parts(name: str) -> None:
    animal = of(name)
    model, inputs = animal.build(), batch(animal, (7, 5))
    examiner = Examiner(Explainer(model), LEVELS, QualityOptions(blank=3, steps=(0, 0.5, 1)))
    found = examiner(inputs, [4, 5])
    part = {"bert": "tokens", "vit": "patches"}.get(name, "regions")
    assert found.part == part
    assert found.deletion.shape == found.insertion.shape == (2, 2, 3)
    assert np.isnan(found.hit).all()
    # Nothing removed is the whole, everything inserted too; of all orders.
    whole = found.deletion[:, :, 0]
    np.testing.assert_allclose(found.insertion[:, :, -1], whole, rtol=1e-5)
    np.testing.assert_allclose(whole, np.broadcast_to(found.random_deletion[:, 0], whole.shape), rtol=1e-5)
    empty = found.deletion[:, :, -1]
    np.testing.assert_allclose(found.insertion[:, :, 0], empty, rtol=1e-5)
    assert not np.allclose(whole, empty)


def test_a_batch_is_measured_as_its_examples_are() -> None:
    animal = of("lxmert")
    model, inputs = animal.build(), batch(animal, (7, 5))
    examiner = Examiner(Explainer(model), LEVELS, QualityOptions(steps=(0, 0.5, 1)))
    relevant = torch.tensor([[1, 0, 0], [0, 1, 1]])
    together = examiner(inputs, [7, 2], relevant)
    apart = [
        examiner({name: tensor[row : row + 1] for name, tensor in inputs.items()}, [number], relevant[row : row + 1])
        for row, number in ((0, 7), (1, 2))
    ]
    joined = Quality.join(apart)
    assert joined.index.tolist() == [2, 7]
    for name in ("hit", "chance", "deletion", "insertion", "random_deletion", "predicted"):
        one, other = getattr(Quality.join([together]), name), getattr(joined, name)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    with pytest.raises(DataError, match="no examples"):
        Quality.join([])


def test_removed_tokens_leave_special_ones_and_places_alone() -> None:
    inputs = {"input_ids": torch.tensor([[2, 11, 12, 3, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}
    free = removable(inputs, "tokens", torch.tensor([[True] * 4 + [False]]), special=(0, 2, 3))
    assert free.tolist() == [[False, True, True, False, False]]
    changed = without(inputs, "tokens", MapPart("encoder", "text", 0, 5), free, blank=4)
    assert changed["input_ids"].tolist() == [[2, 4, 4, 3, 0]]
    assert inputs["input_ids"].tolist() == [[2, 11, 12, 3, 0]]
    with pytest.raises(ParameterError, match="blank="):
        without(inputs, "tokens", MapPart("encoder", "text", 0, 5), free)
    with pytest.raises(DataError, match="'target' cannot be removed"):
        without(inputs, "target", MapPart("decoder", "text", 0, 5), free)


def test_removed_regions_are_attended_to_no_more() -> None:
    animal = of("lxmert")
    model, inputs = animal.build(), batch(animal, (6,))
    gone = torch.tensor([[False, True, False]])
    changed = without(inputs, "regions", MapPart("vision", "regions", 0, 3), gone)
    kept = {**inputs, "visual_feats": inputs["visual_feats"][:, [0, 2]], "visual_pos": inputs["visual_pos"][:, [0, 2]]}
    with torch.no_grad():
        one, other = (model(**given).question_answering_score for given in (changed, kept))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_removed_patches_get_the_mean_colour() -> None:
    pixels = torch.arange(2 * 3 * 5 * 4, dtype=torch.float32).reshape(2, 3, 5, 4)  # a margin of one row
    gone = torch.tensor([[True, False, False, False], [False, False, False, True]])
    changed = without({"pixel_values": pixels}, "patches", MapPart("encoder", "patches", 1, 5, (2, 2)), gone)
    found = changed["pixel_values"] != pixels
    assert found[0, 0].int().tolist() == [[1, 1, 0, 0]] * 2 + [[0] * 4] * 3
    assert found[1, 0].int().tolist() == [[0] * 4] * 2 + [[0, 0, 1, 1]] * 2 + [[0] * 4]
    assert changed["pixel_values"][0, 0, 0, 0] == pixels[0, 0].mean()


def test_a_single_output_has_no_probability() -> None:
    class Explaining:
        def answer(self, inputs: Any, answers: Any) -> Any:
            return SimpleNamespace(places=SimpleNamespace(logits=torch.zeros(2, 1, 1)))

    examiner = Examiner(Explaining())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="measure='logit'"):
        examiner.measure({"visual_feats": torch.ones(2, 4, 1)}, additive_maps(torch.zeros(1, 2, 4)), [0, 1])


@pytest.fixture
def measured() -> Quality:
    animal = of("lxmert")
    examiner = Examiner(Explainer(animal.build()), LEVELS, QualityOptions(steps=(0, 0.5, 1)))
    relevant = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 0]])
    return examiner(batch(animal, (7, 5, 6, 4)), [0, 1, 2, 3], relevant)


def test_quality_is_kept_in_a_run(measured: Quality, tmp_path: Path) -> None:
    with Run.open(tmp_path, {"a": 1}) as run:
        assert Quality.load(run, "batch") is None
        measured.store(run, "batch")
        found = Quality.load(run, "batch")
    assert found is not None
    for name, value in vars(measured).items():
        np.testing.assert_equal(getattr(found, name), value)


def test_intervals_hold_the_mean_and_leave_out_what_is_not_known(measured: Quality) -> None:
    found = measured.interval("pointing", 0)
    assert found is not None
    assert found.value == pytest.approx(np.nanmean(measured.hit[0]))
    assert found.low <= found.value <= found.high
    chance = measured.interval("pointing")
    assert chance is not None
    assert chance.value == pytest.approx((1 / 3 + 2 / 3 + 2 / 3) / 3)
    assert mean_interval(np.array([np.nan])) is None
    change = measured.change("deletion", 1)
    assert change is not None
    areas = measured.numbers()["deletion"]
    assert change.value == pytest.approx(float((areas[1] - areas[0]).mean()))


def test_quality_shows_itself(measured: Quality) -> None:
    table = measured.table()
    assert [row[0] for row in table.rows] == ["0 %", "90 %", "random"]
    assert "4 examples" in table.caption
    assert "3 with known relevant regions" in table.caption
    assert [chart.name for chart in measured.charts()] == ["deletion", "insertion", "pointing"]
    for chart in measured.charts():
        assert load(dump(chart)) == chart
    summary = measured.summary()
    assert summary["levels"][1]["level"] == 0.9
    assert summary["levels"][0]["pointing"]["value"] == pytest.approx(np.nanmean(measured.hit[0]))


def test_the_model_is_not_changed() -> None:
    animal = of("bert")
    model: nn.Module = animal.build().train()
    Examiner(Explainer(model), (0.0,), QualityOptions(blank=3, steps=(0, 1)))(batch(animal), [0, 1])
    assert model.training
