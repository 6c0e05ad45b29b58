from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attrim
from attrim.attention import dropping
from attrim.baking.windows import find_windows
from attrim.core.registry import EDITS
from attrim.core.site import Select, Site
from attrim.core.text import parse
from attrim.edits.mask import Mask
from attrim.edits.mask_outside_window import MaskOutsideWindow
from attrim.edits.saving import save_edits
from attrim.edits.window import Window
from attrim.errors import ArtefactError, AttrimError, ParameterError, ShapeError, SiteError
from baked_models import ANIMALS, noise
from watching import output_of
from zoo import batch

SCORES = torch.zeros(1, 4, 9, 9)


def kept(edit: attrim.edits.Edit, allowed: torch.Tensor | None = None) -> torch.Tensor:
    """Bool ``[H, Q, K]``: the cells with weight."""
    return edit.apply(SCORES, allowed)[0] > 0


def test_it_keeps_what_the_window_or_the_mask_keeps() -> None:
    cells = noise(4, 9, 9) < 0.7
    expected = kept(Window(2, 1)) | ~cells
    assert torch.equal(kept(MaskOutsideWindow(cells, 2, 1)), expected)
    causal = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    assert torch.equal(kept(MaskOutsideWindow(cells, 2, 1), causal), expected & causal[0])


def test_beyond_the_mask_there_is_the_window_alone() -> None:
    found = kept(MaskOutsideWindow(torch.zeros(1, 4, 5, dtype=torch.bool), 2))
    expected = kept(Window(2))
    expected[:, :4, :5] = True
    assert torch.equal(found, expected)


def test_a_saved_mask_serves_with_its_selection(tmp_path: Path) -> None:
    mask = Mask(noise(2, 4, 4) < 0.7, "offset", select=Select(layers=1))
    save_edits(mask, tmp_path)
    found = parse(EDITS, f"mask-outside-window:{tmp_path},size=3,first=2")
    assert isinstance(found, MaskOutsideWindow)
    assert (found.size, found.first, found.select) == (3, 2, Select(layers=1))
    assert isinstance(found.cells, torch.Tensor)
    assert torch.equal(found.cells, mask.cells)


@pytest.mark.parametrize("baked", [False, True], ids=["edits", "model"])
def test_a_saved_one_comes_back_with_its_window(baked: bool, tmp_path: Path) -> None:
    edit = MaskOutsideWindow(noise(4, 9, 9) < 0.7, 3, 2, about="by hand", select=Select(roles="encoder"))
    if baked:
        attrim.bake(ANIMALS["bert"].build(), edit).save_pretrained(tmp_path)
    else:
        save_edits(edit, tmp_path)
    for options, size, first in (("", 3, 2), (",size=4", 4, 2), (",first=0", 3, 0)):
        found = parse(EDITS, f"mask-outside-window:{tmp_path}{options}")
        assert isinstance(found, MaskOutsideWindow)
        assert (found.size, found.first, found.select, found.about) == (size, first, Select(roles="encoder"), "by hand")
        assert torch.equal(kept(found), kept(MaskOutsideWindow(edit.cells, size, first)))
    with pytest.raises(ArtefactError, match="MaskOutsideWindow, not one mask; give mask-outside-window:"):
        parse(EDITS, f"mask:{tmp_path}")


def test_a_mask_alone_needs_a_size(tmp_path: Path) -> None:
    save_edits(Mask(noise(4, 9, 9) < 0.7), tmp_path)
    with pytest.raises(ParameterError, match="needs a size"):
        parse(EDITS, f"mask-outside-window:{tmp_path}")
    save_edits(Window(2), tmp_path)
    with pytest.raises(ArtefactError, match="holds Window, not one mask; save"):
        parse(EDITS, f"mask-outside-window:{tmp_path}")


def test_texts_of_any_length_have_a_plan() -> None:
    """The cells of a head would have 64 MiB."""
    length, site = 8192, Site("a", "decoder", 0, 2)
    edit = MaskOutsideWindow(noise(2, 64, 64) < 0.5, 32, 4)
    (first, second) = dropping.plan_costs({site: 16}, [edit], length)[site]
    inside = torch.ones(length, length, dtype=torch.bool).tril()
    inside &= ~torch.ones(length, length, dtype=torch.bool).tril(-32)
    inside[:, :4] = True
    for cost, head in ((first, 0), (second, 1)):
        near = inside.clone()
        near[:64, :64] |= ~edit.cells[head]  # type: ignore[index, call-overload]
        assert (cost.heads, cost.kept) == ((head,), int(near.tril().sum()))


def test_generation_keeps_all_keys() -> None:
    """A later query may need keys that the window has passed."""
    animal = ANIMALS["llama"]
    model, edit = animal.build(), MaskOutsideWindow(noise(4, 40, 40) < 0.7, 2, 1)
    baked = attrim.bake(model, edit)
    assert find_windows(baked) is None
    inputs = batch(animal, (7, 7))
    with torch.no_grad(), attrim.edit(model, edit):
        expected = model.generate(**inputs, max_new_tokens=9, do_sample=False)
    assert torch.equal(baked.generate(**inputs, max_new_tokens=9, do_sample=False), expected)
    longer = {"input_ids": expected, "attention_mask": torch.ones_like(expected)}
    with torch.no_grad():
        found = output_of(baked(**longer))
        with attrim.edit(model, edit):
            torch.testing.assert_close(found, output_of(model(**longer)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: MaskOutsideWindow(noise(1, 4, 4) < 0.5, 0), ParameterError, "size must be at least 1"),
        (lambda: MaskOutsideWindow(noise(1, 4, 4) < 0.5, 1, -1), ParameterError, "first must not be negative"),
        (lambda: MaskOutsideWindow(noise(1, 4, 4), 1), ParameterError, "must be boolean"),
        (lambda: MaskOutsideWindow(noise(4, 4) < 0.5, 1), ShapeError, r"must have the shape \[H, N, M\]"),
        (lambda: MaskOutsideWindow(Mask(noise(1, 4, 4) < 0.5, empty="uniform"), 1), ParameterError, "empty='uniform'"),
    ],
)
def test_what_does_not_fit_is_refused(make: object, kind: type[AttrimError], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()  # type: ignore[operator]


def test_masks_of_other_models_are_refused() -> None:
    model = ANIMALS["bert"].build()
    with pytest.raises(SiteError, match="made for another model"):
        attrim.bake(model, MaskOutsideWindow({"nowhere": noise(1, 4, 4) < 0.5}, 1))
    with pytest.raises(SiteError, match="made for a gpt2 model"):
        attrim.bake(model, MaskOutsideWindow(Mask(noise(1, 4, 4) < 0.5, made_for="gpt2"), 1))
    with pytest.raises(ShapeError, match="600 positions"):
        attrim.bake(model, MaskOutsideWindow(torch.ones(1, 600, 600, dtype=torch.bool), 1))
    with pytest.raises(ShapeError, match="is for 3 heads"):
        attrim.bake(model, MaskOutsideWindow(noise(3, 4, 4) < 0.5, 1))
