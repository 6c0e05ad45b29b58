"""Models that have not been trained, and the tokenizers that are trained for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import attrim
from attrim.cli import main
from attrim.commands.new import New
from attrim.errors import DataError, ParameterError, UnknownName
from attrim.models.fresh import FRESH, fresh_model, redraw
from attrim.models.loading import load_model
from attrim.models.size import Size
from attrim.models.vocabulary import train_tokenizer

TEXTS = ["A man walks his dog.", "The dog barks, the man sleeps.", "Über 3 Hunde!"] * 3
SMALL = {"layers": 2, "width": 32, "heads": 4}
SENTENCE = "The man's dog walks: über 3"


def heads_of(name: str) -> int:
    return 1 if name == "recurrent-classifier" else 4


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


@pytest.mark.parametrize("units", ["words", "subwords"])
@pytest.mark.parametrize("name", FRESH)
def test_every_architecture_is_written_loaded_and_runs(name: str, units: str, texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    sizes = ["--layers", "2", "--width", "32", "--vocabulary", "290", "--units", units, "--quiet"]
    sizes += ["--heads", str(heads_of(name))]
    assert main(["new", name, "--task", "text", "--data", str(texts), "--output", str(folder), *sizes]) == 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load_model(folder, FRESH[name].kinds[0])
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.unk_token
    assert tokenizer.pad_token
    batch = tokenizer([SENTENCE, "man"], padding=True, return_tensors="pt")
    inputs = {"input_ids": batch["input_ids"]}
    if FRESH[name].kinds[0] == "seq2seq-lm":
        inputs["labels"] = tokenizer(text_target=[SENTENCE, "man"], padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).logits).all()
    decoded = tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
    if units == "subwords":
        assert decoded == SENTENCE
    else:
        assert decoded.startswith("The man")
        assert tokenizer.unk_token_id in batch["input_ids"][0]
    sites = 1 if name.startswith("recurrent") else 6 if name == "marian" else 2
    assert len(attrim.sites(model, inputs)) == sites


def test_words_are_numbered_by_frequency_after_the_special_tokens() -> None:
    tokenizer = train_tokenizer(TEXTS, FRESH["gpt2"].special, 8, "words", lowercase=True)
    # the: 6 times; dog and man: 6 times; a and so on: 3 times. "." 6 times.
    assert tokenizer.convert_ids_to_tokens(list(range(3))) == ["<pad>", "<unk>", "</s>"]
    assert {*tokenizer.convert_ids_to_tokens([3, 4, 5, 6])} == {"the", "dog", "man", "."}
    assert tokenizer("THE zebra")["input_ids"] == [tokenizer.convert_tokens_to_ids("the"), tokenizer.unk_token_id]


def test_the_same_texts_give_the_same_vocabulary() -> None:
    for units in ("words", "subwords"):
        one, two = (train_tokenizer(TEXTS, FRESH["gpt2"].special, 300, units).get_vocab() for _ in range(2))
        assert one == two


def test_bert_tells_two_texts_apart() -> None:
    tokenizer = train_tokenizer(TEXTS, FRESH["bert"].special, 40, "words")
    encoded = tokenizer("man", "dog")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == ["[CLS]", "man", "[SEP]", "dog", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1]


def test_marian_has_one_vocabulary_and_begins_with_padding() -> None:
    tokenizer = train_tokenizer(TEXTS, FRESH["marian"].special, 300)
    model = fresh_model("marian", Size(**SMALL), tokenizer)
    assert model.config.decoder_start_token_id == tokenizer.pad_token_id
    assert model.config.forced_eos_token_id == tokenizer.eos_token_id
    encoder, decoder = model.get_encoder(), model.get_decoder()
    assert encoder.embed_tokens.weight is decoder.embed_tokens.weight is model.lm_head.weight
    assert tokenizer("man")["input_ids"][-1] == tokenizer.eos_token_id
    assert not encoder.embed_positions.weight.requires_grad  # sinusoidal


@pytest.mark.parametrize("name", FRESH)
def test_one_seed_fixes_the_weights_and_redraw_gives_those_of_another(name: str) -> None:
    tokenizer = train_tokenizer(TEXTS, FRESH[name].special, 300)
    before = torch.get_rng_state()
    size = Size(**{**SMALL, "heads": heads_of(name)})
    one, two = (fresh_model(name, size, tokenizer, seed=seed) for seed in (1, 2))
    again, other = redraw(two, 1), redraw(one, 2)
    assert torch.equal(torch.get_rng_state(), before)
    for model, same in ((one, again), (two, other)):
        values = same.state_dict()
        assert type(model) is type(same)
        assert all(torch.equal(tensor, values[key]) for key, tensor in model.state_dict().items())
    assert not torch.equal(one.get_input_embeddings().weight, two.get_input_embeddings().weight)
    assert again.config is not two.config


def test_a_task_decides_the_head_and_the_classes(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(
        "sentence,label\n" + "".join(f'"{text}",class {n % 3}\n' for n, text in enumerate(TEXTS))
    )
    options = {"task": "classification", "train_file": str(tmp_path / "train.csv"), "vocabulary": 300, "quiet": True}
    outcome = New("bert", output=tmp_path / "made", layers=1, width=16, heads=2, **options).run()
    assert outcome.data["class"] == "BertForSequenceClassification"
    model = load_model(tmp_path / "made", "sequence-classification")
    assert model.config.id2label == {0: "class 0", 1: "class 1", 2: "class 2"}


def test_nothing_is_overwritten(texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ParameterError, match="not empty"):
        New("gpt2", task="text", data=str(texts), output=folder).run()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"architecture": "gpt3"}, UnknownName, "did you mean 'gpt2'"),
        ({"task": "causal-lm", "architecture": "bert"}, ParameterError, "no causal-lm head.*transformer-xl, gpt2"),
        ({"memory": 10}, ParameterError, "no memory"),
        ({"cutoffs": (10,)}, ParameterError, "no adaptive softmax"),
        ({"architecture": "transformer-xl", "positions": 10}, ParameterError, "any length"),
        ({"architecture": "transformer-xl", "cutoffs": (20, 10)}, ParameterError, "ascending"),
        ({"width": 30}, ParameterError, "multiple of 8"),
        ({"layers": 0}, ParameterError, "layers must be at least 1"),
        ({"dropout": 1.0}, ParameterError, "dropout"),
        ({"vocabulary": 100}, ParameterError, "256 bytes"),
        ({"vocabulary": 3, "units": "words"}, ParameterError, "no room for any word"),
        ({"minimum_count": 0}, ParameterError, "minimum-count"),
        ({"minimum_count": 99, "units": "words"}, DataError, "no vocabulary"),
    ],
)
def test_what_cannot_be_made_is_refused(
    changes: dict[str, object], error: type[Exception], said: str, texts: Path, tmp_path: Path
) -> None:
    options = {"architecture": "gpt2", "task": "text", "data": str(texts), "output": tmp_path / "made", "quiet": True}
    with pytest.raises(error, match=said):
        New(**{**options, **changes}).run()
    assert not (tmp_path / "made").exists()
