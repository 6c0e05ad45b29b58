"""Removed, constant, masked, windowed and dense heads in one site: baked equals edited, saved and trained, too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import attrim
import forks
from attrim.baking.window_cache import WindowCache, WindowLayer, window_cache
from attrim.baking.windows import find_windows
from attrim.core.site import Select
from attrim.core.text import parse_chain
from attrim.edits import Constant, Edit, Entmax, Gate, Mask, Window
from attrim.errors import ParameterError
from attrim.models.loading import load_model
from baked_models import ANIMALS, noise
from watching import assert_same, output_of
from zoo import batch

CONSTANTS = ("bert", "gpt2", "llama", "bart", "t5", "deberta", "lxmert")
"""Architectures of which constant heads can be baked, on both routes, with groups and cross-attention."""
GATES = (*CONSTANTS, "xlnet", "bloom")


def mixed(name: str) -> list[Edit]:
    """One head of every kind: 0 constant (in layer 0: too), 1 removed, 2 masked, 3 windowed."""
    select = {head: Select(heads=[head]) for head in range(4)}
    cells = noise(4, 12, 12) < 0.4
    edits: list[Edit] = [Gate(0, select=select[1]), Mask(cells, select=select[2]), Window(2, 1, select=select[3])]
    return [Constant(noise(4, 40, 40), select=select[0]), *edits] if name in CONSTANTS else edits


def run(animal: Any, model: Any, lengths: tuple[int, ...] = (7, 4)) -> torch.Tensor:
    inputs: dict[str, Any] = batch(animal, lengths)
    if animal.eats == "pair":
        inputs["use_cache"] = False
    return output_of(model(**inputs))


@pytest.mark.parametrize("name", GATES)
def test_every_kind_of_head_in_one_site(name: str, tmp_path: Path) -> None:
    animal = ANIMALS[name]
    model, edits = animal.build(), mixed(name)
    baked = attrim.bake(model, *edits)
    baked.save_pretrained(tmp_path)
    assert sum(p.numel() for p in baked.parameters()) < sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        with attrim.edit(model, *edits):
            expected = run(animal, model)
        for other in (baked, attrim.load(tmp_path), copy.deepcopy(baked)):
            assert_same(run(animal, other), expected, animal, (7, 4), "right", torch.float32)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_edits_in_any_order_and_of_all_heads(order: tuple[int, ...]) -> None:
    """What is about all heads is about those that are left; numbers are those of the model before."""
    animal = ANIMALS["bert"]
    model = animal.build()
    matrices = {site.name: noise(site.heads, 12, 12) < 0.3 for site in attrim.sites(model)}
    given = [Gate(torch.tensor([0.0, 1.0, 0.5, 1.0])), Mask(matrices, "offset"), Entmax(1.5)]
    edits = [given[place] for place in order]
    baked = attrim.bake(model, *edits)
    assert [site.heads for site in attrim.sites(baked)] == [3, 3]
    with torch.no_grad(), attrim.edit(model, *edits):
        expected = run(animal, model)
    with torch.no_grad():
        torch.testing.assert_close(run(animal, baked), expected, rtol=1e-4, atol=1e-5)


def test_layers_without_heads_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    animal = ANIMALS["bert"]
    model = animal.build()
    edits = [Gate(0, select=Select(layers=0)), Window(2, select=Select(heads=[(1, 3), (1, 0)]))]
    baked = attrim.bake(model, *edits)
    baked.save_pretrained(tmp_path)
    headless, inputs = load_model(str(tmp_path), kind="auto"), batch(animal, (7, 4))
    with torch.no_grad():
        with attrim.edit(model, *edits):
            expected, states = run(animal, model), model.base_model(**inputs).last_hidden_state
        torch.testing.assert_close(run(animal, attrim.load(tmp_path)), expected, rtol=1e-4, atol=1e-5)
        for backbone in (baked.base_model, attrim.load(tmp_path).base_model, headless):
            torch.testing.assert_close(backbone(**inputs).last_hidden_state, states, rtol=1e-4, atol=1e-5)
    assert [site.layer for site in attrim.sites(baked.base_model)] == [1]


@pytest.mark.parametrize("other", [Gate(0, select=Select(heads=[2])), Constant(noise(4, 40, 40), heads=[2])], ids=repr)
def test_an_edit_of_heads_that_are_gone_is_refused(other: Edit) -> None:
    model = ANIMALS["bert"].build()
    with pytest.raises(ParameterError, match="Window is only about heads that other edits remove or make constant"):
        attrim.bake(model, other, Window(2, select=Select(heads=[2])))


def test_the_mask_in_the_folder_has_the_numbers_of_the_model_before(tmp_path: Path) -> None:
    model = ANIMALS["bert"].build()
    cells = noise(4, 12, 12) < 0.4
    attrim.bake(model, Gate(0, select=Select(heads=[0])), Mask(cells)).save_pretrained(tmp_path)
    (mask,) = parse_chain(f"mask:{tmp_path}")
    assert isinstance(mask, Mask)
    assert torch.equal(mask.cells, cells)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_gradients_are_those_of_the_edited_model(name: str, tmp_path: Path) -> None:
    animal = ANIMALS[name]
    model, edits = animal.build().eval(), mixed(name)
    baked = attrim.bake(model, *edits).eval()
    with attrim.edit(model, *edits):
        run(animal, model, (7, 7)).square().sum().backward()  # what padding gives is nobody's business
    run(animal, baked, (7, 7)).square().sum().backward()
    own = dict(baked.named_parameters())
    for parameter, other in model.named_parameters():
        if own[parameter].shape == other.shape and other.grad is not None:
            torch.testing.assert_close(own[parameter].grad, other.grad, rtol=1e-3, atol=1e-4)
    torch.optim.SGD(baked.parameters(), lr=0.01).step()
    baked.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(run(animal, attrim.load(tmp_path)), run(animal, baked))


def test_loaded_in_a_fresh_process(tmp_path: Path) -> None:
    animal = ANIMALS["bert"]
    baked = attrim.bake(animal.build(), *mixed("bert"))
    baked.save_pretrained(tmp_path)
    torch.save(baked, tmp_path / "pickled.pt")
    inputs = batch(animal, (7, 4))
    torch.save(inputs, tmp_path / "inputs.pt")
    code = (
        "import os, sys, torch; os.chdir(sys.argv[1]); inputs = torch.load('inputs.pt');"
        # The pickle first: it must bring with it all that attrim.load sets up.
        "found = [torch.load('pickled.pt', weights_only=False)(**inputs)[0].detach()];"
        "import attrim; found.append(attrim.load('.')(**inputs)[0].detach());"
        "torch.save(found, 'found.pt')"
    )
    forks.run("-c", code, str(tmp_path)).check_returncode()
    for found in torch.load(tmp_path / "found.pt"):
        torch.testing.assert_close(found, baked(**inputs)[0])


TOKENS = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
WINDOWS = {
    "gpt2, heads removed": ("gpt2", [Gate(0, select=Select(heads=[1])), Window(3, 1)], [WindowLayer, WindowLayer]),
    "llama, a group removed": (
        "llama",
        [Gate(0, select=Select(heads=[(0, 0), (0, 1)])), Window(3, 1)],
        [WindowLayer, WindowLayer],
    ),
    "llama, part of a group removed": (
        "llama",
        [Gate(0, select=Select(heads=[(0, 0)])), Window(3, 1)],
        [None, WindowLayer],
    ),
    "llama, constant": (
        "llama",
        [Constant(noise(4, 40, 40), heads=[(1, 2)]), Window(3, 1)],
        [WindowLayer, None],
    ),
    "llama, a layer without heads": ("llama", [Gate(0, select=Select(layers=0)), Window(3, 1)], [None, WindowLayer]),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_generation_with_a_cache_of_windows(kind: str, tmp_path: Path) -> None:
    name, edits, layers = WINDOWS[kind]
    original = ANIMALS[name].build()
    attrim.bake(original, *edits).save_pretrained(tmp_path)
    model = attrim.load(tmp_path)
    wanted: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    wanted |= {"return_dict_in_generate": True, "output_logits": True, "attention_mask": torch.ones_like(TOKENS)}
    found = model.generate(TOKENS, **wanted)
    assert isinstance(found.past_key_values, WindowCache)
    assert [isinstance(layer, WindowLayer) for layer in found.past_key_values.layers] == [bool(kind) for kind in layers]
    assert found.past_key_values.nbytes > 0
    everything = model.generate(TOKENS, past_key_values=DynamicCache(), **wanted)
    with torch.no_grad(), attrim.edit(original, *edits):
        expected = original.generate(TOKENS, **wanted)
    for other in (everything, expected):
        assert torch.equal(found.sequences, other.sequences)
        torch.testing.assert_close(torch.stack(found.logits), torch.stack(other.logits), rtol=1e-4, atol=1e-5)


def test_no_cache_of_windows_beside_a_mask() -> None:
    edits = [Gate(0, select=Select(heads=[0])), Window(3), Mask(noise(4, 8, 8) < 0.2)]
    model = attrim.bake(ANIMALS["llama"].build(), *edits)
    assert find_windows(model) is None
    with pytest.raises(ParameterError, match="one or several within"):
        window_cache(model)
