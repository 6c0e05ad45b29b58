"""Global patterns in whole models: generation, causality, padding, and what an empty pattern leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import attrim
from attrim.attention.context import attach
from attrim.core.text import parse_chain
from attrim.edits import Edit, Entmax, Mask, SparsePattern, Window
from attrim.errors import ArtefactError, ShapeError, SiteError
from attrim.stats.mean import Mean
from attrim.stats.npy import write_averages, write_layers
from watching import Keep, eager, output_of
from zoo import ZOO, Animal, batch

ANIMALS = {animal.name: animal for animal in ZOO}
GENERATORS = ("gpt2", "llama", "bart", "marian", "t5")
STEPS = 5
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def averages(animal: Animal, model: Any, length: int = 12) -> Mean:
    """Average attention of a few texts."""
    mean = Mean()
    inputs: dict[str, Any] = batch(animal, (length, length - 3, length))
    with torch.no_grad(), attach(model, stats=[mean]):
        model(**inputs)
    return mean


def patterns(animal: Animal, model: Any) -> dict[str, Edit]:
    mean = averages(animal, model)
    return {
        "layer": SparsePattern(mean, 0.7, unseen="offset"),
        "row": SparsePattern(mean, 0.5, "row", keep_row=1),
        "random": SparsePattern(mean, 0.6, choose="random", seed=1),
        "tiles": SparsePattern(mean, 0.5, tile=2, tiles="rank"),
        "window": Window(2, first=1),
    }


def text_only(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def full_pass(animal: Animal, model: Any, inputs: dict[str, Tensor], sequences: Tensor) -> Tensor:
    """Logits of every generated position, computed without a cache."""
    if animal.eats == "pair":
        return model(**inputs, decoder_input_ids=sequences[:, :-1], use_cache=False).logits
    begin = inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], torch.ones(len(sequences), STEPS, dtype=torch.long)], 1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = model(input_ids=sequences, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[:, begin - 1 : -1]


@pytest.mark.parametrize("kind", ["layer", "row", "random", "tiles", "window"])
@pytest.mark.parametrize("name", GENERATORS)
def test_step_t_is_row_t(name: str, kind: str) -> None:
    """Self-attention and cross-attention, texts of different lengths, beyond the measured length too."""
    animal = ANIMALS[name]
    model = eager(animal.build())
    edit = patterns(animal, model)[kind]
    inputs = text_only(batch(animal, (9, 6), side="left" if animal.causal else "right"))
    options = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), attrim.edit(model, edit):
        found = model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)
        rows = full_pass(animal, model, inputs, found.sequences)
    for step in range(STEPS):
        torch.testing.assert_close(found.logits[step], rows[:, step], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", GENERATORS)
def test_beams_are_the_same_with_and_without_a_cache(name: str) -> None:
    animal = ANIMALS[name]
    model = eager(animal.build())
    edit = patterns(animal, model)["layer"]
    inputs = text_only(batch(animal, (7, 4), side="left" if animal.causal else "right"))
    options = {"max_new_tokens": STEPS, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), attrim.edit(model, edit):
        cached, whole = (model.generate(**inputs, **options, use_cache=cache) for cache in (True, False))
    assert torch.equal(cached, whole)


@pytest.mark.parametrize("empty", ["zero", "strongest"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_a_fully_pruned_row_does_not_leak_the_future(name: str, empty: Any) -> None:
    """Quirk 5 of spec/attention-pruning.md: no probability on later tokens, and they change nothing."""
    animal = ANIMALS[name]
    model = eager(animal.build())
    cells = torch.zeros(1, 8, 8, dtype=torch.bool)
    cells[:, 2] = cells[:, 3] = True
    inputs: dict[str, Any] = batch(animal, (8, 8))
    inputs.pop("labels", None)
    ids = "decoder_input_ids" if animal.eats == "pair" else "input_ids"
    other = inputs | {ids: inputs[ids].clone()}
    other[ids][:, 4:] = (other[ids][:, 4:] + 7) % 60 + 3
    keep = Keep()
    mask = Mask(cells, empty=empty, select=attrim.Select(roles="decoder"))
    with torch.no_grad(), attach(model, [mask], [keep]):
        one, two = output_of(model(**inputs)), output_of(model(**other))
    torch.testing.assert_close(one[:, :4], two[:, :4])
    assert not torch.allclose(one[:, 4:], two[:, 4:])
    for site, weights in keep.tensors.items():
        if keep.calls[site].site.role == "decoder":
            assert (weights.triu(1) == 0).all()
            expected = 0.0 if empty == "zero" else 1.0
            torch.testing.assert_close(weights[:, :, 2].sum(-1), torch.full(weights.shape[:2], expected))


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "lxmert", "xlnet"])
def test_an_empty_pattern_is_the_dense_model(name: str) -> None:
    animal = ANIMALS[name]
    model = eager(animal.build())
    inputs: dict[str, Any] = batch(animal, (7, 4))
    with torch.no_grad():
        dense = output_of(model(**inputs))
        with attrim.edit(model, SparsePattern(averages(animal, model), 0.0)):
            pruned = output_of(model(**inputs))
    real = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
    where = real if dense.ndim == 3 and dense.shape[:2] == real.shape else slice(None)
    torch.testing.assert_close(pruned[where], dense[where], rtol=1e-5, atol=1e-5)


def test_a_pattern_over_padded_keys_only_is_the_dense_model() -> None:
    animal = ANIMALS["bert"]
    model = eager(animal.build())
    inputs = batch(animal, (4, 4))
    padded = {
        name: torch.cat([value, torch.zeros_like(value[:, :3])], 1) if value.ndim == 2 else value
        for name, value in inputs.items()
    }
    cells = torch.zeros(1, 7, 7, dtype=torch.bool)
    cells[:, :, 4:] = True
    with torch.no_grad():
        dense = output_of(model(**padded))
        with attrim.edit(model, Mask(cells)):
            pruned = output_of(model(**padded))
    torch.testing.assert_close(pruned, dense, rtol=1e-5, atol=1e-5)


def test_a_mask_for_another_model_is_refused() -> None:
    deep, shallow = (
        transformers.BertModel(transformers.BertConfig(**SMALL, num_hidden_layers=layers)).eval() for layers in (3, 2)
    )
    ids = torch.randint(0, 50, (1, 5))
    with torch.no_grad(), attach(deep, stats=[mean := Mean()]):
        deep(ids)
    pattern = SparsePattern(mean, 0.5)
    for edit in (pattern, pattern.mask):
        with pytest.raises(SiteError, match=r"layer\.2.*made for another model"), attrim.edit(shallow, edit):
            shallow(ids)
    wider = transformers.BertModel(transformers.BertConfig(**SMALL | {"num_attention_heads": 4}, num_hidden_layers=3))
    with pytest.raises(ShapeError, match="2 heads but the site has 4"), attrim.edit(wider.eval(), pattern):
        wider(ids)


def test_released_files_fit_the_model_by_role_and_layer(tmp_path: Path) -> None:
    """The averages of an encoder-decoder, one file for each role as fairseq has them, and a keep-mask."""
    animal = ANIMALS["bart"]
    model = eager(animal.build())
    mean = averages(animal, model)
    inputs: dict[str, Any] = batch(animal, (7, 4))
    for begin, role in (("self-enc", "encoder"), ("self-dec", "decoder"), ("enc-dec", "cross")):
        path = write_averages(mean, tmp_path / f"{begin}_reverse.npy", "heads-first", role=role)
        (released,) = parse_chain(f"pattern:{path},tau=0.6,roles={role}")
        own = SparsePattern(mean, 0.6, select=attrim.Select(roles=role))
        kept = [(~own.mask.cells[site.name]).float() for site in mean.sites if site.role == role]  # type: ignore[index]
        fine = write_layers(kept, tmp_path / f"{begin}_fine.npy", "heads-first")
        (keep_mask,) = parse_chain(f"mask:{fine},roles={role}")
        results = []
        for edit in (own, released, keep_mask):
            with torch.no_grad(), attrim.edit(model, edit):
                results.append(output_of(model(**inputs)))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
    with pytest.raises(ArtefactError, match="so it is no mask"):
        parse_chain(f"mask:{path}")


def test_the_same_pattern_in_a_batch_of_any_size() -> None:
    animal = ANIMALS["llama"]
    model = eager(animal.build())
    edit = patterns(animal, model)["layer"]
    inputs = batch(animal, (9, 9, 9))
    with torch.no_grad(), attrim.edit(model, edit):
        together = output_of(model(**inputs))
        alone = [output_of(model(**{name: value[row : row + 1] for name, value in inputs.items()})) for row in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "t5"])
def test_training_with_a_pattern_and_entmax(name: str) -> None:
    """A few steps lower the loss, gradients are finite, and removed cells stay at zero."""
    animal = ANIMALS[name]
    model = animal.build()
    edits = [SparsePattern(averages(animal, model), 0.5), Entmax(1.5)]
    inputs: dict[str, Any] = batch(animal, (7, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    with attach(model, edits, [keep := Keep()]):
        for _ in range(5):
            optimizer.zero_grad()
            loss = output_of(model(**inputs)).float().square().mean()
            loss.backward()
            assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    pattern = edits[0]
    assert isinstance(pattern, SparsePattern)
    for site, weights in keep.tensors.items():
        cells = pattern.mask.cells[site][:, : weights.shape[2], : weights.shape[3]]  # type: ignore[index]
        assert (weights[:, cells] == 0).all()
