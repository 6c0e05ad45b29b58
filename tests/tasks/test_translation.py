"""Translation: parallel files, what the decoder reads, beam search with edits, and BLEU from counts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import sacrebleu
import torch
from datasets.arrow_writer import ArrowWriter

import attrim
from attrim.cli import main
from attrim.errors import ArtefactError, DataError, ParameterError
from attrim.runs.result import paired_bootstrap
from attrim.runs.run import Run
from attrim.tasks import load_task
from attrim.tasks.translation import bleu
from translated import WORDS, save_marian, small_marian, word_tokenizer, write_parallel


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_parallel(tmp_path / "data")


def texts(**options) -> list[tuple[str, ...]]:
    return [example.texts for example in load_task("translation", **options).examples()]


class Written:
    """Stands for a tokenizer whose tokens are whole texts."""

    pad_token_id = -1

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def batch_decode(self, tokens, skip_special_tokens):
        return [self.texts[number] for (number,) in tokens]


def scored(task, hypotheses: list[str]) -> dict:
    """The columns of a task that wrote these texts."""
    task._tokenizer = Written(hypotheses)
    outputs = np.full((len(hypotheses), 3 + task.max_new_tokens), -1.0)
    outputs[:, 3] = np.arange(len(hypotheses))
    outputs[:, :3] = 1
    return task.columns(outputs, np.zeros(len(hypotheses)))


def spoilt(text: str, generator: np.random.Generator) -> str:
    """A text with words left out, doubled or exchanged."""
    words = text.split()
    words = [word for word in words for _ in range(generator.choice([0, 1, 1, 1, 1, 2]))]
    if generator.random() < 0.3 and len(words) > 1:
        place = generator.integers(len(words) - 1)
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


@pytest.mark.parametrize("options", [{}, {"tokenize": "intl"}, {"tokenize": "char"}, {"lowercase": True}])
def test_bleu_of_real_text_is_that_of_sacrebleu(shared_data: Path, options: dict) -> None:
    task = load_task("translation", data=str(shared_data / "multi30k"), split="val", **options)
    references = [example.texts[1] for example in task.examples()]
    assert len(references) == 1014
    generator = np.random.default_rng(0)
    hypotheses = [spoilt(text, generator) for text in references]
    columns = scored(task, hypotheses)
    how = {name: value for name, value in options.items() if name == "tokenize"}
    stock = lambda chosen: sacrebleu.corpus_bleu(
        [hypotheses[i] for i in chosen], [[references[i] for i in chosen]], **how
    )
    assert 30 < float(bleu(columns)) < 90
    samples = [np.arange(1014), *(generator.integers(0, 1014, size) for size in (1014, 200, 5, 1))]
    for chosen in samples:
        part = {name: column[chosen] for name, column in columns.items()}
        assert float(bleu(part)) == pytest.approx(stock(chosen).score, abs=1e-9)
    # A bootstrap resamples along leading axes.
    many = np.stack([generator.integers(0, 1014, 300) for _ in range(4)])
    together = bleu({name: column[many] for name, column in columns.items()})
    assert together == pytest.approx([stock(chosen).score for chosen in many], abs=1e-9)
    chrf = np.mean([sacrebleu.sentence_chrf(h, [r]).score for h, r in zip(hypotheses, references, strict=True)])
    assert task.score(columns)["chrf"] == pytest.approx(chrf)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (["a b", "c"], ["a b", "c"]),
        (["a b c d e"], ["a b c x y"]),
        (["x y z w"], ["a b c d"]),
        ([""], ["a b c d"]),
        (["", "a b c d e f"], ["a", "a b c d e f g"]),
        (["a x b y c z d"], ["a b c d"]),
    ],
)
def test_bleu_at_the_edges_is_that_of_sacrebleu(tmp_path: Path, hypotheses, references) -> None:
    for language in ("de", "en"):
        (tmp_path / f"val.{language}").write_text("".join(f"{line}\n" for line in references))
    columns = scored(load_task("translation", data=str(tmp_path)), hypotheses)
    assert float(bleu(columns)) == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score, abs=1e-9)


def test_a_paired_bootstrap_sees_worse_translations(shared_data: Path) -> None:
    task = load_task("translation", data=str(shared_data / "multi30k"), split="val", limit=200)
    references = [example.texts[1] for example in task.examples()]
    generator = np.random.default_rng(0)
    once = [spoilt(text, generator) for text in references]
    twice = [spoilt(text, generator) for text in once]
    change = paired_bootstrap(bleu, scored(task, once), scored(task, twice), resamples=300)
    assert change.low < change.value < change.high < 0


def test_splits_of_multi30k_and_pairs_of_other_sets(shared_data: Path) -> None:
    folder = str(shared_data / "multi30k")
    for names, size in ((("validation", "val"), 1014), (("test", "test2016", "test_2016_flickr"), 1000)):
        found = [texts(data=folder, split=name) for name in names]
        assert all(pairs == found[0] for pairs in found)
        assert len(found[0]) == size
    assert texts(data=folder)[0] == (
        "Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen", "A group of men are loading cotton onto a truck"
    )  # fmt: skip
    assert texts(data=folder, source="fr", target="de", lowercase=True)[0][1].startswith("eine gruppe von männern")
    news = texts(data=str(shared_data / "news_commentary_5k" / "nc-5k"), source="fr")
    assert len(news) == len(texts(data=str(shared_data / "news_commentary_5k"), source="fr", split="nc-5k")) > 4900
    assert len(texts(data=str(shared_data / "iwslt14_de_en"), split="test")) == 6750


def test_own_files_as_a_prefix_and_as_two_paths(files: Path) -> None:
    whole = texts(data=str(files), split="train")
    assert texts(train_file=str(files / "train"), split="train") == whole
    both = f"{files / 'train.de'},{files / 'train.en'}"
    assert texts(train_file=both, split="train") == whole
    assert texts(train_file=both, validation_file=str(files / "val")) == texts(data=str(files))
    for language in ("de", "en"):
        (files / f"other.de-en.{language}.gz").write_bytes(gzip.compress((files / f"val.{language}").read_bytes()))
    assert texts(data=str(files), split="other") == texts(data=str(files), split="validation")


def test_files_of_unequal_length_are_refused_with_both_counts(files: Path) -> None:
    with (files / "train.en").open("a") as stream:
        stream.write("one more\n")
    for options in ({}, {"limit": 2, "seed": None}):
        with pytest.raises(DataError, match=r"train\.de has 64 lines and .*train\.en has 65"):
            texts(data=str(files), split="train", **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split": "test"}, "holds no test.de or test2016.de or test_2016_flickr.de"),
        ({"target": "fr"}, r"holds no validation\.fr or val\.fr .*languages \(source=de, target=fr\)"),
        ({"data": "nowhere/val"}, r"nowhere holds no val\.de"),
        ({"validation_file": "a.de,b.en"}, r"There is no file a\.de"),
    ],
)
def test_missing_files_are_named(files: Path, options: dict, named: str) -> None:
    with pytest.raises(DataError, match=named):
        texts(**{"data": str(files), **options})


@pytest.mark.parametrize(
    "options",
    [{"beams": 0}, {"max_new_tokens": 0}, {"length_penalty": float("nan")}, {"beams": 1, "length_penalty": 2.0},
     {"target": "de"}, {"layout": "grid"}],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(options: dict) -> None:
    with pytest.raises(ParameterError):
        load_task("translation", **options)


def test_pairs_with_an_empty_side_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "val.de").write_text("ein hund\n\nzwei\n")
    (tmp_path / "val.en").write_text("a dog\nnothing\n \n")
    assert texts(data=str(tmp_path)) == [("ein hund", "a dog")]
    assert "2 pairs of the validation data have an empty side" in caplog.text


@pytest.mark.parametrize("column", ["translation", None])
def test_hub_data_has_columns_or_one_column_of_both(tmp_path: Path, column: str | None) -> None:
    pair = {"de": datasets.Value("string"), "en": datasets.Value("string")}
    place = tmp_path / "bentrevett___multi30k" / "default" / "0.0.0" / ("0" * 40)
    place.mkdir(parents=True)
    features = datasets.Features({column: pair} if column else pair)
    writer = ArrowWriter(path=str(place / "multi30k-validation.arrow"), features=features)
    row = {"de": "ein hund", "en": "a dog"}
    writer.write({column: row} if column else row)
    count, size = writer.finalize()
    info = {"name": "validation", "num_bytes": size, "num_examples": count, "dataset_name": "multi30k"}
    datasets.DatasetInfo(
        features=features, builder_name="parquet", dataset_name="multi30k", config_name="default", version="0.0.0",
        splits={"validation": info},
    ).write_to_directory(str(place))  # fmt: skip
    options = {"cache_dir": str(tmp_path), "local_files_only": True}
    assert texts(**options) == [("ein hund", "a dog")]
    with pytest.raises(DataError, match=r"has no texts in 'fr' and 'en' \(it has de, en\)"):
        texts(source="fr", **options)
    with pytest.raises(DataError, match=r"^wmt16 de-en validation could not be read from the local cache"):
        texts(dataset="wmt16", config="de-en", **options)


def test_the_decoder_reads_the_translation_and_padding_is_masked(files: Path) -> None:
    model, tokenizer = small_marian(), word_tokenizer()
    task = load_task("translation/loss", data=str(files), split="train", batch_size=16)
    batch = next(task.train_batches(tokenizer, model))
    labels, mask = batch["labels"], batch["decoder_attention_mask"]
    assert (labels == -100).any()
    assert torch.equal(mask, (labels != -100).long())
    assert (batch["decoder_input_ids"][:, 0] == model.config.decoder_start_token_id).all()
    real = mask[:, 1:].bool()
    assert torch.equal(batch["decoder_input_ids"][:, 1:][real], labels[:, :-1][real])
    assert (labels[torch.arange(16), mask.sum(1) - 1] == tokenizer.eos_token_id).all()
    with torch.inference_mode():
        stock = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
        assert task.loss(model, batch) == pytest.approx(float(stock), rel=1e-6)
    # What is measured has no cell of padding: the mean of every row that was seen is a distribution.
    found = attrim.measure(model, task.feed(model, tokenizer), attrim.Mean())[attrim.Mean]
    assert {site.role for site in found.sites} == {"encoder", "decoder", "cross"}
    fed = next(task.feed(model, tokenizer))
    assert "labels" not in fed
    assert "decoder_attention_mask" in fed


@pytest.mark.parametrize("beams", [1, 3])
def test_an_evaluation_is_stock_generation(files: Path, beams: int) -> None:
    model, tokenizer = small_marian(), word_tokenizer()
    task = load_task("translation", data=str(files), batch_size=5, beams=beams, max_new_tokens=12)
    result = attrim.evaluate(model, task, tokenizer)
    pairs = [example.texts for example in task.examples()]
    expected = []
    for source, _ in pairs:
        written = model.generate(**tokenizer(source, return_tensors="pt"), num_beams=beams, max_new_tokens=12)
        expected.append(tokenizer.decode(written[0], skip_special_tokens=True))
    assert result.texts == expected
    assert any(result.texts)
    references = [[target for _, target in pairs]]
    assert result.metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(expected, references).score, abs=1e-9)
    cheap = attrim.evaluate(model, load_task("translation/loss", data=str(files), batch_size=12), tokenizer)
    assert cheap.metrics["perplexity"] == pytest.approx(result.metrics["perplexity"], rel=1e-5)
    assert cheap.metrics["token-accuracy"] == pytest.approx(result.metrics["token-accuracy"])
    assert result.columns["tokens"].sum() == sum(len(tokenizer(text_target=target)["input_ids"]) for _, target in pairs)


def test_edits_act_in_generation_and_texts_are_kept_in_a_run(files: Path, tmp_path: Path) -> None:
    model, tokenizer = small_marian(), word_tokenizer()
    task = load_task("translation", data=str(files), beams=2, max_new_tokens=12)
    settings = {"cross off": [attrim.Gate(0.0, select=attrim.Select(roles="cross"))]}
    with Run.open(tmp_path / "runs", {"a": 1}) as run:
        results = attrim.evaluation.evaluate_settings(model, task, tokenizer, settings, run=run)
        assert run.predictions("cross off")["ngrams_4"].shape == (12,)
        again = attrim.evaluation.Result.load(run, "cross off")
    edited = results["cross off"]
    assert again is not None
    assert again.texts == edited.texts
    assert len(set(edited.texts)) == 1  # without cross-attention the decoder does not know the source
    assert len(set(results["unedited"].texts)) > 1
    assert edited.distances["agreement"] < 100
    model.generation_config.use_cache = False
    assert attrim.evaluate(model, task, tokenizer, settings["cross off"]).texts == edited.texts


def test_models_that_do_not_translate_and_vocabularies_that_do_not_fit_are_refused(files: Path) -> None:
    task, tokenizer = load_task("translation", data=str(files)), word_tokenizer()
    with pytest.raises(ArtefactError, match=r"token numbers up to 15 but the model has 9 embeddings"):
        attrim.evaluate(small_marian(vocabulary=9), task, tokenizer)
    bert = attrim.load_model("tiny-bert", "masked-lm")
    with pytest.raises(DataError, match=r"BertForMaskedLM is not an encoder-decoder model"):
        attrim.evaluate(bert, task, attrim.load_tokenizer("tiny-bert"))
    bart = task.load_model("tiny-bart")
    bart.config = SimpleNamespace(is_encoder_decoder=True, decoder_start_token_id=None)
    with pytest.raises(DataError, match="no decoder_start_token_id"):
        attrim.evaluate(bart, task, attrim.load_tokenizer("tiny-bart"))


@pytest.mark.parametrize("name", ["tiny-bart", "tiny-t5"])
def test_other_encoder_decoder_models_translate_too(files: Path, name: str) -> None:
    task = load_task("translation", data=str(files), limit=4, max_new_tokens=8, beams=2, prefix="translate: ")
    result = attrim.evaluate(task.load_model(name), task, task.load_tokenizer(name), attrim.Threshold(0.05))
    assert len(result.texts) == 4
    assert 0 < result.zero_share < 1


def test_the_command_trains_evaluates_and_keeps_translations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, files = save_marian(tmp_path / "marian"), write_parallel(tmp_path / "more", train=256)
    words = f"train {source} --task translation --data {files} --option beams=2 --option max_new_tokens=10 --json"
    words += f" --steps 150 --batch-size 16 --learning-rate 5e-3 --warmup 10 --output {tmp_path / 'runs'}"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["validations"]["150"]["metrics"]["bleu"] > 70
    with Run.read(found["folder"]) as run:
        result = attrim.evaluation.Result.load(run, "validation/000150")
    assert result is not None
    sources = [example.texts[0] for example in load_task("translation", data=str(files)).examples()]
    right = [" ".join(WORDS[word] for word in text.split()) for text in sources]
    assert sum(map(str.__eq__, result.texts, right)) > 6
    words = f"evaluate {found['saved']} --task translation --data {files} --option max_new_tokens=10 --edit uniform"
    assert main([*words.split(), "--select-roles", "cross", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert found["uniform"]["metrics"]["bleu"] < found["unedited"]["metrics"]["bleu"]
