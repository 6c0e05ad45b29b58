"""Weights in ``pytorch_model.bin``: read without running code, refused by name when they ask for it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import forks
from attrim.cli import main
from attrim.errors import ArtefactError
from attrim.models.loading import load_model, load_tokenizer

LEGACY = {"_use_new_zipfile_serialization": False}
SHARDS = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]


class Hostile:
    """Unpickled as usual, it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "saved"
    load_model("tiny-bert", "sequence-classification").save_pretrained(folder)
    load_tokenizer("tiny-bert").save_pretrained(folder)
    return folder


@pytest.fixture
def weights(saved):
    """The model's tensors; the folder has none of them any more."""
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    return tensors


def write_index(folder, weight_map, name="pytorch_model.bin"):
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_shards(folder, weights, last=None):
    """The weights in two files; ``last`` is put into the second one besides."""
    names = sorted(weights)
    places = {name: SHARDS[number % 2] for number, name in enumerate(names)}
    for shard in SHARDS:
        content = {name: weights[name] for name in names if places[name] == shard}
        torch.save(content | ({"last": last} if last is not None and shard == SHARDS[1] else {}), folder / shard)
    write_index(folder, places)


def same(model):
    reference = load_model("tiny-bert", "sequence-classification").state_dict()
    loaded = model.state_dict()
    return loaded.keys() == reference.keys() and all(torch.equal(loaded[name], reference[name]) for name in loaded)


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
def test_one_file(saved, weights, options, caplog):
    torch.save(weights, saved / "pytorch_model.bin", **options)
    assert same(load_model(saved, "sequence-classification"))
    load_model(saved, "sequence-classification")
    notes = [record.message for record in caplog.records]
    assert notes == [
        f"The weights of {str(saved)!r} are read from pytorch_model.bin, a pickle, with torch's restricted unpickler, "
        "which runs no code from it."
    ]


def test_several_files(saved, weights):
    write_shards(saved, weights)
    assert same(load_model(saved, "sequence-classification"))
    (saved / SHARDS[1]).unlink()
    with pytest.raises(ArtefactError, match=f"index.json names '{SHARDS[1]}', which is missing"):
        load_model(saved, "sequence-classification")


def test_the_command_line_says_it(saved, weights):
    torch.save(weights, saved / "pytorch_model.bin")
    done = forks.run("-m", "attrim", "sites", str(saved))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("restricted unpickler") == len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("forced", ["0", "1"], ids=["", "unrestricted-by-environment"])
@pytest.mark.parametrize("shape", ["zip", "legacy", "plain", "shard"])
def test_a_hostile_file_is_refused_by_name(saved, weights, shape, forced, tmp_path, monkeypatch, capsys):
    """Code in the file does not run, even if the environment asks torch for the unrestricted unpickler."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", forced)
    marker, bad = tmp_path / "marker", saved / "pytorch_model.bin"
    hostile = {**weights, "last": Hostile(marker)}
    if shape == "shard":
        bad = saved / SHARDS[1]
        write_shards(saved, weights, Hostile(marker))
    elif shape == "plain":
        bad.write_bytes(pickle.dumps({"last": Hostile(marker)}, protocol=2))
    else:
        torch.save(hostile, bad, **(LEGACY if shape == "legacy" else {}))
    assert main(["sites", str(saved)]) == 2
    assert not marker.exists()
    error = capsys.readouterr().err
    assert error.startswith(f"attrim: {bad} asks to call posix.system, which could run any code, so it is refused;")
    assert len(error.splitlines()) == 1
    pickle.loads(pickle.dumps(Hostile(marker)))
    assert marker.exists()  # it would have run


def test_safetensors_come_first(saved, tmp_path):
    torch.save({"weight": Hostile(tmp_path / "marker")}, saved / "pytorch_model.bin")
    assert same(load_model(saved, "sequence-classification"))


@pytest.mark.parametrize("shard", ["../outside.bin", "/etc/outside.bin", "sub/outside.bin", "config.json", "..", 3])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_an_index_names_nothing_but_weights_beside_it(saved, weights, name, shard):
    write_index(saved, {"classifier.weight": shard}, name)
    with pytest.raises(
        ArtefactError, match=rf"{name}\.index\.json names '{shard}', which is not a .* so it is refused"
    ):
        load_model(saved, "sequence-classification")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": ["a.bin"]}'])
def test_a_damaged_index(saved, weights, text):
    (saved / "pytorch_model.bin.index.json").write_text(text)
    with pytest.raises(ArtefactError, match="is not an index of weights"):
        load_model(saved, "sequence-classification")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b"\x80\x04.", "is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is not a plain pickle of tensors"),
        ([torch.ones(2)], "is not a table of weights"),
        ({"model": {"weight": torch.ones(2)}}, "is not a table of weights"),
    ],
    ids=["empty", "cut", "pointer", "list", "nested"],
)
def test_files_that_are_no_weights(saved, weights, content, message):
    path = saved / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ArtefactError, match=rf"pytorch_model\.bin {message}") as caught:
        load_model(saved, "sequence-classification")
    assert "\n" not in str(caught.value)


def test_a_file_that_was_cut(saved, weights):
    path = saved / "pytorch_model.bin"
    torch.save(weights, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ArtefactError, match=r"pytorch_model\.bin is damaged"):
        load_model(saved, "sequence-classification")


FETCH = """
import os, sys
from pathlib import Path
from hub import served

with served(Path(sys.argv[1]), "someone/old") as endpoint:
    os.environ |= {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": sys.argv[2]}
    from attrim.errors import ArtefactError
    from attrim.models.loading import load_model

    def load():
        try:
            print(load_model("someone/old", "sequence-classification").config.hidden_size)
        except ArtefactError as error:
            print(error)

    load()
load()
"""


@pytest.mark.parametrize("hostile", [False, True])
def test_a_hub_model_with_nothing_else(saved, weights, tmp_path, hostile):
    """Fetched once, and found again in the cache when the hub has gone."""
    write_shards(saved, weights, Hostile(tmp_path / "marker") if hostile else None)
    command = [sys.executable, "-c", FETCH, str(saved), str(tmp_path / "home")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists()
    if hostile:
        assert f"{SHARDS[1]} asks to call posix.system" in done.stdout.splitlines()[0]
    else:
        assert done.stdout.split() == ["32", "32"]


@pytest.mark.parametrize("name", ["adapter_model.bin", "../other.safetensors", "/etc/x.safetensors", 3, ["a"]])
def test_a_configuration_names_nothing_but_safetensors_beside_it(saved, weights, name):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(ArtefactError, match="not a safetensors file beside it"):
        load_model(saved, "sequence-classification")


def test_an_index_that_the_configuration_names_is_checked(saved, weights):
    """transformers would unpickle whatever such an index names."""
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"transformers_weights": "my.safetensors.index.json"}))
    write_index(saved, {"classifier.weight": "pytorch_model.bin"}, "my.safetensors")
    with pytest.raises(ArtefactError, match=r"names 'pytorch_model\.bin', which is not a \.safetensors file"):
        load_model(saved, "sequence-classification")
