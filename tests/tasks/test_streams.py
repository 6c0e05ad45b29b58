"""Continuous streams: every token once and in order, words counted whatever the tokenizer, and memory that is kept."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attrim
from attrim.edits import SparsePattern, Threshold
from attrim.errors import DataError, ParameterError
from attrim.evaluation import evaluate, evaluate_layers, evaluate_settings
from attrim.models.fresh import FRESH, fresh_model
from attrim.models.size import Size
from attrim.models.tiny import tiny_tokenizer
from attrim.models.vocabulary import train_tokenizer
from attrim.stats.mean import Mean
from attrim.tasks import load_task
from attrim.tasks.streams import Streams, _count_words

TEXTS = [f"The fox number {number} sees the moon, and {number * 7} stars above the old house." for number in range(12)]
WORDS = sum(len(text.split()) + 1 for text in TEXTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\n\n".join(TEXTS))
    return tmp_path


def tokenizer_of(units: str = "words") -> Any:
    return train_tokenizer(TEXTS, FRESH["transformer-xl"].special, 320, units)


def model_of(tokenizer: Any, name: str = "transformer-xl", **changes: Any) -> Any:
    memory = {"memory": 10} if name == "transformer-xl" else {}
    size = Size(**{"layers": 2, "width": 16, "heads": 2, "dropout": 0.0, **memory, **changes})
    model = fresh_model(name, size, tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():  # attention of a fresh model is nearly the same everywhere
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("streams", [1, 2, 5, 16])
@pytest.mark.parametrize("length", [1, 7, 1000])
def test_every_token_is_predicted_once_and_in_order(folder: Path, streams: int, length: int) -> None:
    tokenizer = tokenizer_of()
    task = load_task("streams", data=str(folder), batch_size=streams, max_length=length)
    end = tokenizer.eos_token_id
    whole = [end]
    for text in TEXTS:
        whole += [*tokenizer(text)["input_ids"], end]
    parts: dict[int, tuple[list[int], list[int]]] = {}
    words = 0
    for batch in task.batches(tokenizer):
        for row, index in enumerate(batch.index):
            parts[int(index)] = batch.inputs["input_ids"][row].tolist(), batch.targets["labels"][row].tolist()
        words += int(batch.targets["words"].sum())
    ordered = [parts[index] for index in sorted(parts)]
    assert [token for tokens, _ in ordered for token in tokens] == whole[:-1]
    assert [label for _, labels in ordered for label in labels] == whole[1:]
    assert words == WORDS
    assert sorted(parts) == list(range(len(parts)))


def test_a_batch_goes_on_where_the_one_before_ended(folder: Path) -> None:
    tokenizer = tokenizer_of()
    task = load_task("streams", data=str(folder), split="train", batch_size=4, max_length=8)
    batches = list(task.train_batches(tokenizer, model_of(tokenizer)))
    assert [bool(batch["begins"].all()) for batch in batches] == [True] + [False] * (len(batches) - 1)
    for one, following in itertools.pairwise(batches):
        assert torch.equal(one["labels"][:, -1], following["input_ids"][:, 0])
    total = sum(len(tokenizer(text)["input_ids"]) + 1 for text in TEXTS)
    assert sum(batch["input_ids"].shape[1] for batch in batches) == total // 4


@given(st.lists(st.text(st.sampled_from("ab ü.\t\n"), max_size=12), min_size=1, max_size=4), st.booleans())
def test_words_are_those_between_blanks_whatever_the_tokenizer(texts: list[str], whole: bool) -> None:
    tokenizer = BYTES if not whole else tokenizer_of()
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        counts = _count_words(text, encoded["offset_mapping"])
        assert len(counts) == len(encoded["input_ids"]) + 1
        assert counts.sum() == len(text.split()) + 1


BYTES = tiny_tokenizer()


@pytest.mark.parametrize("name", ["transformer-xl", "gpt2", "llama"])
@pytest.mark.parametrize("units", ["words", "subwords"])
def test_perplexity_by_hand(folder: Path, name: str, units: str) -> None:
    """One stream; the model runs over all of it with the memory handed on, or segment by segment without one."""
    tokenizer = tokenizer_of(units)
    model = model_of(tokenizer, name)
    task = load_task("streams", data=str(folder), batch_size=1, max_length=9)
    result = evaluate(model, task, tokenizer)
    tokens = torch.from_numpy(task.encoded(tokenizer, words=True).tokens.astype(np.int64))
    total, mems = 0.0, None
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 9):
            segment, labels = tokens[start : start + 9][None], tokens[start + 1 : start + 10][None]
            segment = segment[:, : labels.shape[1]]
            if name == "transformer-xl":
                found = model(segment, mems=mems)
                mems = found.mems
            else:
                found = model(segment)
            total += float(torch.nn.functional.cross_entropy(found.logits[0], labels[0], reduction="sum"))
    assert result.metrics["word-perplexity"] == pytest.approx(math.exp(total / WORDS), rel=1e-4)
    assert result.metrics["token-perplexity"] == pytest.approx(math.exp(total / (len(tokens) - 1)), rel=1e-4)
    assert result.metrics["loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-4)
    assert result.columns["words"].sum() == WORDS
    assert len(result.columns["loss"]) == math.ceil((len(tokens) - 1) / 9)


def test_passes_do_not_disturb_each_other(folder: Path) -> None:
    tokenizer = tokenizer_of()
    model = model_of(tokenizer)
    task = load_task("streams", data=str(folder), batch_size=3, max_length=9)
    first = evaluate(model, task, tokenizer)
    kept = tuple(torch.randn(4, 7, 16) for _ in range(2))
    model.memory = kept  # of a training with 7 streams, say
    edited = evaluate(model, task, tokenizer, Threshold(0.05))
    again = evaluate(model, task, tokenizer)
    mean = attrim.measure(model, task.feed(model, tokenizer), Mean(), progress=False)[Mean]
    assert model.memory is not None
    assert all(one is other for one, other in zip(model.memory, kept, strict=True))
    assert np.array_equal(first.outputs, again.outputs)
    assert not np.array_equal(first.outputs, edited.outputs)
    # 10 of memory and 9 of the segment: queries have the last 9 rows, and the last rows of segments see everything.
    counts = mean.counts(mean.sites[0])[0]
    assert counts.shape == (19, 19)
    assert not counts[:10].any()
    assert counts[18, 0] > 0
    assert counts[10, 10] > counts[10, 0] > 0  # first segments have no memory


def test_settings_that_run_together_have_their_own_memories(folder: Path) -> None:
    tokenizer = tokenizer_of()
    model = model_of(tokenizer)
    task = load_task("streams", data=str(folder), batch_size=3, max_length=9)
    settings = {
        "first": [Threshold(0.08, select=attrim.Select(layers=(0,)))],
        "last": [Threshold(0.08, select=attrim.Select(layers=(1,)))],
    }
    one = evaluate_settings(model, task, tokenizer, settings)
    together = evaluate_layers(model, task, tokenizer, settings)
    for name in settings:
        np.testing.assert_allclose(together[name].outputs, one[name].outputs, rtol=1e-5)
    assert not np.allclose(one["first"].outputs, one["unedited"].outputs)


def test_a_pruned_model_does_not_see_the_future(folder: Path) -> None:
    """Few cells or none are left, so that rows are empty; losses still know nothing of later tokens."""
    tokenizer = tokenizer_of()
    model = model_of(tokenizer)
    task = load_task("streams", data=str(folder), batch_size=2, max_length=8)
    mean = attrim.measure(model, task.feed(model, tokenizer), Mean(), progress=False)[Mean]
    for tau in (0.8, 1.0):
        pattern = SparsePattern(mean, tau)
        batches = list(task.batches(tokenizer))[:3]
        with attrim.edit(model, pattern), torch.no_grad():
            for place, changed in enumerate((None, 4)):
                losses = []
                for number, batch in enumerate(batches):
                    ids, labels = batch.inputs["input_ids"].clone(), batch.targets["labels"]
                    if changed is not None and number == 2:
                        ids[:, changed:] = (ids[:, changed:] + 5) % len(tokenizer)
                    losses.append(model(ids, labels=labels, begins=batch.inputs["begins"]).token_losses)
                if place == 0:
                    expected = losses
            assert torch.equal(losses[1], expected[1])
            assert torch.equal(losses[2][:, :4], expected[2][:, :4])
            assert not torch.equal(losses[2][:, 4:], expected[2][:, 4:])


def test_texts_are_shuffled_by_epoch(folder: Path) -> None:
    tokenizer = tokenizer_of()
    model = model_of(tokenizer)
    task = load_task("streams", data=str(folder), split="train", batch_size=1, max_length=10_000, shuffle=True)
    first, again, other = (
        next(iter(task.train_batches(tokenizer, model, epoch=epoch)))["labels"] for epoch in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    plain = load_task("streams", data=str(folder), split="train", batch_size=1, max_length=10_000)
    ordered = next(iter(plain.train_batches(tokenizer, model)))
    everything = [*ordered["input_ids"][0].tolist(), int(ordered["labels"][0, -1])]
    stream = task.encoded(tokenizer, words=False).shuffled(random.Random(1))
    assert sorted(stream.tokens.tolist()) == sorted(everything)


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.tokens").write_text("= A =\n \n one two <unk>\n")
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as stream:
        stream.write(json.dumps({"text": "a review"}) + "\n")
    own = tmp_path / "mine.txt"
    own.write_text("own text")

    def texts(**options: Any) -> list[str]:
        return [example.texts[0] for example in Streams(**options).examples()]

    assert texts(data=str(tmp_path), split="train") == ["= A =", "one two <unk>"]
    assert texts(data=str(tmp_path), split="test") == ["a review"]
    assert texts(data=str(tmp_path), split="mine") == ["own text"]
    assert texts(data=str(own)) == ["own text"]
    assert texts(data=str(tmp_path), validation_file=str(own)) == ["own text"]
    assert texts(train_file=str(own), split="train") == ["own text"]
    with pytest.raises(DataError, match=r"no file for the split validation .*test.jsonl.gz.*split=test"):
        texts(data=str(tmp_path))
    with pytest.raises(DataError, match="--train-file FILE or --data"):
        texts(split="train")
    with pytest.raises(DataError, match="no file"):
        texts(data=str(tmp_path / "none.txt"))


def test_what_cannot_be_meant_is_refused(folder: Path) -> None:
    tokenizer = tokenizer_of()
    with pytest.raises(ParameterError, match="no layout"):
        load_task("streams", layout="grid")
    with pytest.raises(ParameterError, match="at least 1"):
        load_task("streams", batch_size=0)
    task = load_task("streams", data=str(folder), split="train", batch_size=10_000)
    with pytest.raises(DataError, match="too few for 10000 streams"):
        next(iter(task.train_batches(tokenizer, model_of(tokenizer))))
    with pytest.raises(DataError, match="takes no padding"):
        model_of(tokenizer)(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.tensor([[1, 1, 0]]))
    unended = train_tokenizer(TEXTS, FRESH["transformer-xl"].special, 320, "words")
    unended.eos_token = unended.bos_token = None
    with pytest.raises(DataError, match="ends a text"):
        next(iter(load_task("streams", data=str(folder)).batches(unended)))
