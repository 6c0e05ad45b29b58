"""The facts of a mask: computed once, right, and forgotten with the mask."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import transformers

from attrim.attention import masks
from attrim.attention.context import attach
from attrim.attention.masks import MaskFacts, note_offsets
from attrim.stats.mean import Mean

CPU = torch.device("cpu")


def padding_mask(boolean: bool) -> torch.Tensor:
    allowed = torch.tensor([[True, True, True], [False, True, True]])[:, None, None, :]
    return allowed.clone() if boolean else torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)


@pytest.mark.parametrize("boolean", [True, False])
def test_facts_are_computed_once_and_forgotten_with_the_mask(boolean: bool) -> None:
    mask = padding_mask(boolean)
    note_offsets(mask, 0, 0)
    facts = MaskFacts.of(mask, (3, 3), CPU)
    assert MaskFacts.of(mask, (3, 3), CPU) is facts
    assert facts.real.tolist() == [[True, True, True], [False, True, True]]
    assert facts.lead is not None
    assert facts.lead.tolist() == [0, 1]
    assert facts.edges is not None
    assert facts.factors is not None
    assert facts.offsets == (0, 0)
    gone, kept = weakref.ref(facts), len(masks._facts)
    del facts, mask
    gc.collect()
    assert gone() is None
    assert len(masks._facts) == kept - 1


def test_a_mask_that_was_changed_in_place_is_read_again() -> None:
    mask = padding_mask(boolean=False)
    assert MaskFacts.of(mask, (3, 3), CPU).lead is not None
    mask.zero_()
    assert MaskFacts.of(mask, (3, 3), CPU).lead is None


def test_another_number_of_keys_is_read_again() -> None:
    mask = padding_mask(boolean=True)
    assert MaskFacts.of(mask, (3, 3), CPU).allowed.shape == (2, 1, 3, 3)
    assert MaskFacts.of(mask, (2, 2), CPU).allowed.shape == (2, 1, 2, 2)


@pytest.mark.parametrize("mask", [None, padding_mask(boolean=False)])
def test_facts_from_inference_mode_serve_training_too(mask: torch.Tensor | None) -> None:
    with torch.inference_mode():
        facts = MaskFacts.of(mask, (3, 3), CPU)
        tensors = [facts.allowed, facts.real]
    weights = torch.rand(2, 1, 3, 3, requires_grad=True)
    (weights * facts.allowed * facts.real[:, None, None, :]).sum().backward()
    assert weights.grad is not None
    assert not any(tensor.is_inference() for tensor in tensors)


def spared(real: torch.Tensor, causal: bool) -> torch.Tensor:
    """The mask of XLNet for real tokens ``[B, K]``: every token may attend to itself, a padded one too."""
    size = real.shape[-1]
    allowed = real[:, None, None, :].expand(-1, 1, size, size)
    allowed = allowed.tril() if causal else allowed
    return allowed | torch.eye(size, dtype=torch.bool)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [(4, 4), (4, 2), (1, 4)], ids=str)
def test_the_last_token_is_real_where_padding_sees_itself(causal: bool, lengths: tuple[int, ...]) -> None:
    """Only its own query may attend to the last key of a causal text, as to a padded one."""
    real = torch.stack([torch.arange(4) < length for length in lengths])
    facts = MaskFacts.of(spared(real, causal), (4, 4), CPU, padding_sees_itself=True)
    assert torch.equal(facts.real, real)


def test_a_segment_of_a_causal_xlnet_without_memory_counts_every_token() -> None:
    """The model of Transformer-XL, whose first segment has no memory."""
    sizes = {"vocab_size": 20, "d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8}
    model = transformers.XLNetModel(transformers.XLNetConfig(**sizes, attn_type="uni", mem_len=4)).eval()
    mean = Mean()
    with torch.no_grad(), attach(model, stats=[mean]):
        model(torch.randint(1, 20, (2, 5)))
    assert torch.equal(mean.counts(mean.sites[0])[0, -5:, -5:], 2 * torch.ones(5, 5, dtype=torch.int64).tril())
