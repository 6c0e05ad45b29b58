"""The stream of batches over epochs: it begins anywhere, and a batch weighs as much as its answers."""

from __future__ import annotations

from itertools import islice

import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.training.data import BatchStream, count, weight


@given(st.integers(0, 3), st.integers(0, 5), st.integers(1, 12))
def test_a_stream_begins_anywhere(epoch, batch, length):
    def number(inputs):
        return int(inputs["x"])

    source = lambda e: ({"x": torch.tensor([10 * e + b])} for b in range(5))
    everything = [10 * e + b for e in range(8) for b in range(5)]
    stream = BatchStream(source, epoch, batch)
    read = [number(inputs) for inputs in islice(stream, length)]
    assert read == everything[5 * epoch + batch :][:length]
    again = BatchStream(source, stream.epoch, stream.batch)
    assert number(next(iter(again))) == everything[everything.index(read[-1]) + 1]
    assert count(source) == 5


def test_the_weight_of_a_batch_is_its_number_of_answers():
    assert weight({"input_ids": torch.zeros(3, 7)}) == 3
    assert weight({"input_ids": torch.zeros(2, 3), "labels": torch.tensor([[1, -100, 2], [-100, -100, 0]])}) == 3


def test_scores_count_once_for_each_example():
    """Three examples with five soft answers each are three answers, not fifteen."""
    assert weight({"input_ids": torch.zeros(3, 7), "labels": torch.zeros(3, 5)}) == 3
    assert weight({"labels": torch.tensor([0.5, -100.0, 2.0])}) == 2
