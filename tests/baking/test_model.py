"""A baked model is an ordinary model: it moves, copies, trains and generates."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM, Trainer, TrainingArguments, pipeline

import attrim
from attrim.attention.discover import find_sites
from attrim.core.site import Select
from attrim.edits import Constant, Edit, Gate, Threshold
from attrim.errors import ParameterError, ShapeError, SiteError
from attrim.models.loading import load_model, load_tokenizer
from attrim.models.tiny import tiny_tokenizer
from baked_models import ANIMALS, POSITIONS, baked_of, edits_for, noise
from watching import assert_same, output_of
from zoo import Animal, batch


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


def assert_same_generation(model: Any, baked: Any, edits: list[Edit], inputs: dict[str, torch.Tensor]) -> None:
    """The baked model generates what the edited one does, from what the encoder (or the prompt) gets."""
    prompt = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
    with torch.no_grad():
        with attrim.edit(model, *edits):
            expected = generate(model, prompt)
        found = generate(baked, prompt)
    for one, other in zip(expected.logits, found.logits, strict=True):
        torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "bart", "t5"])
def test_generation(name: str, everything: bool) -> None:
    animal: Animal = ANIMALS[name]
    edits = [Constant(noise(4, POSITIONS, POSITIONS))] if everything else edits_for(name)
    model, baked = baked_of(name, *edits)
    for lengths in ((6, 6), (6, 3)):
        inputs = batch(animal, lengths, side="right" if animal.eats == "pair" else "left")
        assert_same_generation(model, baked, edits, inputs)


def test_only_cross_attention_is_constant() -> None:
    edits = [Constant(noise(4, POSITIONS, POSITIONS), select=Select(roles="cross"))]
    model, baked = baked_of("bart", *edits)
    assert_same_generation(model, baked, edits, batch(ANIMALS["bart"], (6, 3)))


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


def test_a_source_longer_than_the_matrices_of_cross_attention() -> None:
    """Every target has a row, but the last keys of the source have no column."""
    edit = Constant(noise(4, 8, 4), select=Select(roles="cross"))
    model, baked = baked_of("t5", edit)
    inputs = batch(ANIMALS["t5"], (8, 4))
    with torch.no_grad(), pytest.raises(ShapeError, match=r"5 x 8 positions.*8 x 4"):
        baked(**inputs)
    with torch.no_grad(), attrim.edit(model, edit, strict=False), pytest.raises(ShapeError, match="8 x 4"):
        model(**inputs)


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


@pytest.mark.parametrize(
    ("name", "edit", "left"),
    [
        ("tiny-bert", attrim.Gate(0, select=attrim.Select(layers=[0])), [("encoder", 1)]),
        ("tiny-bert", attrim.Constant(torch.rand(4, 8, 8), select=attrim.Select(layers=[0])), [("encoder", 1)]),
        ("tiny-gpt2", attrim.Gate(0, select=attrim.Select(layers=[0])), [("decoder", 1)]),
        (
            "tiny-bart",
            attrim.Gate(0, select=attrim.Select(layers=[0])),
            [("encoder", 1), ("decoder", 1), ("cross", 1)],
        ),
        (
            "tiny-bart",
            attrim.Gate(0, select=attrim.Select(layers=[0], roles=["decoder"])),
            [("encoder", 0), ("encoder", 1), ("cross", 0), ("decoder", 1), ("cross", 1)],
        ),
    ],
)
def test_layers_keep_their_numbers_where_others_lost_all_heads(
    name: str, edit: attrim.Edit, left: list[tuple[str, int]], tmp_path: Path
) -> None:
    model = attrim.load_model(name)
    before = {site.name: (site.role, site.layer) for site in attrim.sites(model)}
    baked = attrim.bake(model, edit)
    baked.save_pretrained(tmp_path)
    for one in (baked, attrim.load(tmp_path)):
        found = {site.name: (site.role, site.layer) for site in attrim.sites(one)}
        assert sorted(found.values()) == sorted(left)
        assert all(before[site] == place for site, place in found.items())


@pytest.mark.parametrize(("name", "kind"), [("tiny-llama", "causal-lm"), ("tiny-bert", "sequence-classification")])
def test_layers_keep_their_numbers_where_the_head_is_left_out(name: str, kind: str, tmp_path: Path) -> None:
    edit = attrim.Gate(0, select=attrim.Select(heads=[(0, 1)]))
    attrim.bake(attrim.load_model(name, kind), edit).save_pretrained(tmp_path)
    assert [site.layer for site in attrim.sites(attrim.load_model(str(tmp_path), "auto"))] == [0, 1]


@pytest.mark.parametrize("name", ["albert", "lxmert", "bart"])
def test_threads_do_not_share_how_far_a_pass_has_come(name: str) -> None:
    """Another thread runs the model between the first two calls of its attention."""
    model = ANIMALS[name].build()
    matrices = {site.name: noise(4, POSITIONS + place, POSITIONS) for place, site in enumerate(find_sites(model))}
    baked = attrim.bake(model, Constant(matrices, heads=[0, 1]))
    inputs, others = batch(ANIMALS[name], (9, 6)), batch(ANIMALS[name], (6, 9), seed=2)
    with torch.no_grad():
        expected = output_of(baked(**inputs))
    here, ran = threading.get_ident(), []

    def run_others(*_: Any) -> None:
        if threading.get_ident() == here and not ran:
            ran.append(True)
            other = threading.Thread(target=lambda: baked(**others))
            other.start()
            other.join()

    sites = [site for site in find_sites(model) if name != "bart" or site.role == "decoder"]
    hook = baked.get_submodule(sites[0].path).register_forward_hook(run_others)
    with torch.no_grad():
        found = output_of(baked(**inputs))
    hook.remove()
    assert ran
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["albert", "lxmert"])
def test_a_pass_after_one_that_failed_begins_anew(name: str) -> None:
    """Whether the model is called, or its forward is."""
    model = ANIMALS[name].build()
    matrices = {site.name: noise(4, POSITIONS + place, POSITIONS) for place, site in enumerate(find_sites(model))}
    baked = attrim.bake(model, Constant(matrices, heads=[0, 1]))
    inputs = batch(ANIMALS[name], (9, 6))

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    paths = [site.path for site in find_sites(model)]
    shared = next(path for path in paths if paths.count(path) > 1)
    with torch.no_grad():
        expected = output_of(baked(**inputs))
        for run in (baked, baked.forward):
            hook = baked.get_submodule(shared).register_forward_hook(fail)
            with pytest.raises(KeyboardInterrupt):
                baked.forward(**inputs)
            hook.remove()
            torch.testing.assert_close(output_of(run(**inputs)), expected)


def test_the_backbone_of_a_model_begins_anew_too() -> None:
    """After a pass of the whole model that failed, alone, copied and pickled."""
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=60,
        embedding_size=16,
        hidden_size=16,
        num_attention_heads=4,
        intermediate_size=24,
        num_hidden_layers=3,
    )
    model: Any = AlbertForMaskedLM(config).eval()
    matrices = {site.name: noise(4, 20 + place, 20) for place, site in enumerate(find_sites(model))}
    baked: Any = attrim.bake(model, Constant(matrices, heads=[0, 1]))
    ids = torch.randint(5, 60, (2, 9))
    shared = find_sites(model)[0].path
    for one in (baked, copy.deepcopy(baked), pickle.loads(pickle.dumps(baked))):
        with torch.no_grad():
            expected = one.albert(ids).last_hidden_state
            hook = one.get_submodule(shared).register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                one(ids)
            hook.remove()
            torch.testing.assert_close(one.albert(ids).last_hidden_state, expected)


def test_a_static_cache_has_no_room_for_constant_heads() -> None:
    _, baked = baked_of("gpt2")
    inputs = batch(ANIMALS["gpt2"], (5,))
    with pytest.raises(SiteError, match="constant heads, whose values a static cache has no room for"):
        baked.generate(**inputs, max_new_tokens=3, cache_implementation="static", pad_token_id=0)
    assert baked.generate(**inputs, max_new_tokens=3, pad_token_id=0, eos_token_id=None).shape == (1, 8)
