"""Models that carry masks, windows and entmax: they hold in every pass, and survive saving, loading and training."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import attrim
from attrim.attention.context import attach
from attrim.attention.dropping import whole_call
from attrim.cli import main
from attrim.core.call import Call
from attrim.core.site import Site
from attrim.core.text import parse_chain
from attrim.edits import (
    Constant,
    Edit,
    Entmax,
    Gate,
    Mask,
    MaskOutsideWindow,
    SparsePattern,
    Window,
    save_edits,
    saving,
)
from attrim.edits.bits import Packed
from attrim.edits.saving import read_carried
from attrim.errors import ArtefactError, ParameterError, ShapeError, SiteError
from attrim.models.loading import load_model
from baked_models import ANIMALS, noise
from damage import reseal
from watching import Keep, output_of
from zoo import ZOO, batch

TEXT = "A few words to measure.\nAnother line, which is longer than the first one.\n"
EDITS: dict[str, list[Edit]] = {
    "mask": [Mask(noise(4, 6, 6) < 0.4, "offset", "strongest")],
    "pattern": [SparsePattern(noise(4, 12, 12), 0.6, "head")],
    "window": [Window(2, first=1)],
    "mask outside window": [MaskOutsideWindow(noise(4, 5, 5) < 0.8, 2, first=1)],
    "both": [Mask(noise(1, 12, 12) < 0.3), Entmax(1.5)],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5", "deberta", "lxmert", "xlnet"])
def test_carried_equals_edited_and_is_saved(name: str, edits: list[Edit], tmp_path: Path) -> None:
    animal = ANIMALS[name]
    model = animal.build()
    inputs: dict[str, Any] = batch(animal, (7, 4))
    if animal.eats == "pair":
        inputs["use_cache"] = False
    baked = attrim.bake(model, *edits)
    baked.save_pretrained(tmp_path)
    loaded = attrim.load(tmp_path)
    assert loaded.state_dict().keys() == baked.state_dict().keys()
    with torch.no_grad():
        dense = output_of(model(**inputs))
        with attrim.edit(model, *edits):
            expected = output_of(model(**inputs))
        assert not torch.allclose(dense, expected)
        for other in (baked, loaded, copy.deepcopy(loaded)):
            torch.testing.assert_close(output_of(other(**inputs)), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(output_of(model(**inputs)), dense)  # the original carries nothing


def test_masks_are_buffers_and_move_with_the_model(tmp_path: Path) -> None:
    baked = attrim.bake(ANIMALS["bert"].build(), *EDITS["mask"])
    buffers = {name: tensor for name, tensor in baked.state_dict().items() if "attrim_carried.tensor" in name}
    assert [tensor.dtype for tensor in buffers.values()] == [torch.uint8, torch.int32]
    cells = EDITS["mask"][0].cells  # type: ignore[attr-defined]
    assert torch.equal(Packed(next(iter(buffers.values())), cells.shape[-1]).unpack(), cells)
    assert not any("attrim_carried" in name for name, _ in baked.named_parameters())
    half = baked.to(torch.bfloat16)
    assert half.state_dict()[next(iter(buffers))].dtype == torch.uint8
    with torch.no_grad():
        assert torch.isfinite(output_of(half(**batch(ANIMALS["bert"], (7, 4))))).all()
    half.save_pretrained(tmp_path)
    with torch.no_grad():
        again = output_of(attrim.load(tmp_path)(**batch(ANIMALS["bert"], (7, 4))))
    assert torch.isfinite(again).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_generation(name: str) -> None:
    animal = ANIMALS[name]
    model = animal.build()
    edits = [Mask(noise(4, 8, 8) < 0.4, "offset"), Window(4, first=1)]
    baked = attrim.bake(model, *edits)
    inputs = {key: value for key, value in batch(animal, (6, 6)).items() if not key.startswith("decoder")}
    for options in ({}, {"num_beams": 3}, {"cache_implementation": "static", "disable_compile": True}):
        if options.get("cache_implementation") and name != "llama":
            continue
        options |= {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        with torch.no_grad():
            with attrim.edit(model, *edits):
                expected = model.generate(**inputs, **options)
            assert torch.equal(baked.generate(**inputs, **options), expected)


@pytest.mark.parametrize("name", ["bart", "t5", "fsmt", "clip"])
def test_parts_that_are_called_alone(name: str, tmp_path: Path) -> None:
    """An encoder that a user takes out of the model, or that ``get_text_features`` calls, has the mask, too."""
    animal = ANIMALS[name]
    model, edits = animal.build(), [Mask(noise(4, 6, 6) < 0.4, "offset"), Window(4, first=1)]
    inputs = {key: value for key, value in batch(animal, (7, 4)).items() if key in ("input_ids", "attention_mask")}

    def alone(some: Any) -> torch.Tensor:
        if name == "clip":
            return output_of(some.get_text_features(**inputs))
        return output_of(some.get_encoder()(**inputs))

    baked = attrim.bake(model, *edits)
    baked.save_pretrained(tmp_path)
    with torch.no_grad():
        with attrim.edit(model, *edits, strict=False):
            expected = alone(model)
        assert not torch.allclose(alone(model), expected)
        for other in (baked, attrim.load(tmp_path), copy.deepcopy(baked)):
            torch.testing.assert_close(alone(other), expected, rtol=1e-4, atol=1e-5)


def test_what_is_watched_and_edited_beside_it() -> None:
    """Stats see the masked weights, and further edits apply, too."""
    animal = ANIMALS["bert"]
    baked = attrim.bake(animal.build(), Window(1))
    keep = Keep()
    with torch.no_grad(), attach(baked, [Gate(0.5)], [keep]):
        baked(**batch(animal, (5, 5)))
    for weights in keep.tensors.values():
        torch.testing.assert_close(weights, (0.5 * torch.eye(5)).expand_as(weights))


def test_training_keeps_the_mask(tmp_path: Path) -> None:
    animal = ANIMALS["bert"]
    baked = attrim.bake(animal.build(), *EDITS["pattern"]).train()
    before = {name: tensor.clone() for name, tensor in baked.state_dict().items() if "attrim_carried" in name}
    optimizer = torch.optim.SGD(baked.parameters(), lr=0.1)
    output_of(baked(**batch(animal, (7, 4)))).square().sum().backward()
    optimizer.step()
    baked.save_pretrained(tmp_path)
    loaded = attrim.load(tmp_path)
    assert before
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad(), attach(loaded, stats=[keep := Keep()]):
        loaded(**batch(animal, (7, 7)))
    cells = EDITS["pattern"][0].mask.cells[:, :7, :7]  # type: ignore[attr-defined]
    for weights in keep.tensors.values():
        assert (weights[:, cells] == 0).all()


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_backbone_carries_the_mask_without_its_head(name: str, tmp_path: Path) -> None:
    animal = ANIMALS[name]
    model = animal.build()
    baked = attrim.bake(model, Window(2))
    baked.save_pretrained(tmp_path)
    inputs = batch(animal, (7, 4))
    with torch.no_grad():
        with attrim.edit(model, Window(2)):
            expected = model.base_model(**inputs).last_hidden_state
        for other in (baked, attrim.load(tmp_path), copy.deepcopy(baked)):
            torch.testing.assert_close(other.base_model(**inputs).last_hidden_state, expected)


@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
def test_gradient_checkpointing_computes_the_masked_pass_again(name: str) -> None:
    animal = ANIMALS[name]
    inputs: dict[str, Any] = batch(animal, (7, 4))
    gradients = []
    for checkpointing in (False, True):
        baked = attrim.bake(animal.build(), Window(2, first=1)).train()
        for module in baked.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            for rate in ("dropout", "attention_dropout", "activation_dropout"):
                if isinstance(getattr(module, rate, None), float):
                    setattr(module, rate, 0.0)
        if checkpointing:
            baked.gradient_checkpointing_enable()
        output_of(baked(**inputs)).float().square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in baked.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients)


def test_another_head_on_the_same_backbone_carries_the_mask(tmp_path: Path) -> None:
    baked = attrim.bake(ANIMALS["bert"].build(), *EDITS["mask"])
    baked.save_pretrained(tmp_path)
    headless = load_model(str(tmp_path), kind="auto")
    assert type(headless).__name__ == "BertModel"
    inputs = batch(ANIMALS["bert"], (7, 4))
    inputs.pop("labels", None)
    with torch.no_grad():
        keep = Keep()
        with attach(headless, stats=[keep]):
            headless(**inputs)
    cells = EDITS["mask"][0].cells  # type: ignore[attr-defined]
    weights = next(iter(keep.tensors.values()))[:1, :, :6, :6]
    kept_rows = ~cells.all(-1)
    assert (weights[0][cells & kept_rows[..., None]] == 0).all()
    stock = AutoModel.from_pretrained(tmp_path)  # loads the weights alone, and says that it leaves buffers out
    assert not hasattr(stock, "attrim_carried")
    (tmp_path / "baked.json").unlink()
    with pytest.raises(ArtefactError, match=r"baked\.json is missing"):
        load_model(tmp_path)  # which keeps quiet about buffers that are left out


def test_a_mask_is_read_from_the_folder_of_a_model_and_of_edits(tmp_path: Path) -> None:
    baked = attrim.bake(ANIMALS["bert"].build(), *EDITS["mask"])
    baked.save_pretrained(tmp_path / "model")
    save_edits(EDITS["mask"], tmp_path / "edits")
    for folder in ("model", "edits"):
        (mask,) = parse_chain(f"mask:{tmp_path / folder}")
        assert isinstance(mask, Mask)
        assert torch.equal(mask.cells, EDITS["mask"][0].cells)  # type: ignore[arg-type, attr-defined]
        assert (mask.unseen, mask.empty) == ("offset", "strongest")
        (changed,) = parse_chain(f"mask:{tmp_path / folder},unseen=keep,empty=zero")
        assert (changed.unseen, changed.empty) == ("keep", "zero")  # type: ignore[attr-defined]
    assert read_carried(tmp_path / "edits") is None
    weights = tmp_path / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ArtefactError, match="safetensors has changed since it was saved"):
        parse_chain(f"mask:{tmp_path / 'model'}")
    weights.unlink()
    with pytest.raises(ArtefactError, match="safetensors: No such file"):
        parse_chain(f"mask:{tmp_path / 'model'}")
    save_edits([Gate(0.5)], tmp_path / "gate")
    with pytest.raises(ArtefactError, match="holds Gate, not one mask"):
        parse_chain(f"mask:{tmp_path / 'gate'}")
    save_edits([*EDITS["mask"], Window(3)], tmp_path / "two")
    with pytest.raises(ArtefactError, match="holds Mask, Window, not one mask"):
        parse_chain(f"mask:{tmp_path / 'two'}")
    with pytest.raises(ArtefactError, match="no saved edits"):
        parse_chain(f"mask:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_model_in_half_precision_keeps_the_same_cells(dtype: torch.dtype, tmp_path: Path) -> None:
    """In half precision a share of 0.5001 is 0.5, and its distance would be kept."""
    model, inputs = ANIMALS["bert"].build(), batch(ANIMALS["bert"], (19, 19))
    shares = 0.5 + (noise(4, 31) - 0.5) * 2e-4
    edit = Mask(noise(4, 3, 3) < 0.4, "offset", distances=shares)
    baked = attrim.bake(model, edit).to(dtype)
    baked.save_pretrained(tmp_path)
    for one in (baked, attrim.load(tmp_path), copy.deepcopy(baked)):
        (carried,) = one.base_model.attrim_carried.edits()
        assert torch.equal(carried.distances, shares)
    with torch.no_grad():
        found = output_of(baked(**inputs)).float()
        halved = copy.deepcopy(model).to(dtype)
        with attrim.edit(halved, edit):
            torch.testing.assert_close(found, output_of(halved(**inputs)).float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("before", ["old", "new"])
def test_floats_of_folders_of_before_and_now(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were float buffers; a state dict of one kind fits models of the other."""
    model, edit = ANIMALS["bert"].build(), Mask(noise(4, 9, 9) < 0.5, "offset")
    made = {"new": attrim.bake(model, edit)}
    with monkeypatch.context() as patch:
        patch.setattr(saving, "WORDS", {})
        made["old"] = attrim.bake(model, Mask(noise(4, 9, 9) < 0.2, "offset") if before == "new" else edit)
    kinds = {name: {buffer.dtype for buffer in one.base_model.attrim_carried.buffers()} for name, one in made.items()}
    assert torch.float32 in kinds["old"]
    assert torch.int32 in kinds["new"]
    other = made["old" if before == "new" else "new"]
    other.load_state_dict(made[before].state_dict())
    (found,) = other.base_model.attrim_carried.edits()
    (expected,) = made[before].base_model.attrim_carried.edits()
    assert torch.equal(found.distances, expected.distances)
    assert torch.equal(found.cells, expected.cells)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_folders_of_before_in_half_precision(
    kind: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = 0.5 + (noise(4, 31).to(kind) - 0.5) * 2e-4
    with monkeypatch.context() as patch:
        patch.setattr(saving, "WORDS", {})
        baked = attrim.bake(ANIMALS["bert"].build(), Mask(noise(4, 3, 3) < 0.4, "offset", distances=shares))
        baked.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert [tensor.dtype for name, tensor in saved.items() if name.endswith("attrim_carried.tensor_1")] == [kind]
    for load in (
        lambda: load_model(tmp_path, dtype="bfloat16"),
        lambda: attrim.load(tmp_path, dtype=torch.float16),
        lambda: attrim.load(tmp_path).half().float(),
    ):
        carrier = load().base_model.attrim_carried
        (carried,) = carrier.edits()
        assert torch.equal(carried.distances, shares)
        carrier.to("meta")
        assert {buffer.device.type for buffer in carrier.buffers()} == {"meta"}


def test_what_cannot_be_carried_is_refused() -> None:
    model = ANIMALS["bert"].build()
    for edits in ([attrim.Threshold(0.1)], [Window(2), attrim.Threshold(0.1)]):
        with pytest.raises(ParameterError, match="Threshold cannot be baked"):
            attrim.bake(model, *edits)


@pytest.fixture(scope="module")
def averages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("averages")
    (folder / "text.txt").write_text(TEXT)
    words = ["measure", "tiny-bert", "--task", "text", "--data", str(folder / "text.txt"), "--stats", "mean", "--quiet"]
    assert main([*words, "--output", str(folder / "mean")]) == 0
    return folder / "mean"


def test_on_the_command_line(averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pruned"
    words = ["bake", "tiny-bert", "--edit", f"pattern:{averages},tau=0.8,scope=head", "--output", str(folder)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "nominal 80.0%, effective" in shown
    assert "every score is computed" in " ".join(shown.split())
    edits = [f"pattern:{averages},tau=0.8,scope=head", f"mask:{folder}", "window:3,first=1", "entmax:1.5", "sparsemax"]
    task = ["--task", "retrieval", "--data", "built-in", "--limit", "5", "--option", "paragraphs=5"]
    flags = [word for edit in edits for word in ("--edit", edit)]
    capsys.readouterr()
    assert main(["evaluate", "tiny-bert", *task, *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    results = found["results"]
    assert results[edits[0]]["metrics"] == results[edits[1]]["metrics"]
    assert list(found["notes"]) == edits[:2]
    assert main(["evaluate", str(folder), *task, "--json"]) == 0
    carried = json.loads(capsys.readouterr().out)["results"]["unedited"]
    assert carried["metrics"] == results[edits[0]]["metrics"]
    assert all(results[edit]["zero_share"] > 0.01 for edit in edits[:3])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("pattern:{averages},tau=8", "not a percentage"),
        ("pattern:{averages}", "needs tau"),
        ("pattern:nowhere,tau=0.5", "no saved stats"),
        ("pattern:nowhere.npy,tau=0.5", "no file"),
        ("mask:{averages}", "no saved edits"),
        ("window:0", "at least 1"),
        ("entmax:1", "above 1"),
    ],
)
def test_bad_input(edit: str, message: str, averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bake", "tiny-bert", "--edit", edit.format(averages=averages), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_averages_of_another_model_are_refused(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bake", "tiny-roberta", "--edit", f"pattern:{averages},tau=0.5", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "pattern:" in capsys.readouterr().err


def test_edits_are_made_once(tmp_path: Path) -> None:
    """What is computed for an edit, such as a plan of cells, then serves all passes; a copy has edits of its own."""
    baked = attrim.bake(attrim.load_model("tiny-bert"), attrim.Mask(torch.rand(1, 64, 64) < 0.5))
    carrier = baked.base_model.attrim_carried
    (first,) = carrier.edits()
    assert carrier.edits()[0] is first
    copied = copy.deepcopy(baked).base_model.attrim_carried
    assert copied.edits()[0] is not first
    with torch.no_grad():
        copied.tensor_0.bitwise_not_()
    assert carrier.edits()[0] is first
    assert torch.equal(copied.edits()[0].cells, ~first.cells)


def change_entry(**fields: object) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["edits"]["entries"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_entry(name="nothing"), "There is no edit named"),
        (change_entry(fields={"cells": {"tensor": "none"}}), "none"),
        (change_entry(select={"rows": [1]}), "rows"),
        (lambda index: index["edits"].update(entries=3), "cannot be read"),
        (lambda index: index["edits"]["tensors"].clear(), "0.cells"),
        (lambda index: index["edits"]["tensors"].update({"0.cells": ["tensor_0", "int7", [1, 2, 2]]}), "int7"),
        (lambda index: index.update(edits=[1]), "cannot be read"),
    ],
)
def test_a_sidecar_of_edits_that_cannot_be_is_one_sentence(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a digest that fits; without one, files that changed are refused before anything is read of them."""
    attrim.bake(ANIMALS["bert"].build(), *EDITS["mask"]).save_pretrained(tmp_path)
    reseal(tmp_path / "baked.json", change)
    assert main(["sites", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert message in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["baked.json", "model.safetensors", "edits.json", "edits-*.safetensors"])
def test_truncated_files_are_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith("edits"):
        save_edits(EDITS["mask"], tmp_path)
    else:
        attrim.bake(ANIMALS["bert"].build(), *EDITS["mask"]).save_pretrained(tmp_path)
    (path,) = tmp_path.glob(name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["bake", "tiny-bert", "--edit", f"mask:{tmp_path}", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said.replace("\n", "")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (torch.zeros(4, 2000, 2000, dtype=torch.bool), "2000 positions, but the model has"),
        (torch.zeros(3, 8, 8, dtype=torch.bool), "for 3 heads"),
        ({"h.0.attn": torch.zeros(4, 8, 8, dtype=torch.bool)}, "made for another model"),
    ],
    ids=["longer than the model", "other heads", "another architecture"],
)
def test_masks_of_other_models_are_refused(
    cells: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_edits(Mask(cells), tmp_path / "mask")
    words = ["bake", "tiny-bert", "--edit", f"mask:{tmp_path / 'mask'}", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_plain_mask_of_another_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a model says what it is of, also where the mask names no sites; what a user builds fits any."""
    cells = torch.rand(4, 8, 8) < 0.5
    attrim.bake(attrim.load_model("tiny-bert"), Mask(cells)).save_pretrained(tmp_path / "bert")
    words = ["--edit", f"mask:{tmp_path / 'bert'}", "--output", str(tmp_path / "out"), "--even-if-slower"]
    assert main(["bake", "tiny-gpt2", *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "The mask was made for a bert model, not for a gpt2 one" in said
    assert not (tmp_path / "out").exists()
    (mask,) = parse_chain(f"mask:{tmp_path / 'bert'}")
    with pytest.raises(SiteError, match="made for a bert model"), attrim.edit(attrim.load_model("tiny-gpt2"), mask):
        raise AssertionError("must not be reached")
    assert main(["bake", "tiny-bert", *words, "--rounds", "1"]) == 0
    assert attrim.bake(attrim.load_model("tiny-gpt2"), Mask(cells)) is not None
    save_edits(Mask(cells), tmp_path / "by hand")
    assert main(["bake", "tiny-gpt2", "--edit", f"mask:{tmp_path / 'by hand'}", "--dry-run"]) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("kind", ["mask", "window"])
def test_a_mask_in_float32_for_a_model_in_half_precision(dtype: torch.dtype, gradients: bool, kind: str) -> None:
    """As SDPA takes it, on which the model ran."""
    model = ANIMALS["bert"].build().to(dtype)
    inputs = batch(ANIMALS["bert"], (9, 6))
    baked = attrim.bake(model, Window(4) if kind == "window" else Mask(torch.rand(4, 9, 9) < 0.3))
    additive = (1 - inputs["attention_mask"])[:, None, None, :].expand(-1, 1, 9, -1) * torch.finfo(torch.float32).min
    with torch.set_grad_enabled(gradients):
        expected = baked(**inputs)[0]
        found = baked(input_ids=inputs["input_ids"], attention_mask=additive)[0]
        assert model(input_ids=inputs["input_ids"], attention_mask=additive)[0].dtype == dtype
    torch.testing.assert_close(found, expected)


def change_through_numpy(mask: torch.Tensor) -> None:
    mask.numpy()[:, :, :, 4:] = mask.numpy().min() if mask.dtype != torch.bool else False


def change_data(mask: torch.Tensor) -> None:
    mask.data[:, :, :, 4:] = torch.finfo(torch.float32).min if mask.dtype != torch.bool else False


@pytest.mark.parametrize("how", ["model", "backbone", "edited backbone"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("change", [change_through_numpy, change_data])
@pytest.mark.parametrize("edits", [[Window(4)], [Constant(noise(4, 40, 40), heads=[0])]], ids=["window", "constant"])
def test_a_mask_that_changes_without_a_trace(
    how: str, dtype: torch.dtype, change: Callable[[torch.Tensor], None], edits: list[Edit]
) -> None:
    model, ids = ANIMALS["bert"].build(), batch(ANIMALS["bert"], (9, 9))["input_ids"]
    allowed = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    allowed[1, :, :, 7:] = False
    mask = allowed if dtype == torch.bool else torch.where(allowed, 0.0, torch.finfo(dtype).min)
    baked = attrim.bake(model, *edits)
    runs = baked if how == "model" else model.bert if how == "edited backbone" else baked.bert
    with torch.no_grad(), attrim.edit(model, *edits, strict=False) if how[0] == "e" else contextlib.nullcontext():
        before = runs(ids, attention_mask=mask)[0]
        version = mask._version
        change(mask)
        assert mask._version == version
        found = runs(ids, attention_mask=mask)[0]
        torch.testing.assert_close(found, runs(ids, attention_mask=mask.clone())[0])
    assert not torch.allclose(found, before, atol=1e-3)


def cut_last_head(attention: Any, replace: bool) -> None:
    """Cut the last head of a BERT by hand, with other projections or with other weights in the same ones."""
    width = attention.self.query.out_features - 4
    for name in ("query", "key", "value"):
        old = getattr(attention.self, name)
        new = torch.nn.Linear(16, width) if replace else old
        new.weight, new.bias = (torch.nn.Parameter(tensor.detach()[:width]) for tensor in (old.weight, old.bias))
        setattr(attention.self, name, new)
    attention.output.dense.weight = torch.nn.Parameter(attention.output.dense.weight.detach()[:, :width])
    attention.self.num_attention_heads, attention.self.all_head_size = width // 4, width


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    "edits",
    [
        [Mask(torch.rand(4, 9, 9) < 0.3)],
        [Window(4, select=attrim.Select(heads=[3]))],
        [Constant(noise(4, 40, 40), heads=[0])],
        [Constant(noise(4, 40, 40), heads=[0]), Window(4, select=attrim.Select(heads=[1, 2]))],
    ],
    ids=["mask", "window", "constant", "mixed"],
)
def test_heads_that_were_cut_by_hand_are_one_sentence(edits: list[Edit], replace: bool, gradients: bool) -> None:
    baked, inputs = attrim.bake(ANIMALS["bert"].build(), *edits), batch(ANIMALS["bert"], (9, 6))
    cut_last_head(baked.bert.encoder.layer[1].attention, replace)
    with (
        pytest.raises(SiteError, match=r"layer\.1\.attention\.self .* remove heads with Gate\(0\)"),
        torch.set_grad_enabled(gradients),
    ):
        baked(**inputs)


def test_distances_that_are_no_numbers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel would remove such cells, and the reference keep them."""
    cells, distances = torch.rand(4, 8, 8) < 0.5, torch.full((4, 15), 0.3)
    folder = save_edits(Mask(cells, "offset", distances=distances), tmp_path / "mask")
    distances[0, 3] = float("nan")
    with pytest.raises(ParameterError, match="contain NaN or infinity"):
        Mask(cells, "offset", distances=distances)
    object.__setattr__(mask := parse_chain(f"mask:{folder}")[0], "distances", distances)
    save_edits(mask, folder)
    assert main(["bake", "tiny-bert", "--edit", f"mask:{folder}", "--output", str(tmp_path / "out")]) == 2
    assert "contain NaN or infinity" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
def test_edits_hold_where_forward_is_called_and_not_the_model(name: str) -> None:
    animal = next(animal for animal in ZOO if animal.name == name)
    model = animal.build()
    baked, inputs = attrim.bake(model, Window(2)), batch(animal, (9, 9))
    backbone = baked.base_model
    with torch.no_grad():
        for each, stock in ((baked, model), (backbone, model.base_model)):
            expected = each(**inputs)[0]
            assert not torch.allclose(expected, stock(**inputs)[0])
            torch.testing.assert_close(each.forward(**inputs)[0], expected)
    assert "input_ids" in inspect.signature(type(backbone).forward).parameters


def test_a_mask_of_another_number_of_heads_is_refused_before_anything_is_baked() -> None:
    model = next(animal for animal in ZOO if animal.name == "bert").build()
    with pytest.raises(ShapeError, match="is for 3 heads but the site has"):
        attrim.bake(model, Mask(torch.rand(3, 8, 8) < 0.5))


@pytest.mark.parametrize("empty", ["zero", "strongest"])
@pytest.mark.parametrize("select", [{}, {"heads": [(0, 1)]}], ids=str)
def test_a_model_with_cut_heads_trains_after_passes_without_gradients(select: dict[str, Any], empty: Any) -> None:
    """What is kept of the edits is made in such a pass first: bake compares the models in one."""
    model, gone = ANIMALS["bert"].build(), Gate(0.0, select=attrim.Select(**select or {"heads": [1]}))
    edit = Mask(noise(4, 9, 9) < 0.5, empty=empty)
    baked, inputs = attrim.bake(model, gone, edit), batch(ANIMALS["bert"], (9, 7))
    with torch.inference_mode():
        baked(**inputs)
    output_of(baked(**inputs)).square().sum().backward()
    with attrim.edit(model, gone, edit):
        output_of(model(**inputs)).square().sum().backward()
    name = "bert.encoder.layer.1.output.dense.weight"
    torch.testing.assert_close(baked.get_parameter(name).grad, model.get_parameter(name).grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_state_dict_that_was_cast(dtype: torch.dtype) -> None:
    """Bits of cells survive that, and numbers do not."""
    model, cells = ANIMALS["bert"].build(), noise(4, 9, 9) < 0.5
    baked, other = attrim.bake(model, Mask(cells)), attrim.bake(model, Mask(~cells))
    other.load_state_dict({name: tensor.to(dtype) for name, tensor in baked.state_dict().items()})
    assert torch.equal(other.base_model.attrim_carried.edits()[0].removed(call_of(9)), cells[None])
    baked = attrim.bake(model, Mask(cells, "offset"))
    with pytest.raises(RuntimeError, match="numbers of edits, which must stay exact; cast the model"):
        baked.load_state_dict({name: tensor.to(dtype) for name, tensor in baked.state_dict().items()})


def test_bits_and_denormal_numbers_that_were_cast() -> None:
    model, cells, shares = ANIMALS["bert"].build(), noise(4, 9, 9) < 0.5, torch.full((4, 17), 0.3)
    shares[0, 0] = 1e-40
    for edit, dtype in ((Mask(cells), torch.bool), (Mask(cells, "offset", distances=shares), torch.float32)):
        baked = attrim.bake(model, edit)
        with pytest.raises(RuntimeError, match="numbers of edits, which must stay exact"):
            baked.load_state_dict({name: tensor.to(dtype) for name, tensor in baked.state_dict().items()})


def call_of(length: int) -> Call:
    """Self-attention of four heads over a whole text."""
    return whole_call(Site("one", "encoder", 0, 4), tuple(range(4)), (length, length))
