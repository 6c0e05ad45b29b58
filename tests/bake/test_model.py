"""A baked model is an ordinary model: it saves and loads, moves, copies, trains and generates."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

import attrim
from attrim.edits import Constant, Edit, Gate, Threshold
from attrim.errors import ArtefactError, ParameterError, ShapeError, SiteError
from attrim.loading import load_model, load_tokenizer
from attrim.select import Select
from attrim.tiny import tiny_tokenizer
from watching import assert_same, output_of
from zoo import ZOO, Animal, batch

POSITIONS = 40
ANIMALS = {animal.name: animal for animal in ZOO}
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


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


def edits_for(name: str) -> list[Edit]:
    gate = Gate(torch.tensor([1.0, 0.0, 0.5, 1.0]))
    return [gate] if name in ("bloom", "xlnet") else [Constant(noise(4, POSITIONS, POSITIONS), heads=[0, 1]), gate]


def baked_of(name: str, *edits: Edit) -> tuple[Any, Any]:
    model = ANIMALS[name].build()
    return model, attrim.bake(model, *(edits or edits_for(name)))


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
    sidecar.write_text(change(sidecar.read_text()))
    with pytest.raises(ArtefactError, match=message) as error:
        attrim.load(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_no_baked_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"baked\.json is missing"):
        attrim.load(tmp_path)
    _, baked = baked_of("bert")
    baked.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtefactError, match="could not be loaded"):
        attrim.load(tmp_path)


def test_copies_types_and_state(tmp_path: Path) -> None:
    _, baked = baked_of("bert")
    inputs = batch(ANIMALS["bert"], (7, 4))
    with torch.no_grad():
        expected = baked(**inputs).logits
        twin = copy.deepcopy(baked)
        assert torch.equal(twin(**inputs).logits, expected)
        twin.load_state_dict({name: tensor * 0.5 for name, tensor in twin.state_dict().items()})
        assert not torch.equal(twin(**inputs).logits, expected)
        twin.load_state_dict(baked.state_dict())
        assert torch.equal(twin(**inputs).logits, expected)
        assert torch.equal(baked(**inputs).logits, expected)
        half = copy.deepcopy(baked).to(torch.bfloat16)
        torch.testing.assert_close(half(**inputs).logits.float(), expected, atol=0.1, rtol=0.1)
        half.save_pretrained(tmp_path)
        assert attrim.load(tmp_path).dtype == torch.bfloat16
        whole = baked.to(torch.float64)
        torch.testing.assert_close(whole(**inputs).logits.float(), expected, atol=1e-5, rtol=1e-5)


def test_constants_are_buffers_and_the_rest_trains() -> None:
    model = ANIMALS["bert"].build()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    edits = edits_for("bert")
    baked = attrim.bake(model, *edits).train()
    assert not [name for name, _ in baked.named_parameters() if "matrix" in name]
    assert [name for name, _ in baked.named_buffers() if "matrix" in name]
    inputs = batch(ANIMALS["bert"], (7, 4))
    baked(**inputs).logits.square().sum().backward()
    with attrim.edit(model.train(), *edits):
        model(**inputs).logits.square().sum().backward()
    ours, theirs = dict(baked.named_parameters()), dict(model.named_parameters())
    for name in ("bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.intermediate.dense.weight"):
        torch.testing.assert_close(ours[name].grad, theirs[name].grad, atol=1e-5, rtol=1e-4)


def test_attention_dropout_reaches_constants() -> None:
    _, baked = baked_of("bert", Constant(noise(4, POSITIONS, POSITIONS)))
    inputs = batch(ANIMALS["bert"], (7, 7))
    for module in baked.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    baked.train()
    quiet = baked(**inputs).logits
    assert torch.equal(quiet, baked(**inputs).logits)
    for layer in baked.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    assert not torch.equal(quiet, baked(**inputs).logits)


def generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    return model.generate(
        **inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False, return_dict_in_generate=True,
        output_logits=True, pad_token_id=0, eos_token_id=2, **options,
    )  # fmt: skip


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "bart", "t5"])
def test_generation(name: str, everything: bool) -> None:
    animal: Animal = ANIMALS[name]
    edits = [Constant(noise(4, POSITIONS, POSITIONS))] if everything else edits_for(name)
    model, baked = baked_of(name, *edits)
    for lengths in ((6, 6), (6, 3)):
        inputs = batch(animal, lengths, side="right" if animal.eats == "pair" else "left")
        inputs = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
        with torch.no_grad():
            with attrim.edit(model, *edits):
                expected = generate(model, inputs)
            found = generate(baked, inputs)
        for one, other in zip(expected.logits, found.logits, strict=True):
            torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-3)


def test_only_cross_attention_is_constant() -> None:
    edits = [Constant(noise(4, POSITIONS, POSITIONS), select=Select(roles="cross"))]
    model, baked = baked_of("bart", *edits)
    inputs = {key: value for key, value in batch(ANIMALS["bart"], (6, 3)).items() if not key.startswith("decoder")}
    with torch.no_grad():
        with attrim.edit(model, *edits):
            expected = generate(model, inputs)
        found = generate(baked, inputs)
    for one, other in zip(expected.logits, found.logits, strict=True):
        torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-3)


def test_edits_and_stats_see_the_heads_that_are_left() -> None:
    for name in ("bert", "modernbert", "llama", "t5", "deberta", "gpt2"):
        model, baked = baked_of(name)
        sites = attrim.sites(baked)
        assert [site.heads for site in sites] == [2] * len(attrim.sites(model)), name
        inputs = batch(ANIMALS[name], (7, 4))
        stats = attrim.measure(baked, [inputs], [attrim.Mean()])
        assert stats["Mean"].matrix(sites[0].name).shape[0] == 2
        with torch.no_grad():
            plain = output_of(baked(**inputs))
            with attrim.edit(baked, Gate(1.0)):
                assert_same(output_of(baked(**inputs)), plain, ANIMALS[name], (7, 4), "right", torch.float32)
            with attrim.edit(baked, Threshold(0.2)):
                assert not torch.allclose(output_of(baked(**inputs)), plain)
            assert torch.equal(output_of(baked(**inputs)), plain)


def test_pipeline(tmp_path: Path) -> None:
    model = load_model("tiny-bert", "sequence-classification", new_head=True)
    baked = attrim.bake(model, Constant(noise(4, 64, 64), heads=[0, 1, 2]))
    answer = pipeline("text-classification", model=baked, tokenizer=load_tokenizer("tiny-bert"))
    assert answer("A short text.")[0]["score"] > 0


def test_trainer(tmp_path: Path) -> None:
    model = load_model("tiny-bert", "sequence-classification", new_head=True)
    baked = attrim.bake(model, Constant(noise(4, 64, 64), heads=[0, 1, 2]), Gate(0, select=Select(heads=[3])))
    tokenizer = tiny_tokenizer()
    data = [{**tokenizer("some text"), "labels": 1}, {**tokenizer("other text!"), "labels": 0}]
    arguments = TrainingArguments(
        str(tmp_path / "trainer"), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_steps=2, logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    before = baked.classifier.weight.clone()
    Trainer(model=baked, args=arguments, train_dataset=data, processing_class=tokenizer).train()
    assert not torch.equal(before, baked.classifier.weight)
    loaded = attrim.load(tmp_path / "trainer" / "checkpoint-2")
    assert torch.equal(loaded.classifier.weight, baked.classifier.weight)


def test_a_text_longer_than_the_matrices() -> None:
    model = ANIMALS["bert"].build()
    inputs = batch(ANIMALS["bert"], (7, 4))
    short = attrim.bake(model, Constant(noise(4, 5, 5), heads=[0]))
    with torch.no_grad(), pytest.raises(ShapeError, match="longer than the averages"):
        short(**inputs)
    zero = Constant(noise(4, 5, 5), heads=[0], outside="zero")
    with torch.no_grad(), attrim.edit(model, zero):
        expected = model(**inputs).logits
    torch.testing.assert_close(attrim.bake(model, zero)(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def test_order_of_edits() -> None:
    model = ANIMALS["bert"].build()
    constant = Constant(noise(4, POSITIONS, POSITIONS), heads=[0, 1])
    inputs = batch(ANIMALS["bert"], (7, 4))
    for edits in ([Gate(0.0, select=Select(heads=[0])), constant], [constant, Gate(0.0, select=Select(heads=[0]))]):
        with torch.no_grad():
            with attrim.edit(model, *edits):
                expected = model(**inputs).logits
            torch.testing.assert_close(attrim.bake(model, *edits)(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def test_refusals() -> None:
    model, baked = baked_of("bert")
    with pytest.raises(ParameterError, match="Threshold cannot be baked"):
        attrim.bake(model, Threshold(0.1))
    with pytest.raises(ParameterError, match="nothing to bake"):
        attrim.bake(model)
    with pytest.raises(ParameterError, match="baked already"):
        attrim.bake(baked, Gate(0, select=Select(heads=[0])))
    with pytest.raises(SiteError, match="one module"):
        attrim.bake(ANIMALS["albert"].build(), Gate(0, select=Select(layers=[0], heads=[1])))
    with pytest.raises(SiteError, match="sdpa or eager"):
        baked.set_attn_implementation("flex_attention")


def test_underneath_can_be_switched() -> None:
    _, baked = baked_of("llama")
    inputs = batch(ANIMALS["llama"], (7, 4))
    with torch.no_grad():
        fused = baked(**inputs).logits
        baked.set_attn_implementation("eager")
        torch.testing.assert_close(baked(**inputs).logits[0], fused[0], atol=1e-5, rtol=1e-4)
