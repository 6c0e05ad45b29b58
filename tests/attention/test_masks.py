"""The facts of a mask: computed once, right, and forgotten with the mask."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from attrim.attention import interface, masks
from attrim.attention.context import attach
from attrim.attention.interface import make_mask
from attrim.attention.masks import MaskFacts, note
from attrim.stats.mean import Mean

CPU = torch.device("cpu")


def padding_mask(boolean: bool) -> torch.Tensor:
    allowed = torch.tensor([[True, True, True], [False, True, True]])[:, None, None, :]
    return allowed.clone() if boolean else torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)


@pytest.mark.parametrize("boolean", [True, False])
def test_facts_are_computed_once_and_forgotten_with_the_mask(boolean: bool) -> None:
    mask = padding_mask(boolean)
    note(mask, 0, 0)
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


@pytest.mark.parametrize("function", [causal_mask_function, bidirectional_mask_function], ids=["causal", "whole"])
@pytest.mark.parametrize("padding", ["none", "real", "right", "short", "later"])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 0, 0), (7, 7, 0, 0), (1, 7, 6, 0), (3, 7, 4, 0), (1, 4, 6, 3), (5, 7, 0, 0)], ids=str
)
def test_masks_that_are_kept_are_those_of_transformers(
    function: Any, padding: str, sizes: tuple[int, int, int, int]
) -> None:
    queries, keys, first_query, first_key = sizes
    length = first_key + keys + (padding == "later") - (padding == "short")
    real = torch.ones(2, max(1, length), dtype=torch.bool)
    if padding == "right":
        real[1, -1] = False
    arguments: dict[str, Any] = {
        "batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": first_query, "kv_offset": first_key,
        "mask_function": function, "attention_mask": None if padding == "none" else real, "device": CPU,
    }  # fmt: skip
    expected = sdpa_mask(**arguments, allow_is_causal_skip=False)
    config = BertConfig(attn_implementation="sdpa")
    with torch.inference_mode():
        first, second = (make_mask(**arguments, config=config) for _ in range(2))
    assert torch.equal(first, expected)
    assert first.shape == expected.shape
    facts = MaskFacts.of(second, (queries, keys), CPU)
    assert_read_as(facts, expected)
    assert facts.offsets == (first_query, first_key)
    assert (facts.padding is None) == (padding == "none")
    assert not facts.allowed.is_inference()
    assert facts.lead is None
    if first is second:
        assert padding in ("none", "real", "later") or length == 0
    elif padding == "none":
        assert function is causal_mask_function
        assert queries != 1
        assert (queries, first_query) != (keys, 0)


def assert_read_as(facts: MaskFacts, mask: torch.Tensor) -> None:
    """What a mask's function knows about it is what its cells say."""
    read = MaskFacts.of(mask.clone(), (mask.shape[-2], mask.shape[-1]), CPU)
    assert torch.equal(facts.real.expand(len(mask), -1), read.real.expand(len(mask), -1))
    assert (facts.edges is None) == (read.edges is None)
    if facts.edges is not None and read.edges is not None:
        for known, own in zip(facts.edges.of_batch(len(mask)), read.edges.of_batch(len(mask)), strict=True):
            assert torch.equal(known, own)
        assert facts.structure == read.structure
        assert facts.edges.ahead == read.edges.ahead


def causal_text(length: int) -> dict[str, Any]:
    config = BertConfig(attn_implementation="sdpa")
    return {
        "batch_size": 1, "q_length": length, "kv_length": length, "mask_function": causal_mask_function, "device": CPU,
        "config": config,
    }  # fmt: skip


@pytest.mark.parametrize("length", [6, interface.MOST_CAUSAL + 7])
def test_a_mask_that_a_model_changed_is_not_used_again_and_is_read_as_it_is(length: int) -> None:
    arguments = causal_text(length)
    first = make_mask(**arguments)
    expected = first.clone()
    assert_read_as(MaskFacts.of(first, (length, length), CPU), expected)
    first[:, :, 3] = False
    assert_read_as(MaskFacts.of(first, (length, length), CPU), first)
    first[:, :, :, 0] = False
    assert_read_as(MaskFacts.of(first, (length, length), CPU), first)
    assert torch.equal(make_mask(**arguments), expected)


def test_spans_of_fewer_keys_end_with_them() -> None:
    edges = MaskFacts.of(make_mask(**causal_text(6)), (6, 4), CPU).edges
    assert edges is not None
    assert edges.stop.tolist() == [[1, 2, 3, 4, 4, 4]]


def test_only_short_causal_masks_are_kept() -> None:
    short, long = causal_text(interface.MOST_CAUSAL), causal_text(interface.MOST_CAUSAL + 1)
    assert make_mask(**short) is make_mask(**short)
    assert make_mask(**long) is not make_mask(**long)
