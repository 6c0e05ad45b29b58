"""Stats on the whole zoo: Sample equals stock attentions, and the fused pass equals the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attrim.attention.context import attach
from attrim.stats.histogram import Histogram
from attrim.stats.mean import Mean
from attrim.stats.sample import Sample
from watching import assert_same, eager, output_of
from zoo import ZOO, Animal, batch

SHOWN = [animal for animal in ZOO if animal.stock_attentions]
PADDED = [(animal, side) for animal in ZOO for side in animal.sides]


@pytest.mark.parametrize("animal", SHOWN, ids=str)
def test_sample_equals_stock_attentions(animal: Animal) -> None:
    model, inputs, sample = eager(animal.build()), batch(animal, (7, 4)), Sample(count=2)
    # With a cache stock FSMT ignores the mask of its decoder, padding and causality alike.
    options = {"use_cache": False} if animal.eats == "pair" else {}
    with torch.no_grad():
        result = model(**inputs, **options, output_attentions=True)
        with attach(model, stats=[sample]):
            model(**inputs, **options)
    stock = [tensor for name in animal.stock_attentions for tensor in getattr(result, name)]
    order = {"encoder": 0, "decoder": 1, "cross": 2}
    sites = sorted(sample.sites, key=lambda site: (order[site.role], site.layer))
    assert len(sites) == len(stock)
    for site, theirs in zip(sites, stock, strict=True):
        queries, keys = (real_tokens(animal, inputs, stream) for stream in site.streams)
        for number, mine in sample.matrices(site).items():
            expected = theirs[number]
            if queries is not None and keys is not None:
                expected = expected[:, queries[number]][:, :, keys[number]]
            torch.testing.assert_close(mine, expected)


def real_tokens(animal: Animal, inputs: dict[str, Tensor], stream: str) -> Tensor | None:
    """Bool ``[B, L]``: the real tokens of a stream, from what was put in; None when all are."""
    if animal.eats == "image":
        return None
    if animal.eats == "pair" and stream == "decoder":
        return inputs["decoder_attention_mask"].bool()
    real = inputs["attention_mask"].bool()
    if animal.eats == "visual-embeds":
        return torch.cat([real, inputs["visual_attention_mask"].bool()], dim=1)
    return real


@pytest.mark.parametrize(("animal", "side"), PADDED, ids=str)
def test_the_fused_pass_changes_neither_results_nor_statistics(animal: Animal, side: str) -> None:
    lengths = (7, 4, 5)
    model, inputs = eager(animal.build()), batch(animal, lengths, side=side)
    example = inputs if animal.eats == "embeddings" else None
    plain, fused = (Histogram(), Mean()), (Histogram(), Mean())
    with torch.no_grad():
        with attach(model, stats=plain, example=example):
            stock = output_of(model(**inputs))
        with attach(model, stats=fused, fast=True):
            ours = output_of(model(**inputs))
    assert_same(ours, stock, animal, lengths, side, torch.float32)
    assert torch.equal(plain[0].total, fused[0].total)
    for bar in (1e-4, 1e-2, 0.1):
        torch.testing.assert_close(fused[0].sparsity(bar), plain[0].sparsity(bar), atol=0.02, rtol=0)
    for site in plain[1].sites:
        assert torch.equal(plain[1].counts(site), fused[1].counts(site))
        torch.testing.assert_close(fused[1].matrix(site), plain[1].matrix(site), atol=1e-5, rtol=1e-4)
