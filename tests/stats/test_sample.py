from __future__ import annotations

from typing import Any

import pytest
import torch

from attrim.errors import ArtefactError, DataError, ParameterError
from attrim.stats import Sample

WEIGHTS = torch.softmax(torch.randn(12, 2, 5, 5, generator=torch.Generator().manual_seed(1)), -1)
REAL = torch.arange(5)[None] < torch.arange(12)[:, None] % 4 + 2


def sampled(sizes: list[int], **options: Any) -> Sample:
    sample = Sample(**options)
    start = 0
    for size in sizes:
        sample.update(WEIGHTS[start : start + size], REAL[start : start + size])
        start += size
    return sample


def test_keeps_whole_matrices_of_the_real_tokens() -> None:
    sample = sampled([12], count=12)
    assert sample.examples == list(range(12))
    for number, matrix in sample.matrices("plain").items():
        size = int(REAL[number].sum())
        assert torch.equal(matrix, WEIGHTS[number, :, :size, :size])


def test_does_not_depend_on_the_batches_but_on_the_seed() -> None:
    whole, single = sampled([12], count=3), sampled([1] * 12, count=3)
    assert len(whole.examples) == 3
    assert whole.examples == single.examples
    for number, matrix in whole.matrices("plain").items():
        assert torch.equal(matrix, single.matrices("plain")[number])
    assert len({tuple(sampled([12], count=3, seed=seed).examples) for seed in range(5)}) > 1


def test_parts_with_numbers_of_their_own_merge_to_the_sample_of_the_whole() -> None:
    first, second = Sample(count=3), Sample(count=3, first=7)
    first.update(WEIGHTS[:7], REAL[:7])
    second.update(WEIGHTS[7:], REAL[7:])
    merged = second.merge(first)
    assert merged.examples == sampled([12], count=3).examples
    assert int(merged.records["plain"].tensors["seen"]) == 12


def test_parts_that_share_numbers_are_refused() -> None:
    with pytest.raises(ArtefactError, match="first="):
        sampled([4], count=2).merge(sampled([4], count=2))


def test_weights_that_are_no_numbers_are_refused() -> None:
    weights = WEIGHTS[:2].clone()
    weights[1, 0, 0, 4] = float("nan")
    Sample().update(weights, REAL[:2])  # on padding they do not matter
    weights[1, 0, 0, 0] = float("nan")
    with pytest.raises(DataError, match="NaN"):
        Sample().update(weights, REAL[:2])


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(ParameterError):
        Sample(count=0)


def test_examples_can_be_chosen_by_their_numbers() -> None:
    for sizes in ([12], [5, 7], [1] * 12):
        sample = sampled(sizes, numbers=(9, 3, 3))
        assert sample.examples == [3, 9]
        assert sample.seen == 12
        size = int(REAL[9].sum())
        assert torch.equal(sample.matrices("plain")[9], WEIGHTS[9, :, :size, :size])
    first, second = Sample(numbers=(3, 9)), Sample(numbers=(3, 9), first=7)
    first.update(WEIGHTS[:7], REAL[:7])
    second.update(WEIGHTS[7:], REAL[7:])
    assert second.merge(first).examples == [3, 9]
    with pytest.raises(ParameterError, match="no example -1"):
        Sample(numbers=(-1,))


def test_charts_of_several_examples_have_names_of_their_own() -> None:
    sample = sampled([12], numbers=(3, 9))
    (site,) = sample.sites
    names = [chart.name for number in (3, 9) for chart in sample.site_charts(site, example=number)]
    assert len(set(names)) == 6
    assert [name for name in names if name.endswith("example-9")] == names[3:]
