from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.edits.positions import gather, inside


@given(data=st.data(), batch=st.integers(1, 3), queries=st.integers(1, 4), keys=st.integers(1, 4))
def test_gather_is_the_plain_loop(data, batch: int, queries: int, keys: int) -> None:
    matrix = torch.arange(1.0, 2 * 5 * 6 + 1).view(2, 5, 6)
    slot = st.integers(-3, 9)
    rows = torch.tensor(
        data.draw(st.lists(st.lists(slot, min_size=queries, max_size=queries), min_size=batch, max_size=batch))
    )
    columns = torch.tensor(
        data.draw(st.lists(st.lists(slot, min_size=keys, max_size=keys), min_size=batch, max_size=batch))
    )
    cells = gather(matrix, rows, columns, fill=-1.0).expand(batch, 2, queries, keys)
    within = inside((5, 6), rows, columns).expand(batch, 1, queries, keys)
    for example in range(batch):
        for query, row in enumerate(rows[example].tolist()):
            for key, column in enumerate(columns[example].tolist()):
                stored = 0 <= row < 5 and 0 <= column < 6
                expected = matrix[:, row, column] if stored else torch.tensor([-1.0, -1.0])
                assert bool(within[example, 0, query, key]) == stored
                assert torch.equal(cells[example, :, query, key], expected)


def test_one_gather_serves_a_batch_with_the_same_slots() -> None:
    slots = torch.arange(4).expand(3, 4)
    assert gather(torch.rand(2, 5, 5), slots, slots).shape == (1, 2, 4, 4)


def test_an_empty_store_gives_the_fill_value() -> None:
    slots = torch.arange(3)[None]
    assert torch.equal(gather(torch.zeros(2, 0, 0), slots, slots, fill=1), torch.ones(1, 2, 3, 3))


def test_gradient_adds_up_over_examples() -> None:
    matrix = torch.rand(1, 3, 3, requires_grad=True)
    rows = torch.tensor([[0, 1], [1, 2]])
    (gradient,) = torch.autograd.grad(gather(matrix, rows, rows).sum(), matrix)
    assert gradient[0].tolist() == [[1, 1, 0], [1, 2, 1], [0, 1, 1]]


@pytest.mark.parametrize("first", [(0, 0), (2, 1), (3, 0)])
def test_consecutive_slots_are_a_view(first: tuple[int, int]) -> None:
    """A step of a cache begins later in the text; only cells beyond the matrix need a copy."""
    matrix = torch.arange(2 * 6 * 7, dtype=torch.float32).view(2, 6, 7)
    query_slots, key_slots = (torch.arange(start, start + 4).expand(3, -1) for start in first)
    cells = gather(matrix, query_slots, key_slots)
    assert cells.shape == (1, 2, 4, 4)
    for query in range(4):
        for key in range(4):
            row, column = query + first[0], key + first[1]
            wanted = matrix[:, row, column] if row < 6 else torch.zeros(2)
            assert torch.equal(cells[0, :, query, key], wanted)
    assert (cells.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()) == (first[0] + 4 <= 6)
