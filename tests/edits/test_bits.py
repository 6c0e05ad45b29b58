"""Boolean tensors as bits."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.attention.dropping import whole_call
from attrim.core.site import Site
from attrim.edits.bits import BYTE, Packed, PackedCells
from attrim.edits.mask import Mask


@given(st.lists(st.integers(1, 5), max_size=2), st.integers(0, 40), st.integers(0, 2**31))
def test_unpacking_gives_what_was_packed(shape: list[int], columns: int, seed: int) -> None:
    cells = torch.rand(*shape, columns, generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = Packed.of(cells)
    assert packed.bits.dtype == torch.uint8
    assert packed.shape == cells.shape
    assert packed.bits.numel() == cells[..., :1].numel() * -(-columns // BYTE) if columns else True
    assert torch.equal(packed.unpack(), cells)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 9), st.sampled_from([None, "keep", "prune", "offset"]))
def test_a_mask_of_bits_removes_what_its_cells_say(queries: int, more: int, position: int, unseen: str | None) -> None:
    """Rows that a call does not ask for are not unpacked, so calls begin at any position."""
    site = Site("layer.0", "encoder", 0, 3)
    cells = torch.rand(3, 12, 13, generator=torch.Generator().manual_seed(0)) < 0.5
    plain = Mask({"layer.0": cells}, unseen)
    packed = Mask(PackedCells({"layer.0": Packed.of(cells)}), unseen)
    call = dataclasses.replace(whole_call(site, (0, 2), (queries, queries + more)), position=position)
    assert torch.equal(packed.removed(call), plain.removed(call))
    spans, others = packed.kept_spans(call), plain.kept_spans(call)
    assert (spans is None) == (others is None)
    for own, other in zip(spans or (), others or (), strict=True):
        assert (own.cells() == other.cells()).all()
