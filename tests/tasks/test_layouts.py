"""Layouts: every token on its slot, nothing lost in silence, averages and constants by slot."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attrim
from attrim.edits import Constant
from attrim.errors import DataError, UnknownName
from attrim.evaluation import evaluate
from attrim.models.tiny import tiny_tokenizer
from attrim.stats import Mean
from attrim.tasks import load_task
from attrim.tasks.encoding import IGNORED, Row
from attrim.tasks.layouts import CUT, Cuts, arrange, count_cuts, slots_of
from watching import eager

TOKENIZER = tiny_tokenizer()
BERT = SimpleNamespace(sep_token_id=102, pad_token_id=0, pad_token_type_id=0, cls_token_id=101)
ROBERTA = SimpleNamespace(sep_token_id=2, pad_token_id=1, pad_token_type_id=0, cls_token_id=0)
DECODER = SimpleNamespace(sep_token_id=None, pad_token_id=9, pad_token_type_id=0, cls_token_id=None)
SEQUENCE, TOKENS = "sequence-classification", "token-classification"


def laid(text: str, tokenizer=BERT, slots: int = 12, layout: str = "papa", kind: str = SEQUENCE, **inputs):
    tokens = [int(token) for token in text.split()]
    row = Row(0, {"input_ids": tokens, "attention_mask": [1] * len(tokens), **inputs})
    return arrange(row, layout, kind, tokenizer, slots)


O6 = [
    (BERT, "101 11 12 13 102 21 22 102", "101 11 12 13 0 0 102 21 22 0 0 102", 8),
    (BERT, "101 11 12 13 102", "101 11 12 13 0 0 0 0 0 0 0 102", 5),
    (BERT, "101 11 12 13 14 15 16 17 18 102", "101 11 12 13 14 15 0 0 0 0 0 102", 7),
    (BERT, "101 11 102 21 22 23 24 25 26 27 28 102", "101 11 0 0 0 0 102 21 22 23 24 102", 8),
    (BERT, "101 11 12 13 14 15 16 17 102 21 22 102", "101 11 12 13 14 15 102 21 22 0 0 102", 10),
    (ROBERTA, "0 11 12 2 2 21 22 2", "0 11 12 1 1 1 2 2 21 22 1 2", 8),
]


@pytest.mark.parametrize(("tokenizer", "tokens", "slots", "kept"), O6)
def test_oracle_o6(tokenizer, tokens, slots, kept):
    row, cut = laid(tokens, tokenizer)
    assert " ".join(map(str, row.inputs["input_ids"])) == slots
    assert len(tokens.split()) - cut == kept
    filled = [int(token != tokenizer.pad_token_id) for token in row.inputs["input_ids"]]
    assert row.inputs["attention_mask"] == filled


def test_segments_move_with_their_tokens_in_the_corrected_layout_only():
    segments = [0, 0, 0, 0, 0, 1, 1, 1]
    tokens = O6[0][1]
    stale, _ = laid(tokens, token_type_ids=segments)
    moved, _ = laid(tokens, layout="grid", token_type_ids=segments)
    assert moved.inputs["input_ids"] == stale.inputs["input_ids"]
    assert stale.inputs["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert moved.inputs["token_type_ids"] == [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1]


def test_single_texts_use_the_whole_grid_in_the_corrected_layout():
    row, cut = laid("101 11 12 13 14 15 16 17 18 102", layout="grid")
    assert row.inputs["input_ids"] == [101, 11, 12, 13, 14, 15, 16, 17, 18, 0, 0, 102]
    assert cut == 0


@pytest.mark.parametrize("layout", ["papa", "grid"])
def test_only_the_separator_moves_in_token_tasks(layout):
    row, cut = laid("101 11 12 13 102", slots=8, layout=layout, kind=TOKENS)
    assert row.inputs["input_ids"] == [101, 11, 12, 13, 0, 0, 0, 102]
    assert row.inputs["attention_mask"] == [1, 1, 1, 1, 0, 0, 0, 1]
    assert cut == 0
    full = "101 11 12 13 14 15 16 102"
    assert laid(full, slots=8, layout=layout, kind=TOKENS)[0].inputs["input_ids"] == [int(t) for t in full.split()]


def test_without_separators_tokens_stand_from_the_first_slot():
    row, _ = laid("5 6 7", DECODER, slots=6, layout="grid")
    assert row.inputs == {"input_ids": [5, 6, 7, 9, 9, 9], "attention_mask": [1, 1, 1, 0, 0, 0]}
    with pytest.raises(DataError, match="needs texts that end with a separator token; use the layout 'grid'"):
        laid("5 6 7", DECODER)


def test_what_stands_behind_the_last_separator_keeps_its_place():
    """XLNet writes text, separator, class token."""
    assert slots_of([11, 12, 102, 101], "grid", SEQUENCE, 102, 8) == [0, 1, 6, 7]


@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), max_size=12) | st.none(),
    st.sampled_from(["papa", "grid"]),
    st.sampled_from([SEQUENCE, TOKENS, "masked-lm", "causal-lm"]),
    st.integers(4, 20),
)
def test_tokens_keep_their_order_and_none_is_lost_uncounted(one, other, layout, kind, slots):
    tokens = [101, *one, 102] + ([] if other is None else [*other, 102])
    places = slots_of(tokens, layout, kind, 102, slots)
    kept = [place for place in places if place != CUT]
    assert len(places) == len(tokens)
    assert kept == sorted(set(kept))
    assert 0 <= min(kept) <= max(kept) < slots
    if kind != "causal-lm":
        assert places[0] == 0
        assert places[-1] == slots - 1
        if other is not None and kind == SEQUENCE:
            assert places[len(one) + 1] in (slots // 2, CUT)
    text = " ".join(map(str, tokens))
    row, cut = laid(text, slots=slots, layout=layout, kind=kind)
    assert cut + len(kept) == len(tokens)
    assert len(row.inputs["input_ids"]) == slots
    assert [row.inputs["input_ids"][place] for place in kept] == [
        token for token, place in zip(tokens, places, strict=True) if place != CUT
    ]
    assert sum(row.inputs["attention_mask"]) == len(kept)


def test_targets_move_with_their_tokens():
    tokens = [101, 11, 12, 102, 21, 22, 23, 102]
    targets = {"offsets": [(place, place + 1) for place in range(8)], "start_positions": 5, "end_positions": 6}
    row = Row(3, {"input_ids": tokens, "attention_mask": [1] * 8}, 3.0, targets)
    wide, _ = arrange(row, "grid", "question-answering", BERT, 12)
    start, end = wide.targets["start_positions"], wide.targets["end_positions"]
    assert wide.inputs["input_ids"][start : end + 1] == [22, 23]
    assert wide.targets["offsets"][start : end + 1] == [(5, 6), (6, 7)]
    assert wide.targets["offsets"][3] == (IGNORED, IGNORED)
    assert (wide.index, wide.label) == (3, 3.0)
    narrow, cut = arrange(row, "grid", "question-answering", BERT, 8)  # token 23 finds no room
    assert cut == 1
    assert (narrow.targets["start_positions"], narrow.targets["end_positions"]) == (0, 0)


TEXTS = ["a fine film", "bad", "not a good one", "what a wonderful long story it is", "so so"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "MRPC").mkdir()
    rows = [f"{text}\t{number % 2}\n" for number, text in enumerate(TEXTS)]
    (tmp_path / "SST-2" / "dev.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    pairs = [f"{n % 2}\t1\t2\t{text}\t{TEXTS[n - 1]}\n" for n, text in enumerate(TEXTS)]
    (tmp_path / "MRPC" / "dev.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(pairs))
    (tmp_path / "eng.testa").write_text("EU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    return tmp_path


NAMES = ["glue/sst2", "glue/mrpc", "tokens/ner", "masked-lm", "causal-lm"]


def make(name, data, **options):
    path = {"tokens/ner": data / "eng.testa", "masked-lm": data / "text.txt", "causal-lm": data / "text.txt"}
    given = {"data": str(path.get(name, data)), "layout": "grid", "max_length": 40, "batch_size": 2, **options}
    return load_task(name, **given)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["papa", "grid"])
def test_every_batch_of_every_task_has_all_slots(data, name, layout):
    task = make(name, data, layout=layout)
    model = task.load_model("tiny-bert" if name != "causal-lm" else "tiny-gpt2")
    streams = {
        "batches": [batch.inputs for batch in task.batches(TOKENIZER)],
        "feed": list(task.feed(model, TOKENIZER)),
        "train": list(task.train_batches(TOKENIZER, model)),
    }
    for batches in streams.values():
        assert batches
        for inputs in batches:
            assert inputs["input_ids"].shape[1] == 40
            assert torch.equal(inputs["attention_mask"].bool(), inputs["input_ids"] != TOKENIZER.pad_token_id)
    for batch in task.batches(TOKENIZER):
        for target in batch.targets.values():
            assert target.shape[:2] == batch.inputs["input_ids"].shape


def test_the_model_may_take_fewer_tokens_than_the_task_has(data):
    model = make("glue/sst2", data).load_model("tiny-bert")
    model.config.max_position_embeddings = 16
    assert {inputs["input_ids"].shape[1] for inputs in make("glue/sst2", data).feed(model, TOKENIZER)} == {16}


@pytest.mark.parametrize("name", ["glue/sst2", "tokens/ner", "masked-lm"])
def test_roberta_counts_its_positions_over_gaps(data, name):
    """Its position numbers do not see the gap, so single texts give the same answers with a layout and without."""
    model = make(name, data).load_model("tiny-roberta")
    plain, wide = (evaluate(model, make(name, data, layout=layout), TOKENIZER) for layout in ("", "grid"))
    np.testing.assert_allclose(plain.outputs, wide.outputs, atol=1e-5)


def test_a_causal_model_answers_the_same_with_a_layout(data):
    model = make("causal-lm", data).load_model("tiny-gpt2")
    plain, wide = (evaluate(model, make("causal-lm", data, layout=layout), TOKENIZER) for layout in ("", "grid"))
    np.testing.assert_allclose(plain.outputs, wide.outputs, atol=1e-4)


def test_cut_tokens_are_counted_and_said_once(data, caplog):
    task = make("glue/sst2", data, layout="papa", max_length=16)
    # Lengths with both special tokens are 13, 5, 16, 35 (cut to 16) and 7; each keeps 8 and the separator.
    assert count_cuts(task, TOKENIZER) == Cuts(texts=5, tokens=57, cut_texts=3, cut_tokens=4 + 7 + 7, full=2)
    with caplog.at_level(logging.WARNING, logger="attrim.tasks.reading"):
        for _ in range(2):
            list(task.batches(TOKENIZER))
    (record,) = caplog.records
    assert record.getMessage() == (
        "The layout 'papa' with 16 slots cut 18 of 57 tokens, in 3 of 5 texts and was given 2 of 5 texts that fill all "
        "slots, so the tokenizer may have cut them before; raise max_length to keep more."
    )
    assert count_cuts(make("glue/sst2", data), TOKENIZER).sentence("grid", 40) == ""


def test_refusals(data):
    with pytest.raises(UnknownName, match="no layout named 'gird'; did you mean 'grid'"):
        list(make("glue/sst2", data, layout="gird").batches(TOKENIZER))
    with pytest.raises(DataError, match="at least 4 slots, not 3"):
        list(make("glue/sst2", data, max_length=3).batches(TOKENIZER))


@pytest.fixture
def bert(data):
    model = make("glue/mrpc", data).load_model("tiny-bert")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # the usual small weights give nearly even attention, which would hide mistakes
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return eager(model)


def plain_average(model, batches):
    """Sums, counts and average as in spec/papa.md 2.1, with stock attentions."""
    sums, counts = 0.0, 0.0
    for inputs in batches:
        with torch.no_grad():
            attentions = torch.stack(model(**inputs, output_attentions=True).attentions, 1).double()
        for attention, mask in zip(attentions, inputs["attention_mask"].double(), strict=True):
            pair = mask[:, None] * mask[None, :]
            sums, counts = sums + attention * pair, counts + pair
    return torch.where(counts > 0, sums / counts.clamp(min=1), 0.0), counts


@pytest.mark.parametrize("layout", ["papa", "grid"])
def test_mean_over_gaps_is_the_plain_loop(data, bert, layout):
    task = make("glue/mrpc", data, layout=layout, max_length=80)
    expected, counts = plain_average(bert, task.feed(bert, TOKENIZER))
    assert (counts == 0).any()  # some slots between the texts are never used
    for batch_size in (2, 3):
        task.batch_size = batch_size
        mean = attrim.measure(bert, task.feed(bert, TOKENIZER), Mean(), progress=False)["Mean"]
        for layer, site in enumerate(mean.sites):
            torch.testing.assert_close(mean.matrix(site), expected[layer], atol=1e-6, rtol=0)
            assert torch.equal(mean.counts(site)[0].double(), counts)


def test_the_average_of_one_text_with_gaps_gives_it_back(data, bert):
    """Property (i) of spec/papa.md."""
    task = make("glue/mrpc", data, limit=1, max_length=40, batch_size=1)
    (inputs,) = task.feed(bert, TOKENIZER)
    mean = attrim.measure(bert, [inputs], Mean(), progress=False)["Mean"]
    with torch.no_grad():
        dense = bert(**inputs, output_hidden_states=True)
        with attrim.edit(bert, Constant(mean)):
            constant = bert(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    assert not real.all()
    torch.testing.assert_close(constant.hidden_states[-1][real], dense.hidden_states[-1][real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(constant.logits, dense.logits, atol=1e-5, rtol=1e-5)
