"""Every edit in every architecture: finite, nothing on forbidden cells, and padding does not matter to a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attrim.attention.context import attach
from attrim.edits import Edit
from attrim.errors import SiteError
from methods import METHODS
from watching import Keep, eager, output_of
from zoo import ZOO, Animal, batch

EDITS = {str(parameter.id): parameter.values[0] for parameter in METHODS}
LENGTHS = (7, 4)


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_every_edit(animal: Animal) -> None:
    model = eager(animal.build())
    inputs: dict[str, Any] = batch(animal, LENGTHS)
    if animal.eats == "pair":
        inputs["use_cache"] = False  # with a cache, stock FSMT leaves out the masks of its decoder
    for name, edit in EDITS.items():
        assert isinstance(edit, Edit)
        if animal.name == "gpt_oss" and (edit.overrides("edit_scores") or edit.overrides("normalise")):
            with pytest.raises(SiteError, match="attention sinks"):
                run(model, edit, animal, inputs)
            continue
        together = run(model, edit, animal, inputs)
        if animal.eats == "visual-embeds":
            continue  # its regions stand after the padding of the text, so their positions depend on the batch
        alone = run(model, edit, animal, second_alone(inputs))
        for site, (weights, real) in alone.items():
            padded, padded_real = together[site]
            mine = padded[1][:, padded_real[1].any(0).any(-1)][..., padded_real[1].any(0).any(0)]
            own = weights[0][:, real[0].any(0).any(-1)][..., real[0].any(0).any(0)]
            torch.testing.assert_close(
                mine, own, rtol=1e-3, atol=1e-5, msg=lambda text, at=(name, site): f"{at}: {text}"
            )


def run(model: Any, edit: Edit, animal: Animal, inputs: dict[str, Any]) -> dict[str, tuple[torch.Tensor, ...]]:
    """The edited weights and the valid cells of every site, checked."""
    keep = Keep()
    example = batch(animal) if animal.eats == "embeddings" else None
    with torch.no_grad(), attach(model, [edit], [keep], example=example):
        assert torch.isfinite(output_of(model(**inputs))).all()
    found = {}
    for site, weights in keep.tensors.items():
        call = keep.calls[site]
        assert torch.isfinite(weights).all()
        assert (weights.masked_select(~call.allowed) == 0).all()
        found[site] = weights, call.valid.expand(len(weights), -1, -1, -1)
    return found


def second_alone(inputs: dict[str, Any]) -> dict[str, Any]:
    """The second text of the batch, without its padding."""
    text = {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "src", "src_key_padding_mask"}
    tensors = {name: value[1:] for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return inputs | {name: value[:, : LENGTHS[1]] if name in text else value for name, value in tensors.items()}
