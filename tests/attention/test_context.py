"""Entering and leaving: composition, isolation, restoration, and errors instead of silence."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attrim.attention.context import attach, edit
from attrim.attention.discover import find_sites
from attrim.core.site import Select
from attrim.errors import AttrimError, SelectionError, SiteError
from watching import Keep, SameWeights, Scale, eager, output_of
from zoo import ZOO, Animal, batch

BY_NAME = {animal.name: animal for animal in ZOO}


def snapshot(model: nn.Module) -> Any:
    """Everything about a model that a context might leave changed."""
    return [
        (
            name,
            sorted(module.__dict__),
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            module.__dict__.get("forward"),
            copy.deepcopy(getattr(getattr(module, "config", None), "_attn_implementation_internal", None)),
        )
        for name, module in model.named_modules()
    ]


def example_of(animal: Animal) -> Any:
    return batch(animal) if animal.eats == "embeddings" else None


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_the_model_is_as_before(animal: Animal, mode: str) -> None:
    model = animal.build()
    model.train(mode == "train")
    before = snapshot(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with edit(model, Scale(0.5), example=example_of(animal)):
        model(**batch(animal))
    assert snapshot(model) == before
    with pytest.raises(ZeroDivisionError), attach(model, [Scale(0.5)], [Keep()]):
        model(**batch(animal))
        raise ZeroDivisionError
    assert snapshot(model) == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["bert", "t5", "lxmert", "mpt", "torch_encoder"])
def test_an_error_inside_the_model_restores_it(name: str) -> None:
    animal = BY_NAME[name]
    model = animal.build()
    before = snapshot(model)

    class Breaks(SameWeights):
        def edit_weights(self, weights: Tensor, call: Any) -> Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), edit(model, Breaks(), example=example_of(animal)):
        model(**batch(animal))
    assert snapshot(model) == before
    with torch.no_grad():  # and nothing lingers in this thread
        torch.testing.assert_close(output_of(model(**batch(animal))), output_of(animal.build()(**batch(animal))))


@pytest.mark.parametrize("name", ["bert", "deberta", "lxmert"])
def test_nested_contexts_compose_in_order(name: str) -> None:
    animal = BY_NAME[name]
    model, keep = animal.build(), Keep()
    inputs = batch(animal)
    with torch.no_grad(), attach(model, stats=[plain := Keep()]):
        model(**inputs)
    with torch.no_grad(), edit(model, Scale(0.5)), attach(model, stats=[keep]), edit(model, Scale(1.0, plus=0.25)):
        model(**inputs)
    first = next(iter(keep.tensors))  # later sites get other inputs
    torch.testing.assert_close(keep.tensors[first], plain.tensors[first] * 0.5 + 0.25)
    with torch.no_grad(), attach(model, [Scale(1.0, plus=0.25), Scale(0.5)], [keep]):
        model(**inputs)
    torch.testing.assert_close(keep.tensors[first], (plain.tensors[first] + 0.25) * 0.5)


def test_a_context_can_be_entered_again_and_again() -> None:
    animal = BY_NAME["bert"]
    model, results = animal.build(), []
    for _ in range(3):
        with torch.no_grad(), edit(model, Scale(0.5)):
            results.append(output_of(model(**batch(animal))))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["bert", "deberta"])
def test_two_models_do_not_see_each_other(name: str) -> None:
    animal = BY_NAME[name]
    one, other = animal.build(), animal.build()
    inputs = batch(animal)
    with torch.no_grad():
        stock = output_of(one(**inputs))
        with edit(one, Scale(0.5)):
            alone = output_of(one(**inputs))
        with edit(one, Scale(0.5)), edit(other, Scale(0.0)):
            both = output_of(one(**inputs))
            other(**inputs)
        with edit(one, Scale(0.5), strict=False):
            untouched = output_of(other(**inputs))
    assert torch.equal(alone, both)
    torch.testing.assert_close(untouched, stock)


def test_models_that_share_a_configuration_do_not_see_each_other() -> None:
    animal = BY_NAME["bert"]
    one = animal.build()
    other = type(one)(one.config).eval()  # the very same configuration object
    other.load_state_dict(one.state_dict())
    inputs = batch(animal)
    with torch.no_grad():
        stock = output_of(other(**inputs))
        with edit(one, Scale(0.0)):
            changed = output_of(one(**inputs))
            untouched = output_of(other(**inputs))
    torch.testing.assert_close(untouched, stock)
    assert not torch.allclose(changed, stock)


@pytest.mark.parametrize("name", ["bert", "deberta"])
def test_threads_do_not_see_each_other(name: str) -> None:
    """Four threads run one model at the same time, each with its own edit, and one with none."""
    animal = BY_NAME[name]
    model, inputs = eager(animal.build()), batch(animal)
    factors = [None, 0.0, 0.5, 1.5]

    def run(factor: float | None) -> Tensor:
        with torch.no_grad():
            if factor is None:
                return output_of(model(**inputs))
            with edit(model, Scale(factor)):
                return output_of(model(**inputs))

    expected = [run(factor) for factor in factors]
    before = snapshot(model)
    barrier = threading.Barrier(len(factors))
    wrong: list[str] = []

    def work(place: int) -> None:
        barrier.wait()
        for _ in range(20):
            result = run(factors[place])
            if not torch.allclose(result, expected[place], atol=1e-6):
                wrong.append(f"{factors[place]} differs by {(result - expected[place]).abs().max()}")

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(factors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert snapshot(model) == before


def test_a_model_that_runs_in_another_thread_is_no_silent_success() -> None:
    animal = BY_NAME["bert"]
    model = animal.build()

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: model(**batch(animal)))
        thread.start()
        thread.join()

    with pytest.raises(SiteError, match="another thread"), edit(model, Scale(0.5)):
        elsewhere()


def test_a_site_that_did_not_fire_is_named() -> None:
    animal = BY_NAME["clip"]
    model, inputs = animal.build(), batch(animal)
    text = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    missing = r"2 chosen sites did not fire.*vision_model\.encoder\.layers\.0"
    with pytest.raises(SiteError, match=missing), edit(model, Scale(0.5)):
        model.get_text_features(**text)
    with edit(model, Scale(0.5), select=Select(roles="text")):
        model.get_text_features(**text)
    with edit(model, Scale(0.5), strict=False):
        model.get_text_features(**text)


def test_a_selection_that_matches_nothing_is_an_error() -> None:
    model = BY_NAME["bert"].build()
    before = snapshot(model)
    for select in (Select(roles="decoder"), Select(layers=9), Select(heads=[17]), Select(names="nothing*")):
        with pytest.raises(SelectionError, match="matches no head"), edit(model, Scale(0.5), select=select):
            raise AssertionError("must not be reached")
    assert snapshot(model) == before


def test_a_model_without_attention_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(SiteError, match="No attention was seen in Sequential"):
        find_sites(model, torch.zeros(1, 4))
    with pytest.raises(SiteError, match="pass example="):
        find_sites(model)


def test_an_architecture_that_cannot_be_reached_says_why() -> None:
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24
    )
    with pytest.raises(SiteError, match="longformer cannot be reached: its scores are a band"):
        find_sites(LongformerModel(config))


def test_selection_of_heads_leaves_the_others_alone() -> None:
    animal = BY_NAME["llama"]
    model, keep, plain = animal.build(), Keep(), Keep()
    with torch.no_grad():
        with attach(model, stats=[plain]):
            model(**batch(animal))
        with attach(model, [Scale(0.0, select=Select(layers=0, heads=[1, 2]))], [keep]):
            model(**batch(animal))
    name = next(iter(keep.tensors))
    assert torch.equal(keep.tensors[name][:, [0, 3]], plain.tensors[name][:, [0, 3]])
    assert not keep.tensors[name][:, [1, 2]].any()


def test_the_two_directions_of_lxmert_are_edited_apart() -> None:
    animal = BY_NAME["lxmert"]
    model, keep = animal.build(), Keep()
    with torch.no_grad(), attach(model, [Scale(0.0, select=Select(roles="vision>language"))], [keep]):
        model(**batch(animal))
    for weights in keep.of_roles("vision>language"):
        assert not weights.any()
        assert weights.shape[-2:] == (3, 7)
    for weights in keep.of_roles("language>vision"):
        assert weights.any()
        assert weights.shape[-2:] == (7, 3)


def test_repeated_calls_of_one_module_are_sites_of_their_own() -> None:
    animal = BY_NAME["albert"]
    model, keep, plain = animal.build(), Keep(), Keep()
    with torch.no_grad():
        with attach(model, stats=[plain]):
            model(**batch(animal))
        for _ in range(2):  # the count starts again with every forward pass
            with attach(model, [Scale(0.0, select=Select(layers=1))], [keep]):
                model(**batch(animal))
                model(**batch(animal))
    first, second = plain.tensors
    assert torch.equal(keep.tensors[first], plain.tensors[first])
    assert not keep.tensors[second].any()


def test_an_example_inside_a_context_is_not_watched() -> None:
    animal = BY_NAME["deberta"]
    model, keep = animal.build(), Keep()
    with attach(model, stats=[keep], strict=False):
        find_sites(model, batch(animal))
    assert not keep.tensors


@pytest.mark.parametrize("name", ["bert", "deberta"])
def test_a_copy_that_is_made_inside_has_its_own_weights(name: str) -> None:
    """It is the model without the edits, during the context and afterwards."""
    animal = BY_NAME[name]
    model, inputs = animal.build(), batch(animal)
    with torch.no_grad():
        plain = output_of(model(**inputs))
        with edit(model, Scale(0.5)):
            model(**inputs)
            twin = copy.deepcopy(model)
            torch.testing.assert_close(output_of(twin(**inputs)), plain, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output_of(twin(**inputs)), plain, atol=1e-5, rtol=1e-5)
        for parameter in twin.parameters():
            parameter.zero_()
        assert not output_of(twin(**inputs)).any()


def test_an_edited_model_is_not_pickled() -> None:
    animal = BY_NAME["bert"]
    model = animal.build()
    with edit(model, Scale(0.5), strict=False), pytest.raises(SiteError, match="leave the context first"):
        pickle.dumps(model)


def test_a_tensor_in_place_of_a_selection_is_refused() -> None:
    with pytest.raises(AttrimError), edit(BY_NAME["bert"].build(), Scale(0.5), select=torch.tensor([0.0, 0.0])):  # type: ignore[arg-type]
        pass
