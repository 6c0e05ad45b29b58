"""The recurrent networks: padding, saving, training and generating as any model of transformers, and attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
from attrim.attention.context import attach
from attrim.cli import main
from attrim.errors import DataError, ParameterError
from attrim.models.loading import load_model, saved_kind
from attrim.models.recurrent import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentSeq2Seq,
    RecurrentSeq2SeqConfig,
    copier_config,
    hidden_states,
    run_recurrent,
)
from attrim.models.tiny import tiny_tokenizer
from watching import Keep


def classifier(**changes: Any) -> RecurrentClassifier:
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "embed_dim": 6, "hidden_dim": 5, "intermediate_dim": 4, **changes}
    return RecurrentClassifier(RecurrentClassifierConfig(**sizes)).eval()


def translator(**changes: Any) -> RecurrentSeq2Seq:
    torch.manual_seed(0)
    return RecurrentSeq2Seq(RecurrentSeq2SeqConfig(**{"vocab_size": 30, "hidden_dim": 6, **changes})).eval()


TOKENS = torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]])
MASK = (TOKENS > 0).long()
LABELS = torch.tensor([[8, 9, 2], [8, 2, -100]])


def test_padding_changes_nothing() -> None:
    model, short = classifier(), TOKENS[1:, :3]
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS, MASK).logits[1:], model(short, MASK[1:, :3]).logits)
        other = translator()
        padded = other(TOKENS, MASK, labels=LABELS).logits[1:, :2]
        torch.testing.assert_close(padded, other(short, MASK[1:, :3], labels=LABELS[1:, :2]).logits)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_states_of_whole_batches_equal_those_of_packed_texts(layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    network = torch.nn.LSTM(3, 4, layers, bidirectional=bidirectional, batch_first=True).double()
    mask = torch.arange(7) < torch.tensor([[7], [1], [4]])
    found = []
    for states in (hidden_states, lambda *given: run_recurrent(*given)[0]):
        inputs = torch.randn(3, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        inputs.requires_grad_()
        output = states(network, inputs, mask)
        gradients = torch.autograd.grad((output**2 * output.cos()).sum(), [inputs, *network.parameters()])
        found.append([output, *gradients])
    torch.testing.assert_close(*found)


def test_padding_on_the_left_is_refused() -> None:
    with pytest.raises(DataError, match="padded on the right"):
        classifier()(TOKENS.flip(1), MASK.flip(1))
    with pytest.raises(DataError, match="at least one token"):
        classifier()(TOKENS, MASK * torch.tensor([[1], [0]]))


def test_the_loss_is_the_binary_one() -> None:
    model = classifier()
    found = model(TOKENS, MASK, labels=torch.tensor([1, 0]))
    logit = found.logits[:, 1]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(found.logits, torch.tensor([1, 0])))
    with pytest.raises(ParameterError, match="two classes"):
        classifier(num_labels=3)


@pytest.mark.parametrize("shared", [True, False])
def test_saved_models_load_by_their_folder(tmp_path: Path, shared: bool) -> None:
    for model, kind in ((classifier(), "sequence-classification"), (translator(shared=shared), "seq2seq-lm")):
        folder = tmp_path / kind
        model.save_pretrained(folder)
        assert saved_kind(folder) == kind
        loaded = load_model(folder, kind)
        assert type(loaded) is type(model)
        ours, theirs = dict(model.named_parameters()), dict(loaded.named_parameters())
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_beam_search_ends_and_does_not_depend_on_padding() -> None:
    model = translator()
    options = {"num_beams": 3, "max_length": 8, "do_sample": False}
    both = model.generate(TOKENS, attention_mask=MASK, **options)
    alone = model.generate(TOKENS[1:, :3], attention_mask=MASK[1:, :3], **options)
    assert both[1].tolist()[: alone.shape[1]] == alone[0].tolist()


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_found_and_edited(heads: int) -> None:
    model = RecurrentSeq2Seq(copier_config(20, 6, heads=heads if heads > 1 else 0)).eval()
    batch = {"input_ids": TOKENS, "attention_mask": MASK, "labels": LABELS}
    with attach(model, [attrim.Uniform()], [keep := Keep()]), torch.no_grad():
        model(**batch)
    (weights,) = keep.tensors.values()
    assert weights.shape == (2, heads, 3, 5)
    torch.testing.assert_close(weights[1, :, 0], torch.tensor([1 / 3] * 3 + [0.0, 0.0]).expand(heads, 5))
    (call,) = keep.calls.values()
    assert call.queries.tolist() == [[True] * 3, [True, True, False]]
    with attrim.edit(model, attrim.Gate(0.0)), torch.no_grad():
        gated = model(**batch).logits
    # Without attention the context is the bias of its projection alone, whatever the source.
    zero = torch.stack([head.output.bias for head in model.cross_attention.parts()]).mean(0)
    states = model.decoder_states(model.prepare_decoder_input_ids_from_labels(LABELS), model.encoder(TOKENS, MASK))
    torch.testing.assert_close(gated, model.predict(states, zero.expand_as(states)).detach())


def test_statistics_and_scores_of_the_classifier() -> None:
    model, batch = classifier(), {"input_ids": TOKENS, "attention_mask": MASK}
    stats = attrim.measure(model, [batch], [attrim.Mean(), attrim.Histogram(), attrim.Moments()], progress=False)
    (site,) = stats["Mean"].sites
    assert (site.role, site.heads) == ("answer>text", 1)
    assert stats["Mean"].counts(site)[0].tolist() == [[2, 2, 2, 1, 1]]
    assert stats["Moments"].entropy().shape == (1, 1)


def test_uniform_training_leaves_attention_parameters_untouched() -> None:
    for model, batch, own in (
        (classifier(), {"input_ids": TOKENS, "attention_mask": MASK, "labels": torch.tensor([1, 0])}, "pooling."),
        (translator(), {"input_ids": TOKENS, "attention_mask": MASK, "labels": LABELS}, ".query."),
    ):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        with attrim.edit(model, attrim.Uniform()):
            for _ in range(2):
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()
        unchanged = {name for name, value in model.named_parameters() if torch.equal(before[name], value)}
        assert unchanged == {name for name in before if own in f".{name}"}


def test_heads_can_be_swapped() -> None:
    first, second = (RecurrentSeq2Seq(copier_config(20, 6, heads=2)) for _ in range(2))
    heads = [*first.cross_attention.parts(), second.cross_attention.parts()[0]]
    first.swap_heads(heads)
    assert first.config.heads == 3
    assert attrim.sites(first)[0].heads == 3
    assert first(TOKENS, labels=TOKENS).logits.shape == (2, 5, 22)


def test_the_train_command_trains_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tiny_tokenizer()
    model = classifier(vocab_size=len(tokenizer), hidden_dim=8, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"text": text, "label": label} for text, label in [("aaaa", "no"), ("bbbb", "yes")] * 16]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["train", str(tmp_path / "model"), "--task", "classification", "--data", str(tmp_path), "--steps", "40"]
    words += ["--learning-rate", "0.02", "--batch-size", "8", "--output", str(tmp_path / "runs"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["validations"]["40"]["metrics"]["accuracy"] == 100.0


@pytest.mark.parametrize(
    ("architecture", "task", "options", "metric"),
    [
        ("recurrent-classifier", "classification", ["--heads", "1"], "accuracy"),
        ("recurrent-seq2seq", "translation", ["--heads", "2"], "token-accuracy"),
    ],
)
def test_fresh_recurrent_networks_are_trained_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], architecture: str, task: str, options: list[str], metric: str
) -> None:
    texts = [("ein hund", "a dog", "no"), ("eine katze", "a cat", "yes")] * 8
    for split in ("train", "validation"):
        rows = [{"text": source, "label": label} for source, _, label in texts]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        for side, ending in enumerate(("de", "en")):
            (tmp_path / f"{split}.{ending}").write_text("".join(f"{text[side]}\n" for text in texts))
    data = ["--task", task, "--data", str(tmp_path)]
    if task == "translation":
        data += ["--option", "source=de", "--option", "target=en"]
    model = str(tmp_path / "model")
    small = ["--layers", "1", "--width", "16", "--vocabulary", "300", *options]
    assert main(["new", architecture, *data, "--output", model, *small]) == 0
    words = ["train", model, *data, "--steps", "80", "--learning-rate", "0.02", "--batch-size", "8"]
    capsys.readouterr()
    assert main([*words, "--output", str(tmp_path / "runs"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["validations"]["80"]["metrics"]
    assert found[metric] > 90.0
