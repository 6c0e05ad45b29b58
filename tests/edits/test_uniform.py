from __future__ import annotations

import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from attrim.edits.uniform import Uniform, uniform


@given(allowed=hnp.arrays("bool", (2, 1, 4, 5)))
def test_rows_sum_to_one_or_zero(allowed) -> None:
    allowed = torch.from_numpy(allowed)
    weights = Uniform().apply(torch.rand(2, 3, 4, 5), allowed)
    expected = allowed.any(-1).float().expand(2, 3, 4)
    torch.testing.assert_close(weights.sum(-1), expected)
    assert (weights.masked_select(~allowed) == 0).all()


def test_every_allowed_key_weighs_the_same() -> None:
    allowed = torch.tensor([[True, True, True, False], [False, False, False, False]])
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(uniform(allowed), expected)
    assert uniform(allowed, torch.float16).dtype == torch.float16
