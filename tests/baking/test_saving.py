"""A baked model saves and loads, and folders that are no such thing are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import attrim
from attrim.core.site import Select
from attrim.edits import Constant, Edit, Gate
from attrim.errors import ArtefactError
from attrim.models.loading import load_model
from baked_models import ANIMALS, POSITIONS, baked_of, edits_for, noise
from damage import files_up_to, reseal
from watching import output_of
from zoo import batch

SAVED = (
    "bert",
    "albert",
    "modernbert",
    "deberta",
    "gpt2",
    "llama",
    "gpt_oss",
    "bart",
    "t5",
    "lxmert",
    "bloom",
    "xlnet",
)


@pytest.mark.parametrize("name", SAVED)
def test_saved_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    _, baked = baked_of(name)
    baked.save_pretrained(tmp_path)
    loaded = attrim.load(tmp_path)
    assert type(loaded).__name__ == type(baked).__name__
    assert loaded.state_dict().keys() == baked.state_dict().keys()
    for key, value in baked.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key]), key
    inputs = batch(ANIMALS[name], (7, 4))
    with torch.no_grad():
        assert torch.equal(output_of(baked(**inputs)), output_of(loaded(**inputs)))


def test_parts_that_were_left_out_stay_out(tmp_path: Path) -> None:
    stock = ANIMALS["bert"].build()
    bare = type(stock.bert)(stock.config, add_pooling_layer=False).eval()
    baked = attrim.bake(bare, *edits_for("bert"))
    baked.save_pretrained(tmp_path)
    loaded = attrim.load(tmp_path)
    assert loaded.pooler is None
    assert loaded.state_dict().keys() == baked.state_dict().keys()


def test_every_head_constant_is_saved_and_loaded(tmp_path: Path) -> None:
    for name in ("bert", "deberta_v2", "gpt2"):
        _, baked = baked_of(name, Constant(noise(1, POSITIONS, POSITIONS)))
        baked.save_pretrained(tmp_path / name)
        inputs = batch(ANIMALS[name], (7, 4))
        with torch.no_grad():
            assert torch.equal(output_of(baked(**inputs)), output_of(attrim.load(tmp_path / name)(**inputs)))


@pytest.mark.parametrize("edit", [Constant(noise(1, 40, 40)), Gate(0), Gate(0, select=Select(heads=[1]))])
@pytest.mark.parametrize("name", ["bert", "deberta", "deberta_v2", "gpt2", "llama", "t5"])
def test_stock_loading_fails_loudly(name: str, edit: Edit, tmp_path: Path) -> None:
    """It must neither make up random weights for those that are gone nor leave out the matrices in silence."""
    model, baked = baked_of(name, edit)
    baked.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        type(model).from_pretrained(tmp_path)


def test_factors_alone_leave_a_stock_model(tmp_path: Path) -> None:
    _, baked = baked_of("bert", Gate(torch.tensor([1.0, 0.5, 0.25, 2.0])))
    baked.save_pretrained(tmp_path)
    inputs = batch(ANIMALS["bert"], (7, 4))
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(stock(**inputs).logits, baked(**inputs).logits)


def test_load_model_knows_baked_folders(tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    inputs = batch(ANIMALS["bert"], (7, 4))
    with torch.no_grad():
        whole = load_model(tmp_path, "sequence-classification")
        assert torch.equal(whole(**inputs).logits, baked(**inputs).logits)
        body = load_model(tmp_path)
        assert torch.equal(body(**inputs).last_hidden_state, baked.bert(**inputs).last_hidden_state)
    with pytest.raises(ArtefactError, match="causal-lm"):
        load_model(tmp_path, "causal-lm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: "[]", "holds no baked"),
        (lambda text: json.dumps(json.loads(text) | {"format": 9}), "format 9"),
        (lambda text: json.dumps(json.loads(text) | {"layers": [{"path": "x"}]}), "cannot be read"),
        (lambda text: json.dumps(json.loads(text) | {"layers": 3}), "cannot be read"),
        (lambda text: json.dumps(json.loads(text) | {"class": "Nothing"}), "does not have"),
        (lambda text: json.dumps(json.loads(text) | {"module": "os", "class": "system"}), "does not have"),
        (lambda text: text.replace("layer.1.", "layer.7."), "no attention module"),
        (
            lambda text: json.dumps(json.loads(text, object_hook=lambda o: o | {"kept": [9]} if "kept" in o else o)),
            "fit",
        ),
        (
            lambda text: json.dumps(json.loads(text, object_hook=lambda o: o | {"kept": [1]} if "kept" in o else o)),
            "could",
        ),
        (lambda text: json.dumps(json.loads(text) | {"layers": []}), "could not be loaded"),
    ],
)
def test_a_damaged_sidecar_is_one_sentence(change: Any, message: str, tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    sidecar = tmp_path / "baked.json"
    text = change(sidecar.read_text())
    sidecar.write_text(text)
    if text.startswith("{") and text.endswith("}"):  # with a digest that fits: what is behind the digest holds, too
        reseal(sidecar, lambda index: index)
    with pytest.raises(ArtefactError, match=message) as error:
        attrim.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "baked.json"])
def test_a_flipped_bit_is_refused(name: str, tmp_path: Path) -> None:
    """Flipped bits in the weights were accepted, and wrong types in config.json ended in tracebacks."""
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-9] ^= 1
    (tmp_path / name).write_bytes(content)
    for load in (attrim.load, load_model):
        with pytest.raises(ArtefactError, match=r"changed since it was saved; bake|cannot be read"):
            load(tmp_path)


def test_a_wrong_type_behind_the_digest(tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    reseal(tmp_path / "baked.json", lambda index: index["layers"][0]["sites"][0].update(role=1))
    with pytest.raises(ArtefactError, match=r"'role' cannot be read: 1 is not a text"):
        attrim.load(tmp_path)


def test_weights_that_were_added_are_not_read(tmp_path: Path) -> None:
    """transformers prefers the one file to the parts that were saved."""
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path, max_shard_size="20KB")
    attrim.load(tmp_path)
    baked.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(ArtefactError, match=r"model\.safetensors is not part of what was saved"):
        attrim.load(tmp_path)


def test_saving_again_in_another_shape_and_beside_other_files(tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "README.md").write_text("mine")
    baked.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("model-*"))
    assert (tmp_path / "README.md").read_text() == "mine"
    inputs = batch(ANIMALS["bert"], (7, 4))
    with torch.no_grad():
        assert torch.equal(output_of(baked(**inputs)), output_of(attrim.load(tmp_path)(**inputs)))


def test_a_full_disk_leaves_the_old_model(tmp_path: Path) -> None:
    """Files cannot grow beyond a limit that the system enforces."""
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    with files_up_to(5_000):
        for folder in (tmp_path / "old", tmp_path / "new"):
            with pytest.raises(ArtefactError, match=f"no room left to write to {folder};"):
                baked.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_links_and_devices(tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "there")
    for place in (tmp_path / "loop", Path("/dev/null"), Path("/proc/attrim")):
        with pytest.raises(ArtefactError, match="cannot be"):
            baked.save_pretrained(place)
    baked.save_pretrained(tmp_path / "dangling")
    attrim.load(tmp_path / "there")
    baked.save_pretrained(tmp_path / "dangling")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "loop", "there"]


def test_what_is_no_baked_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"baked\.json is missing"):
        attrim.load(tmp_path)
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtefactError, match="could not be loaded"):
        attrim.load(tmp_path)
