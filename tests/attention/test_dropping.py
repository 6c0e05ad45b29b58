"""Edits that only remove cells: the kernel that leaves them out equals the reference that computes and removes them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from transformers import BertConfig, BertModel

import attrim
from attrim.attention import dropping
from attrim.attention.context import attach
from attrim.core.site import Select, Site
from attrim.edits.base import Edit
from attrim.edits.mask import Mask
from attrim.edits.mask_outside_window import MaskOutsideWindow
from attrim.edits.threshold import Threshold
from attrim.edits.window import Window
from attrim.kernels import team
from attrim.stats.mean import Mean
from watching import noted_outputs, output_of
from zoo import ZOO, Animal, batch

pytestmark = pytest.mark.skipif(
    not team.available() or team.PATHS[team.path()] == "torch", reason="the compiled passes are not used here"
)
ANIMALS = [animal for animal in ZOO if animal.route == "interface" and animal.name not in ("gpt_oss", "gemma2", "t5")]
"""Those with plain softmax attention; the others are refused or have terms of their own in their scores."""
LONG = 40


def removals(roles: str | None = None) -> dict[str, list[Edit]]:
    generator = torch.Generator().manual_seed(5)
    select = Select() if roles is None else Select(roles=roles)
    cells = torch.rand(4, LONG, LONG, generator=generator) < 0.6
    return {
        "mask": [Mask(cells, select=select)],
        "one head": [Mask(cells, select=Select(heads=(2,)))],
        "window": [Window(2, 1)],
        "both": [Mask(cells[:1]), Window(4)],
        "outside": [MaskOutsideWindow(cells[:, :13, :11], 3, 2)],
        "short": [Mask(cells[:, :3, :3], "prune")],
        "offset": [Mask(cells[:, :6, :5], "offset"), Window(8)],
    }


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the kernel returned, to see that it ran."""
    return noted_outputs(monkeypatch, dropping)


def test_dropout_of_attention_is_not_left_out(used: list[Tensor]) -> None:
    """A model in training mode drops weights without gradients, too, and no kernel does that."""
    animal = next(one for one in ANIMALS if str(one) == "bert")
    model, inputs = animal.build(), batch(animal, (19,))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    with torch.no_grad(), attrim.edit(model, Window(2, 1)):
        model.eval()(**inputs)
        assert used
        used.clear()
        first, second = (output_of(model.train()(**inputs)) for _ in range(2))
    assert not used
    assert not torch.equal(first, second)


@pytest.mark.parametrize("change", [Window(3, 1), Threshold(0.01)], ids=["window", "threshold"])
def test_a_bias_of_scores_in_the_mask_is_not_left_out(change: Edit, used: list[Tensor]) -> None:
    """A user may pass a mask whose numbers are added to the scores of allowed cells; no kernel does that."""
    animal = next(one for one in ANIMALS if str(one) == "bert")
    model, inputs = animal.build(), batch(animal, (19, 19))
    bias = torch.randn(2, 1, 19, 19, generator=torch.Generator().manual_seed(3))
    bias[:, :, :, 17:] = torch.finfo(torch.float32).min
    with attrim.edit(model, change):
        for mask in (bias, bias.clamp(max=0).where(bias < -1e30, 0.0)):
            with torch.enable_grad():
                expected = output_of(model(**{**inputs, "attention_mask": mask}))
            used.clear()
            with torch.no_grad():
                found = output_of(model(**{**inputs, "attention_mask": mask}))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert bool(used) == (mask is not bias and isinstance(change, Window))


@pytest.mark.parametrize("kind", removals())
@pytest.mark.parametrize("lengths", [(19, 6)], ids=str)
@pytest.mark.parametrize("animal", ANIMALS, ids=str)
def test_equals_the_reference(animal: Animal, lengths: tuple[int, ...], kind: str, used: list[Tensor]) -> None:
    model, inputs, edits = animal.build(), batch(animal, lengths), removals()[kind]
    with attrim.edit(model, *edits):
        reference = output_of(model(**inputs)).detach()
        assert not used, "gradients need the reference"
        with torch.no_grad():
            found = output_of(model(**inputs))
    assert used
    real = inputs.get("attention_mask")
    if real is not None and found.shape[:2] == real.shape:  # what padding gives is nobody's business
        reference, found = (tensor * real[:, :, None] for tensor in (reference, found))
    torch.testing.assert_close(found, reference, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("animal", [animal for animal in ANIMALS if animal.generates], ids=str)
def test_generation_with_a_cache(animal: Animal, used: list[Tensor]) -> None:
    model, inputs = animal.build(), batch(animal, (9, 9))
    options: dict[str, Any] = {
        "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True,
        "output_logits": True, "pad_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    inputs.pop("decoder_input_ids", None)
    with torch.no_grad(), attrim.edit(model, *removals()["both"]):
        fast = model.generate(**inputs, **options)
        assert used
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dropping, "attend", lambda *_: None)
            slow = model.generate(**inputs, **options)
    assert torch.equal(fast.sequences, slow.sequences)
    for own, other in zip(fast.logits, slow.logits, strict=True):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_texts_in_one_context_know_nothing_of_each_other(name: str) -> None:
    """Padding and position of one text must not be those of the next."""
    animal = ANIMALS[[animal.name for animal in ANIMALS].index(name)]
    model, inputs = animal.build(), batch(animal, (9, 9))
    inputs.pop("decoder_input_ids", None)
    padded = {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}
    padded["attention_mask"][0, :4] = 0
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), attrim.edit(model, Window(4, first=1)):
        first, other, second = (model.generate(**each, **options) for each in (inputs, padded, inputs))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_what_the_kernel_cannot_do_is_left_to_the_reference(used: list[Tensor]) -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, inputs = animal.build(), batch(animal)
    with torch.no_grad():
        with attrim.edit(model, Mask(torch.ones(4, 9, 9, dtype=torch.bool), empty="uniform")):
            model(**inputs)
        with attach(model, edits=[Window(2)], stats=[Mean()]):
            model(**inputs)
        with attrim.edit(model, Window(2), attrim.Threshold(0.1)):
            model(**inputs)
        assert not used
        with attrim.edit(model, Window(2)):
            model(**inputs)
    assert used


@pytest.mark.parametrize("edit", [Window(2), attrim.Threshold(0.05)], ids=["dropped", "fused"])
def test_derivatives_of_forward_mode_are_those_of_the_reference(edit: Edit, used: list[Tensor]) -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model = animal.build().double()  # no kernel computes with double precision
    states, direction = torch.randn(2, 2, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    tangents = []
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        with torch.no_grad(), attrim.edit(model, edit), forward_ad.dual_level():
            dual = forward_ad.make_dual(states.to(dtype), direction.to(dtype))
            tangents.append(forward_ad.unpack_dual(model(inputs_embeds=dual)[0]).tangent.double())
    torch.testing.assert_close(tangents[1], tangents[0], atol=1e-4, rtol=1e-3)
    assert not used


def test_plans_are_made_once_for_texts_of_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, made = animal.build(), []
    real = dropping.make_plan
    monkeypatch.setattr(
        dropping, "make_plan", lambda *arguments, **options: made.append(1) or real(*arguments, **options)
    )
    # Plans are shared by equal edits, and no other test has this one.
    with torch.no_grad(), attrim.edit(model, Window(3, 5)):
        for length in (17, 20, 30, 18):
            model(**batch(animal, (length, 5)))
    assert len(made) == 2, "one for each site"


def test_costs_are_known_before_anything_runs() -> None:
    sites = {Site("a", "encoder", 0, 3): 16, Site("b", "decoder", 0, 2): 8}
    first, second = sites
    costs = dropping.plan_costs(sites, [Window(3, select=Select(heads=((0, 0), (0, 1))))], 64)
    windowed, whole = sorted(costs[first], key=lambda cost: cost.kept / len(cost.heads))
    assert (windowed.heads, whole.heads) == ((0, 1), (2,))
    assert (whole.density, whole.union_density, whole.flops) == (1.0, 1.0, 2 * 64 * 64 * 32)
    assert windowed.kept == 2 * (5 * 64 - 2 * (2 + 1))
    (causal,) = costs[second]
    assert (causal.allowed, causal.kept) == (64 * 65, 2 * (3 * 64 - 3))
    assert dropping.plan_costs(sites, [Window(3)], 64, causal=False)[second][0].allowed == 2 * 64 * 64


def test_no_plan_has_no_cost() -> None:
    site = Site("a", "encoder", 0, 1)
    assert dropping.plan_costs({site: 16}, [attrim.Threshold(0.1)], 64) == {}


def test_threads_that_need_plans_at_once() -> None:
    """Plans of all layers are kept together, where one thread looks while another adds its own."""
    config = BertConfig(
        hidden_size=16, num_hidden_layers=8, num_attention_heads=2, intermediate_size=16, vocab_size=50,
    )  # fmt: skip
    model, failed = BertModel(config).eval(), []
    cells = {f"encoder.layer.{layer}.attention.self": torch.rand(2, 64, 64) < 0.6 for layer in range(8)}
    texts = [torch.randint(0, 50, (1, length)) for length in (10, 20, 40, 100)]

    def run(baked: Any, first: int, start: threading.Barrier) -> None:
        start.wait()
        try:
            with torch.no_grad():
                for text in texts[first:] + texts[:first]:
                    baked(text)
        except BaseException as error:  # in a thread, where pytest does not see it
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            baked, start = attrim.bake(model, Mask(cells)), threading.Barrier(len(texts))
            threads = [threading.Thread(target=run, args=(baked, first, start)) for first in range(len(texts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed
