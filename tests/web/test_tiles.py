"""Attention as bytes: pooling, tiles of every level, and codes that never hide a weight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attrim.web.tiles import TILE, encode, levels, pool, thumbnail, tile

WEIGHTS = arrays(
    np.float16,
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    elements=st.floats(0, 1, width=16),
)


@given(WEIGHTS, st.integers(1, 50))
def test_a_pooled_cell_is_the_largest_of_its_cells(weights: np.ndarray, factor: int) -> None:
    small = pool(weights, factor)
    rows, columns = (-(-size // factor) for size in weights.shape[1:])
    assert small.shape == (len(weights), rows, columns)
    for row in range(rows):
        for column in range(columns):
            cells = weights[:, row * factor : (row + 1) * factor, column * factor : (column + 1) * factor]
            np.testing.assert_array_equal(small[:, row, column], cells.max((1, 2)))


@given(WEIGHTS)
def test_codes_are_near_the_weights_and_only_zero_is_zero(weights: np.ndarray) -> None:
    coded = encode(weights, "uint8")
    codes = np.frombuffer(coded.data, np.uint8).reshape(coded.shape)
    np.testing.assert_array_equal(codes == 0, weights == 0)
    back = (codes / 255.0) ** 2 * coded.high
    # One step of the code is at most 2 / 255 of the largest weight, where the weight is large.
    assert np.abs(back - weights.astype(float)).max() <= 2.1 / 255 * coded.high
    assert (back >= weights.astype(float) * (1 - 1e-6)).all()


@given(WEIGHTS)
def test_halves_come_back_as_they_are(weights: np.ndarray) -> None:
    coded = encode(weights, "float16")
    np.testing.assert_array_equal(np.frombuffer(coded.data, "<f2").reshape(coded.shape), weights)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (256, 256), (257, 100), (1000, 700), (513, 2049)])
def test_the_tiles_of_every_level_cover_the_whole(queries: int, keys: int) -> None:
    weights = np.random.default_rng(0).random((queries, keys)).astype(np.float16)
    for level in range(levels(queries, keys)):
        whole = pool(weights, 1 << level)
        rows = []
        for row in range(-(-whole.shape[0] // TILE)):
            found = [tile(weights, level, row, column) for column in range(-(-whole.shape[1] // TILE))]
            rows.append(np.concatenate(found, axis=1))
            assert max(each.shape[0] for each in found) <= TILE
        np.testing.assert_array_equal(np.concatenate(rows), whole)
    last = tile(weights, levels(queries, keys) - 1, 0, 0)
    assert last is not None
    assert last.max() == weights.max()
    assert tile(weights, levels(queries, keys) - 1, 1, 0) is None


@pytest.mark.parametrize(("level", "row", "column"), [(-1, 0, 0), (9, 0, 0), (0, -1, 0), (0, 0, 2), (10**6, 0, 0)])
def test_there_is_no_other_tile(level: int, row: int, column: int) -> None:
    assert tile(np.ones((300, 300), np.float16), level, row, column) is None


def test_thumbnails_are_small_whatever_the_length() -> None:
    assert thumbnail(np.zeros((2, 7, 5), np.float16), 32).shape == (2, 7, 5)
    assert thumbnail(np.zeros((2, 512, 512), np.float16), 32).shape == (2, 32, 32)
    assert thumbnail(np.zeros((2, 3, 2000), np.float16), 32).shape == (2, 1, 32)
