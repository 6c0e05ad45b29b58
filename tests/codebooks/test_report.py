"""What a report says, by hand and against known tables."""

from __future__ import annotations

import pytest
import torch

from attrim.codebooks import Codebook, make_codebook, report
from attrim.errors import DataError
from codebooks.tables import W


def test_by_hand() -> None:
    book = Codebook(torch.tensor([0.25, 0.75]), torch.tensor([0.0, 0.5, 1.0]), bits=2)
    weights = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.8, 0.1, 0.1, 0.0]])[None, None]
    value = torch.eye(4)[None, None]
    found = report(book, weights, value=value)
    after = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert found.usage.tolist() == [5, 2, 1]
    assert found.entropy == pytest.approx(5 / 8 * 0.678072 + 2 / 8 * 2 + 1 / 8 * 3, rel=1e-5)
    assert found.zeros == 5 / 8
    error = after - weights[0, 0]
    assert found.mean_square_error == pytest.approx(float(error.square().mean()))
    assert found.row_sum == pytest.approx(1.0)
    assert found.row_sum_error == pytest.approx(0.0, abs=1e-7)
    assert found.context_error == pytest.approx(float(error.norm() / weights.norm()))
    assert found.code_bytes == 2
    assert found.codebook_bytes == 20
    assert found.storage_bytes == 22


def test_masked_cells_do_not_count() -> None:
    book = make_codebook("linear-slog-clamped-midval", 3)
    row = torch.tensor(W).view(1, 1, 1, 8)
    alone = report(book, row)
    padded = torch.cat([row, torch.full((1, 1, 1, 3), 0.5)], -1)
    mask = torch.tensor([[1] * 8 + [0] * 3])
    together = report(book, padded, mask)
    assert together.usage.tolist() == alone.usage.tolist()
    assert together.row_sum == pytest.approx(alone.row_sum) == pytest.approx(1.10605, rel=1e-5)
    assert together.context_error is None
    with pytest.raises(DataError, match="no weight to report on"):
        report(book, padded, torch.zeros(1, 11))


def test_entropy_is_at_most_the_bits() -> None:
    weights = torch.softmax(torch.randn(2, 4, 30, 30) * 3, -1)
    for bits in (1, 2, 3, 8):
        assert 0 < report(make_codebook("linear-slog-clamped-midval", bits), weights).entropy <= bits
