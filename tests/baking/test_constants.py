"""The product with fixed matrices, against the weights that the edit forms, and against the oracles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attrim.attention.masks import Factors, MaskFacts
from attrim.baking.constants import Constants
from attrim.baking.heads import read_call
from attrim.core.call import Call
from attrim.core.site import Site
from attrim.edits.constant import constant
from attrim.edits.positions import gather

SITE = Site("plain", "encoder", 0, 3)


Reading = tuple[Call, Factors | None]


def reading_of(mask: Tensor | None, queries: int, keys: int, causal: bool = False) -> Reading:
    return read_call(SITE, MaskFacts.of(mask, (queries, keys), torch.device("cpu"), causal=causal), {}, batch=2)


def layer(matrix: Tensor) -> Constants:
    module = Constants(tuple(matrix.shape), "zero")  # type: ignore[arg-type]
    module.matrix = matrix
    return module


def expected(matrix: Tensor, value: Tensor, reading: Reading) -> Tensor:
    call, _ = reading
    weights = constant(gather(matrix, call.query_slots(), call.key_slots()), call.valid)
    return (weights.expand(*value.shape[:2], -1, -1) @ value).transpose(1, 2)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    structure=st.sampled_from(["full", "causal", "window", "outer", "holes", "left", "left-causal", "any"]),
    shared=st.booleans(),
    signed=st.booleans(),
    additive=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_product_is_what_the_edit_forms(
    lengths: list[int], structure: str, shared: bool, signed: bool, additive: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    slots = torch.arange(longest)
    ends = torch.tensor(lengths)[:, None]
    real = slots >= longest - ends if structure.startswith("left") else slots < ends
    if structure == "holes":
        real = real & (torch.rand(real.shape, generator=generator) < 0.7)
    allowed = real[:, None, None, :].expand(-1, 1, longest, -1)
    if structure.endswith("causal"):
        allowed = allowed & (slots[:, None] >= slots)
    elif structure == "window":
        allowed = allowed & ((slots[:, None] - slots).abs() < 3)
    elif structure == "any":
        allowed = allowed & (torch.rand(len(lengths), 1, longest, longest, generator=generator) < 0.7)
    elif structure == "outer":
        allowed = allowed & real[:, None, :, None]
    matrix = torch.rand(1 if shared else 3, 12, 12, generator=generator) - (0.5 if signed else 0.0)
    value = torch.randn(len(lengths), 3, longest, 4, generator=generator)
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, -1e9) if additive else allowed
    reading = reading_of(mask, longest, longest)
    assert (reading[1] is not None) or structure == "any"
    found = layer(matrix)(value, *reading)
    wanted = expected(matrix, value, reading)
    for row, other, queries in zip(found, wanted, reading[0].queries.expand(len(lengths), -1), strict=True):
        torch.testing.assert_close(row[queries], other[queries], atol=1e-4, rtol=1e-4)


def test_oracle_mask_and_normalise() -> None:
    """O2 (c) and O3 of the specification: a hole in the mask, a row whose only constant is padding."""
    matrix = torch.tensor([[[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.0, 0.0, 1.0, 0.0]]])
    real = torch.tensor([[True, True, False, True]])
    value = torch.tensor([[1.0, 0], [0, 1], [5, 5], [2, 2]])[None, None]
    output = layer(matrix)(value, *reading_of(real[:, None, None, :], 4, 4))[0, :, 0]
    torch.testing.assert_close(output[0], torch.tensor([0.75, 0.625]))
    torch.testing.assert_close(output[1], torch.tensor([1.285714, 1.428571]))
    assert torch.equal(output[3], torch.zeros(2))


def test_lengths_patterns_and_changes_do_not_mix() -> None:
    """One layer meets many sizes in turn; what it keeps of the last one must never serve another."""
    matrix = torch.rand(3, 12, 12)
    module = layer(matrix)
    for queries, causal in ((5, False), (5, True), (7, True), (5, False), (12, True), (7, False)):
        value = torch.randn(2, 3, queries, 4)
        reading = reading_of(None, queries, queries, causal)
        assert reading[1] is not None
        torch.testing.assert_close(module(value, *reading), expected(matrix, value, reading), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        module.matrix.mul_(torch.rand(12, 1))
    torch.testing.assert_close(module(value, *reading), expected(matrix, value, reading), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [2, 6])
def test_every_way_to_multiply_is_the_same(
    batch: int, threads: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without gradients, one by one, a few and all at once, into a part of a larger output."""
    monkeypatch.setattr("attrim.baking.constants.CELLS", 2 * 3 * 8 * 8)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        module, value = layer(torch.rand(3, 12, 12)), torch.randn(batch, 3, 8, 4)
        real = torch.arange(8) < torch.randint(1, 9, (batch, 1))
        allowed = real[:, None, None, :].expand(-1, 1, 8, -1)
        if packed:
            text = torch.randint(1, 8, (batch, 1)) <= torch.arange(8)
            allowed = allowed & (text[:, None, :, None] == text[:, None, None, :])
        reading = reading_of(allowed, 8, 8)
        assert (reading[1] is not None) != packed
        room = torch.zeros(batch, 8, 5, 4)
        assert module(value, *reading, out=room[:, :, 2:]).data_ptr() == room[:, :, 2:].data_ptr()
        tracked = module(value.clone().requires_grad_(), *reading)
        assert tracked.requires_grad
        torch.testing.assert_close(room[:, :, 2:], tracked, atol=1e-5, rtol=1e-5)
        assert torch.equal(room[:, :, :2], torch.zeros(batch, 8, 2, 4))
    finally:
        torch.set_num_threads(before)


def test_a_causal_average_is_used_without_a_copy() -> None:
    module = layer(torch.rand(3, 12, 12).tril())
    module(torch.randn(1, 3, 8, 4), *reading_of(None, 8, 8, causal=True))
    assert module._crop is not None
    assert module._crop.matrix.data_ptr() == module.matrix.data_ptr()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_no_nan(dtype: torch.dtype, packed: bool) -> None:
    matrix = torch.rand(3, 12, 12)
    matrix[:, 4] = 0.0
    allowed = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    allowed[1, ..., 5:] = False
    if packed:
        allowed[0, :, 2:, :2] = False
    value = torch.randn(2, 3, 8, 4)
    reading = reading_of(allowed, 8, 8)
    assert (reading[1] is not None) != packed
    found = layer(matrix.to(dtype))(value.to(dtype), *reading)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), layer(matrix)(value, *reading), atol=0.05, rtol=0.05)
