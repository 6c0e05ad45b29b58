from __future__ import annotations

import json
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from attrim.core.site import Select, Site
from attrim.core.text import describe
from attrim.edits import (
    Constant,
    Edit,
    Gate,
    HiddenThreshold,
    Mask,
    MaskOutsideWindow,
    Mix,
    Quantize,
    RandomDrop,
    Threshold,
    Window,
    load_edits,
    save_edits,
)
from attrim.errors import ArtefactError, ParameterError
from damage import reseal

CELLS = torch.ones(1, 4, 4, dtype=torch.bool)


@pytest.fixture
def saved(tmp_path):
    edits = [Threshold(0.1), Gate({"a": torch.rand(3), "b": 0.5}), Mask({"a": torch.rand(1, 2, 2) > 0.5})]
    save_edits(edits, tmp_path)
    return tmp_path


def test_round_trip_of_nested_fields(tmp_path) -> None:
    factors = torch.rand(2, 3, dtype=torch.float64)
    whole = torch.rand(3, 8, 8)
    gate = Gate(factors, sites=[Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 3)])
    views = Constant({"a": whole[:, :4, :4], "b.c": whole}, heads=[("a", 1)], outside="zero")  # share their memory
    loaded_gate, loaded_views = load_edits(save_edits([gate, views], tmp_path))
    assert torch.equal(loaded_gate.factors, factors)
    assert loaded_gate.factors.dtype == torch.float64
    assert loaded_gate.sites == ("a", "b")
    assert {name: torch.equal(tensor, views.matrix[name]) for name, tensor in loaded_views.matrix.items()} == {
        "a": True,
        "b.c": True,
    }
    assert loaded_views.select == Select(heads=[("a", 1)])
    assert loaded_views.outside == "zero"


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Threshold(np.float32(0.5)), Threshold(0.5)),
        (Threshold(torch.tensor(0.5)), Threshold(0.5)),
        (Threshold(top=np.int64(3), renormalize=np.bool_(True)), Threshold(top=3, renormalize=True)),
        (Threshold(top=np.float32(0.5)), Threshold(top=0.5)),
        (RandomDrop(np.float64(0.25), seed=np.int64(3)), RandomDrop(0.25, seed=3)),
        (Window(np.int64(3), torch.tensor(1)), Window(3, 1)),
    ],
)
def test_numbers_of_other_libraries_are_plain_ones(given: Edit, plain: Edit, tmp_path) -> None:
    assert given == plain
    assert load_edits(save_edits(given, tmp_path)) == [plain]
    assert describe(given) == describe(plain)


def test_numbers_by_site_are_plain_too(tmp_path) -> None:
    learned = torch.tensor(0.5)
    gate = Gate({"a": np.float32(0.25), "b": learned})
    assert gate.factors["b"] is learned
    (loaded,) = load_edits(save_edits(gate, tmp_path))
    assert loaded.factors["a"] == 0.25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Threshold("a"), "'bar' of the edit 'threshold' cannot be 'a'; give a number"),
        (lambda: Threshold(0.1, renormalize="no"), "'renormalize' .* cannot be 'no'; give true or false"),
        (lambda: Gate("a"), "'factors' of the edit 'gate' cannot be 'a'; give a number"),
        (lambda: Gate({"a": "b"}), "'factors' of the edit 'gate' cannot be 'b'"),
        (lambda: Mix(torch.ones(1, 2, 2), "a"), "'lambdas' .* cannot be 'a'"),
        (lambda: RandomDrop("a"), "'share' .* cannot be 'a'"),
        (lambda: Quantize("linear", bits=3, prune="a"), "'prune' .* cannot be 'a'"),
        (lambda: Quantize("linear", bits="3"), "'bits' .* cannot be '3'; give a whole number"),
        (lambda: HiddenThreshold(None), "'bar' .* cannot be None"),
        (lambda: Window(2.5), "'size' of the edit 'window' cannot be 2.5; give a whole number"),
        (lambda: Window(3.0), "'size' .* cannot be 3.0; give a whole number"),
        (lambda: Window(np.float64(3)), "'size' .* cannot be 3.0; give a whole number"),
        (lambda: Window(True), "'size' .* cannot be True; give a whole number"),
        (lambda: Threshold(np.bool_(True)), "'bar' .* cannot be True; give a number"),
        (lambda: Threshold(0.1, renormalize=1), "'renormalize' .* cannot be 1; give true or false"),
        (lambda: Gate({"a": True}), "'factors' .* cannot be True; give a number"),
        (lambda: MaskOutsideWindow(CELLS, 2, False), "'first' .* cannot be False; give a whole number"),
        (lambda: MaskOutsideWindow({}, 3), "nothing in cells; give one tensor"),
        (lambda: Mask({}), "nothing in cells; give one tensor"),
        (lambda: Constant({}), "nothing in matrix; give one tensor"),
    ],
)
def test_what_does_not_fit_is_one_sentence(make: Callable[[], Edit], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()


def test_one_edit_and_none(tmp_path) -> None:
    assert load_edits(save_edits(Threshold(0.1), tmp_path)) == [Threshold(0.1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edits.json"]
    assert load_edits(save_edits([], tmp_path)) == []


def test_saving_again_replaces_and_leaves_nothing_behind(saved) -> None:
    save_edits(Gate(torch.ones(3)), saved)
    (edit,) = load_edits(saved)
    assert torch.equal(edit.factors, torch.ones(3))
    assert len(list(saved.iterdir())) == 2


@pytest.mark.parametrize("failing", ["files.replace_tensors", "files.file_digest", "artefact.replace_file"])
def test_a_failed_save_keeps_the_old_edits(saved, monkeypatch, failing: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"attrim.runs.{failing}", fail)
    with pytest.raises(ArtefactError, match="No space left on device"):
        save_edits(Gate(torch.zeros(3)), saved)
    monkeypatch.undo()
    assert load_edits(saved)[0] == Threshold(0.1)
    save_edits(Threshold(0.2), saved)
    assert [path.name for path in saved.iterdir()] == ["edits.json"]


def test_an_unwritable_place_is_one_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="choose another folder"):
        save_edits(Threshold(0.1), tmp_path / "file" / "folder")


def test_missing(tmp_path) -> None:
    with pytest.raises(ArtefactError, match="there is no such folder"):
        load_edits(tmp_path / "nowhere")
    with pytest.raises(ArtefactError, match=r"edits\.json is missing"):
        load_edits(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_truncated_json(saved, size: int) -> None:
    path = saved / "edits.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtefactError, match="cannot be read"):
        load_edits(saved)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damaged_tensors(saved, damage: str) -> None:
    (path,) = saved.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[:-3])
    elif damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        os.unlink(path)
    with pytest.raises(ArtefactError, match="cannot be read"):
        load_edits(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(format=99), "format 99"),
        (lambda index: index["edits"][0].update(name="treshold"), "did you mean 'threshold'"),
        (lambda index: index["edits"][0]["fields"].update(barr=1), "barr"),
        (lambda index: index["edits"][0]["fields"].update(bar=-1), "negative"),
        (lambda index: index["edits"][0].pop("fields"), "fields"),
        (lambda index: index["edits"][1]["fields"]["factors"]["mapping"]["a"].update(tensor="9.x"), "9.x"),
        (lambda index: index["edits"].append(3), "cannot be read"),
        (lambda index: index.update(edits={}), "does not list edits"),
        (lambda index: index.update(tensors="../other.safetensors"), "not a file of this folder"),
        (lambda index: index["edits"][0]["select"].update(rules=["encoder"]), "rules"),
    ],
)
def test_json_that_does_not_fit(saved, change, message: str) -> None:
    path = saved / "edits.json"
    reseal(path, lambda index: [change(index), index][1])
    with pytest.raises(ArtefactError, match=message):
        load_edits(saved)


def test_a_selection_that_was_changed_by_hand(saved) -> None:
    """It was not noticed when only the tensors had a digest."""
    path = saved / "edits.json"
    index = json.loads(path.read_text())
    index["edits"][0]["select"]["heads"] = [[None, 1]]
    path.write_text(json.dumps(index))
    with pytest.raises(ArtefactError, match=r"edits\.json has changed since it was saved"):
        load_edits(saved)
