"""Batches: nothing lost, order restored, little padding, bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.errors import DataError
from attrim.models.tiny import tiny_config, tiny_tokenizer
from attrim.tasks import batching
from attrim.tasks.batching import Example, Row, make_batches, sample, with_decoder
from attrim.tasks.replay import Replay

TOKENIZER = tiny_tokenizer()


@given(
    st.lists(st.text(min_size=0, max_size=12), min_size=1, max_size=40),
    st.integers(1, 7),
    st.integers(1, 3),
)
def test_every_text_comes_back_in_its_place(texts, batch_size, window):
    """Undoing the index gives the tokens of every text, whatever the batch size and the window."""
    before, batching.WINDOW = batching.WINDOW, window
    try:
        batches = list(make_batches((Example((text,), i) for i, text in enumerate(texts)), TOKENIZER, batch_size, 64))
    finally:
        batching.WINDOW = before
    found = {}
    for batch in batches:
        rows = zip(batch.index, batch.inputs["input_ids"], batch.inputs["attention_mask"], batch.labels, strict=True)
        for index, tokens, mask, label in rows:
            assert index == label
            found[int(index)] = tokens[mask.bool()].tolist()
    assert [found[i] for i in range(len(texts))] == [TOKENIZER(text)["input_ids"] for text in texts]


def test_sorting_saves_padding_and_cutting_keeps_the_limit():
    texts = ["a" * (1 + 37 * i % 50) for i in range(64)]
    batches = list(make_batches((Example((text,)) for text in texts), TOKENIZER, 8, 40))
    assert max(batch.inputs["input_ids"].shape[1] for batch in batches) == 40
    padding = sum(int((batch.inputs["attention_mask"] == 0).sum()) for batch in batches)
    in_order = sum(
        8 * max(lengths) - sum(lengths)
        for start in range(0, 64, 8)
        for lengths in [[min(40, len(text) + 2) for text in texts[start : start + 8]]]
    )
    assert padding < in_order / 4
    assert all(np.isnan(batch.labels).all() for batch in batches)


def test_reads_no_further_than_a_window():
    """Batches of an endless stream come, so memory does not depend on the length of the data."""

    def endless():
        while True:
            yield Example(("text",))

    stream = make_batches(endless(), TOKENIZER, 2, 16)
    assert [next(stream).index.tolist() for _ in range(70)][-1] == [138, 139]


def test_pairs_are_two_segments():
    batch = next(make_batches([Example(("ab", "c"))], TOKENIZER, 1, 16))
    assert TOKENIZER.decode(batch.inputs["input_ids"][0]) == "[CLS]ab[SEP]c[SEP]"


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_sample_is_a_seeded_subset_in_order(size, limit, seed):
    chosen = list(sample(range(size), limit, seed))
    assert len(chosen) == min(size, limit)
    assert chosen == sorted(set(chosen))
    assert chosen == list(sample(iter(range(size)), limit, seed))


def test_sample_is_uniform_and_none_takes_the_first():
    counts = np.zeros(10)
    for seed in range(2000):
        counts[list(sample(range(10), 3, seed))] += 1
    assert np.abs(counts / 2000 - 0.3).max() < 0.05
    assert list(sample(range(10), 3, None)) == [0, 1, 2]
    assert list(sample(range(4), None, 1)) == [0, 1, 2, 3]
    with pytest.raises(DataError, match="at least 1"):
        list(sample(range(4), 0, 1))


@pytest.mark.parametrize("budget", [0, 1500, 10**9])
def test_replay_repeats_the_same_batches(budget):
    """The batches are the same on every pass, and the source is read again only for what did not fit."""
    made = []

    def source():
        for batch in make_batches((Example(("x" * i,)) for i in range(20)), TOKENIZER, 4, 32):
            made.append(batch)
            yield batch

    replay = Replay(source, budget)
    assert replay.first().index.tolist() == [19, 18, 17, 16]
    first, second = list(replay), list(replay)
    assert len(first) == 5
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one.inputs["input_ids"], two.inputs["input_ids"])
        assert one.index.tolist() == two.index.tolist()
    assert len(made) == {0: 11, 1500: 10, 10**9: 5}[budget]


def test_decoder_input_is_the_shifted_text():
    inputs = dict(TOKENIZER(["ab"], return_tensors="pt"))
    config = tiny_config("tiny-t5")
    shifted = with_decoder(inputs, config)["decoder_input_ids"][0]
    assert shifted.tolist() == [config.decoder_start_token_id, *inputs["input_ids"][0, :-1].tolist()]
    assert with_decoder(inputs, tiny_config("tiny-bert")) is inputs


def test_a_tokenizer_without_padding_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(DataError, match="no padding token"):
        next(make_batches([Example(("a",))], tokenizer, 1, 8))


def test_texts_on_a_grid_are_grouped_by_their_tokens():
    """All rows have the same number of slots then; how many are filled decides."""
    encode = lambda examples, tokenizer, slots: (
        Row(place, {"input_ids": [5] * slots, "attention_mask": [1] * size + [0] * (slots - size)})
        for place, size in enumerate([1, 3, 2, 4, 3, 1])
    )
    found = list(make_batches([], TOKENIZER, 2, 6, encode))
    assert [batch.index.tolist() for batch in found] == [[3, 1], [4, 2], [0, 5]]


def _rows(**columns):
    """Rows of two tokens with some further columns of inputs or targets."""
    count = len(next(iter(columns.values())))
    return [
        Row(place, {"input_ids": [1, 2]}, None, {name: values[place] for name, values in columns.items()})
        for place in range(count)
    ]


def _targets(**columns):
    [batch] = make_batches([], TOKENIZER, 8, 8, lambda *_: iter(_rows(**columns)))
    return batch.targets


def test_targets_that_are_not_whole_numbers_stay_what_they_are():
    """0.9 was 0 before."""
    found = _targets(
        weight=[0.9, 2], soft=[np.array([0.9, 0.0, 0.3]), np.array([0.0, 1.0, 0.6])], tokens=[[0.5], [1, 0]]
    )
    torch.testing.assert_close(found["weight"], torch.tensor([0.9, 2.0]))
    torch.testing.assert_close(found["soft"], torch.tensor([[0.9, 0.0, 0.3], [0.0, 1.0, 0.6]]))
    torch.testing.assert_close(found["tokens"], torch.tensor([[0.5, -100.0], [1.0, 0.0]]))


def test_targets_may_have_a_length_of_their_own():
    found = _targets(relevant=[np.array([0, 1, 1]), np.array([1])], none=[[], [3]], pairs=[[(1, 2)], [(3, 4), (5, 6)]])
    assert found["relevant"].dtype == torch.int64
    assert found["relevant"].tolist() == [[0, 1, 1], [1, -100, -100]]
    assert found["none"].tolist() == [[-100, -100], [3, -100]]
    assert found["none"].dtype == torch.int64
    assert found["pairs"].tolist() == [[[1, 2], [-100, -100]], [[3, 4], [5, 6]]]
    with pytest.raises(DataError, match="The words must be numbers"):
        _targets(words=["a", "b"])


def test_inputs_that_are_not_tokens():
    """Regions are filled up with zeros on their own axis; images need no tokenizer, and no other image's size."""
    regions = [np.ones((2, 3)), np.full((4, 3), 0.5)]
    rows = [
        Row(
            place,
            {"input_ids": [1] * (1 + place), "visual_feats": array, "visual_attention_mask": np.ones(len(array), int)},
        )
        for place, array in enumerate(regions)
    ]
    [batch] = make_batches([], TOKENIZER, 8, 8, lambda *_: iter(rows))
    assert batch.index.tolist() == [0, 1]
    assert batch.inputs["input_ids"].shape == (2, 2)
    assert batch.inputs["visual_feats"].dtype == torch.float32
    torch.testing.assert_close(batch.inputs["visual_feats"][0, 2:], torch.zeros(2, 3))
    assert batch.inputs["visual_attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    images = [Row(0, {"pixel_values": np.zeros((3, 4, 4))}), Row(1, {"pixel_values": np.ones((3, 4, 4))})]
    [batch] = make_batches([], None, 8, 8, lambda *_: iter(images))
    assert list(batch.inputs) == ["pixel_values"]
    assert batch.inputs["pixel_values"].shape == (2, 3, 4, 4)
    images[1] = Row(1, {"pixel_values": np.ones((1, 4, 4))})
    with pytest.raises(DataError, match=r"pixel_values of one batch have the shapes \[1, 4, 4\] and \[3, 4, 4\]"):
        list(make_batches([], None, 8, 8, lambda *_: iter(images)))
