"""With no edit, or with edits that change nothing, every architecture computes what stock eager attention computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attrim.attention.context import attach, edit
from attrim.attention.discover import find_sites
from attrim.core.site import Select
from attrim.errors import SiteError
from watching import Keep, SameScores, SameWeights, Scale, ScaleOutput, assert_same, eager, output_of, real_part
from zoo import ZOO, Animal, batch

LENGTHS = [(7, 7), (7, 4), (6,)]
DTYPES = [torch.float32, torch.bfloat16]
CAUSAL = [animal for animal in ZOO if animal.causal]
SIDED = [(animal, lengths, side) for animal in ZOO for lengths in LENGTHS for side in animal.sides]


def example_of(animal: Animal, dtype: torch.dtype = torch.float32) -> Any:
    return batch(animal, dtype=dtype) if animal.eats == "embeddings" else None


def build(animal: Animal, dtype: torch.dtype = torch.float32) -> Any:
    return eager(animal.build().to(dtype))


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_every_site_is_found(animal: Animal) -> None:
    found = find_sites(animal.build(), example_of(animal))
    assert {role: sum(site.role == role for site in found) for role in {site.role for site in found}} == animal.roles
    assert {site.heads for site in found} == {animal.heads}
    assert {site.route for site in found} == {animal.route}
    for role, depth in animal.roles.items():
        assert [site.layer for site in found if site.role == role] == list(range(depth))
    assert len({site.name for site in found}) == len(found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("animal", "lengths", "side"), SIDED, ids=lambda value: str(value))
def test_watching_changes_nothing(animal: Animal, lengths: tuple[int, ...], side: str, dtype: torch.dtype) -> None:
    model, inputs = build(animal, dtype), batch(animal, lengths, dtype, side)
    with torch.no_grad():
        stock = output_of(model(**inputs))
        with attach(model, stats=[Keep()], example=example_of(animal, dtype)):
            ours = output_of(model(**inputs))
    assert_same(ours, stock, animal, lengths, side, dtype)


@pytest.mark.parametrize(("animal", "lengths", "side"), SIDED, ids=lambda value: str(value))
def test_what_is_watched_is_what_stock_returns(animal: Animal, lengths: tuple[int, ...], side: str) -> None:
    if not animal.stock_attentions:
        pytest.skip(f"stock {animal.name} does not return all its attentions")
    model, inputs, keep = build(animal), batch(animal, lengths, side=side), Keep()
    with torch.no_grad():
        result = model(**inputs, output_attentions=True)
        with attach(model, stats=[keep]):
            model(**inputs)
    roles = ("encoder", "decoder", "cross") if len(animal.stock_attentions) == 3 else tuple(animal.roles)
    stock = [tensor for name in animal.stock_attentions for tensor in getattr(result, name)]
    ours = keep.of_roles(*roles)
    assert len(ours) == len(stock) == sum(animal.roles.values())
    calls = [call for role in roles for call in keep.calls.values() if call.site.role == role]
    for mine, theirs, call in zip(ours, stock, calls, strict=True):
        valid = call.valid.expand_as(mine)
        assert valid.any()
        torch.testing.assert_close(mine[valid], theirs[valid])
        assert not mine.masked_select(~call.allowed & call.queries[:, None, :, None]).any()


@pytest.mark.parametrize("same", [SameScores(), SameWeights()], ids=["scores", "weights"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("animal", "lengths", "side"), SIDED, ids=lambda value: str(value))
def test_edits_that_change_nothing(
    animal: Animal, lengths: tuple[int, ...], side: str, dtype: torch.dtype, same: Any
) -> None:
    if animal.name == "gpt_oss" and isinstance(same, SameScores):
        pytest.skip("edits of scores are refused at attention sinks, see test_sinks_refuse_edits_of_scores")
    model, inputs = build(animal, dtype), batch(animal, lengths, dtype, side)
    with torch.no_grad():
        stock = output_of(model(**inputs))
        with edit(model, same, example=example_of(animal, dtype)):
            ours = output_of(model(**inputs))
    assert_same(ours, stock, animal, lengths, side, dtype)


def test_sinks_refuse_edits_of_scores() -> None:
    animal = next(animal for animal in ZOO if animal.name == "gpt_oss")
    model = build(animal)
    with pytest.raises(SiteError, match="attention sinks"), edit(model, SameScores()):
        model(**batch(animal))
    with torch.no_grad(), attach(model, stats=[keep := Keep()]):
        model(**batch(animal))
    for weights in keep.tensors.values():  # the sink's share is missing from the rows
        assert (weights.sum(-1) < 0.999).any()


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_training_gives_the_gradients_of_stock(animal: Animal) -> None:
    """Dropout included: with the same seed the same cells are dropped."""
    lengths = (7, 5)
    inputs = batch(animal, lengths)

    def loss(model: Any) -> torch.Tensor:
        # Padding is left out: edited sites give zeros for rows without allowed keys, stock ones anything.
        return (
            torch.cat([part.flatten() for part in real_part(output_of(model(**inputs)), animal, lengths, "right")])
            .pow(2)
            .mean()
        )

    gradients = []
    for edited in (False, True):
        model = build(animal).train()
        torch.manual_seed(3)
        if edited:
            with edit(model, SameWeights(), example=example_of(animal)):
                total = loss(model)
        else:
            total = loss(model)
        total.backward()
        assert all(module.training for module in model.modules())
        gradients.append({name: value.grad for name, value in model.named_parameters() if value.grad is not None})
    stock, ours = gradients
    assert stock.keys() == ours.keys()
    assert stock
    for name in stock:
        torch.testing.assert_close(ours[name], stock[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_edits_reach_every_site(animal: Animal) -> None:
    """Halving the weights of a single site changes the model's result, for each site that can influence it."""
    model, inputs = build(animal), batch(animal)
    with torch.inference_mode():
        stock = output_of(model(**inputs))
        for site in find_sites(model, example_of(animal)):
            with edit(model, Scale(0.5), select=Select(names=site.name)):
                changed = not torch.equal(output_of(model(**inputs)), stock)
            last_vision = animal.name == "lxmert" and site.role.startswith("vision") and ".x_layers.1." in site.name
            assert changed is not last_vision, site


@pytest.mark.parametrize("animal", CAUSAL, ids=str)
def test_decoders_stay_causal(animal: Animal) -> None:
    """Even an edit that adds weight everywhere cannot let an earlier output see a later token."""
    model, inputs = build(animal), batch(animal, (7,))
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, 5] = (changed["input_ids"][0, 5] + 7) % 50 + 5
    with torch.no_grad(), edit(model, Scale(plus=0.1)):
        before, after = output_of(model(**inputs)), output_of(model(**changed))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("animal", [animal for animal in ZOO if animal.eats == "pair"], ids=str)
def test_the_decoder_of_a_pair_stays_causal(animal: Animal) -> None:
    model, inputs = build(animal), batch(animal, (7,))
    changed = {**inputs, "decoder_input_ids": inputs["decoder_input_ids"].clone()}
    changed["decoder_input_ids"][0, 4] = (changed["decoder_input_ids"][0, 4] + 7) % 50 + 5
    with torch.no_grad(), edit(model, Scale(plus=0.1), select=Select(roles="decoder")):
        before = output_of(model(**inputs, use_cache=False))
        after = output_of(model(**changed, use_cache=False))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_outputs_of_heads_can_be_edited(animal: Animal) -> None:
    """Scaling a head's output is scaling its weights; where the output cannot be seen, the edit is refused."""
    model, inputs = build(animal), batch(animal)
    chosen = Select(heads=[1])
    with torch.no_grad():
        with edit(model, Scale(0.3), select=chosen, example=example_of(animal)):
            by_weights = output_of(model(**inputs))
        if animal.name in ("xlnet", "torch_encoder"):
            with pytest.raises(SiteError, match="heads cannot be edited"), edit(model, ScaleOutput(0.3)):
                model(**inputs)
            return
        with edit(model, ScaleOutput(0.3), select=chosen):
            by_output = output_of(model(**inputs))
    torch.testing.assert_close(by_output, by_weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_an_edit_of_outputs_alone_stays_on_the_fused_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    animal = next(animal for animal in ZOO if animal.name == name)
    model, inputs = build(animal), batch(animal)
    model.set_attn_implementation("sdpa")
    fused = torch.nn.functional.scaled_dot_product_attention
    calls = []

    def counted(*args: object, **kwargs: object) -> torch.Tensor:
        calls.append(None)
        return fused(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    with torch.no_grad():
        with edit(model, ScaleOutput(0.3)):
            by_output = output_of(model(**inputs))
        assert len(calls) == 2
        with edit(model, Scale(0.3)):
            by_weights = output_of(model(**inputs))
        assert len(calls) == 2
    torch.testing.assert_close(by_output, by_weights, atol=1e-5, rtol=1e-4)
