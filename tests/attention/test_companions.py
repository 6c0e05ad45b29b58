"""Edits together with what torch, accelerate and PEFT do to a model: each works, or is refused in one sentence."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attrim
from attrim.attention.context import attach, edit
from attrim.attention.discover import find_sites
from attrim.attention.install import switched
from attrim.core.site import Select
from attrim.errors import ParameterError, SiteError
from watching import Keep, Scale, eager, output_of
from zoo import ZOO, batch

BY_NAME = {animal.name: animal for animal in ZOO}


def bert() -> tuple[Any, dict[str, Tensor], Tensor]:
    """A model, a batch, and what the model gives on it when its attention is halved."""
    animal = BY_NAME["bert"]
    model, inputs = animal.build(), batch(animal)
    return model, inputs, halved(model, inputs)


def halved(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad(), edit(model, Scale(0.5)):
        return output_of(model(**inputs)).float()


def test_export_is_refused_inside() -> None:
    model, inputs, _ = bert()
    with pytest.raises(SiteError, match=r"torch\.export; bake Gate, Constant, Mask or Window"), edit(model, Scale(0.5)):
        torch.export.export(model, (), inputs)
    assert switched() == 0


COMPILED = """
import torch, attrim
from attrim.models.loading import load_model

model, inputs = load_model("tiny-bert"), {"input_ids": torch.arange(5, 12)[None]}
compiled = torch.compile(model, backend="eager")
with torch.no_grad():
    plain = model(**inputs)[0]
    with attrim.edit(model, attrim.Gate(0.5)):
        halved = model(**inputs)[0]
    assert not torch.allclose(plain, halved, atol=1e-3)
    for _ in range(2):
        with attrim.edit(model, attrim.Gate(0.5)):
            torch.testing.assert_close(compiled(**inputs)[0], halved)
        torch.testing.assert_close(compiled(**inputs)[0], plain)
"""


def run_apart(script: str) -> str:
    """What a script prints in a process of its own, because torch keeps tensors without numbers after tracing."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_compiled_models_are_edited() -> None:
    run_apart(COMPILED)


def test_a_copy_that_is_made_inside_names_the_implementation_of_before() -> None:
    model, inputs, _ = bert()
    plain = output_of(model(**inputs))
    with edit(model, Scale(0.5), strict=False):
        twin, config = copy.deepcopy(model), pickle.loads(pickle.dumps(model.config))
        written = json.loads(model.config.to_json_string(use_diff=False))
    for copied in (twin.config, config):
        assert type(copied._attn_implementation) is str
        assert copied._attn_implementation == "sdpa"
    assert "attrim" not in json.dumps(written)
    assert all(module.config._attn_implementation == "sdpa" for module in twin.modules() if hasattr(module, "config"))
    torch.testing.assert_close(output_of(twin(**inputs)), plain)
    torch.testing.assert_close(halved(twin, inputs), halved(model, inputs))


def gradients(model: Any, inputs: dict[str, Any], edits: list[Any], when: str, stats: Any = ()) -> Tensor:
    """The gradients of all parameters, with the backward pass inside of the context or after it."""
    model.zero_grad()
    with attach(model, edits, stats):
        if when == "enabled inside":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        loss = output_of(model(**inputs)).square().sum()
        if when == "inside":
            loss.backward()
    if when != "inside":
        loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


class Count(Keep):
    """Counts how often it sees each site."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def watch(self, tensor: Tensor, call: Any) -> None:
        self.seen.append(call.site.name)


@pytest.mark.parametrize("when", ["inside", "after", "enabled inside"])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["bert", "deberta", "llama", "t5"])
def test_gradient_checkpointing_edits_what_runs_again(name: str, reentrant: bool, when: str) -> None:
    animal = BY_NAME[name]
    model: Any = eager(animal.build())
    inputs = batch(animal)
    model.train()
    for module in model.modules():
        for rate in ("dropout", "attention_dropout", "dropout_prob", "p"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    first = find_sites(model)[0]
    edits = [Scale(0.5), Scale(3.0, select=Select(names=first.name))]
    expected = gradients(model, inputs, edits, "inside")
    if when != "enabled inside":
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found = gradients(model, inputs, edits, when, [count := Count()])
    torch.testing.assert_close(found, expected)
    assert sorted(count.seen) == sorted(site.name for site in find_sites(model))  # the repeats are not counted
    assert switched() == 0


def test_a_loss_outlives_its_model_under_gradient_checkpointing() -> None:
    model, inputs, _ = bert()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    weight = model.bert.embeddings.word_embeddings.weight
    with edit(model, Scale(0.5)):
        loss = output_of(model(**inputs)).square().sum()
    del model
    loss.backward()
    assert weight.grad is not None


def test_weights_on_the_meta_device_are_refused() -> None:
    model, inputs, _ = bert()
    with torch.device("meta"):
        empty = type(model)(model.config)
    with pytest.raises(SiteError, match="meta device, which holds no numbers; load the model"):
        find_sites(empty)
    model.bert.encoder.layer[1].to("meta")
    with pytest.raises(SiteError, match="meta device"), edit(model, Scale(0.5), example=inputs):
        raise AssertionError("must not be reached")


@pytest.mark.parametrize("way", ["cpu", "disk", "map"])
def test_offloaded_weights_work_and_are_not_baked(way: str, tmp_path: Path) -> None:
    from accelerate import cpu_offload, disk_offload, dispatch_model

    model, inputs, expected = bert()
    device = torch.device("cpu")
    if way == "cpu":
        cpu_offload(model, execution_device=device)
    elif way == "disk":
        disk_offload(model, tmp_path, execution_device=device)
    else:
        places = {"bert.embeddings": "cpu", "bert.encoder.layer.0": "disk", "bert.encoder.layer.1": "cpu"}
        places |= {"bert.pooler": "disk", "classifier": "cpu"}
        dispatch_model(model, places, main_device=device, offload_dir=tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(halved(model, inputs), expected)
    stats = attrim.measure(model, [inputs], [attrim.Mean()])
    assert len(stats[attrim.Mean].sites) == 2
    with pytest.raises(ParameterError, match=r"offloaded or on the meta device.*load the model without device_map"):
        attrim.bake(model, attrim.Gate(0.5))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_prepared_model_works(precision: str) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model, inputs, expected = bert()
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        tolerance = 1e-5 if precision == "no" else 0.1
        torch.testing.assert_close(halved(prepared, inputs), expected, atol=tolerance, rtol=tolerance)
        with edit(prepared, Scale(0.5)):
            accelerator.backward(output_of(prepared(**inputs)).square().sum())
        optimizer.step()
        attrim.measure(prepared, [inputs], [attrim.Mean()])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_a_model_of_peft_has_the_sites_of_the_model_inside() -> None:
    peft = pytest.importorskip("peft")
    model, inputs, _ = bert()
    names = [site.name for site in find_sites(model)]
    averages = attrim.measure(model, [inputs], [attrim.Mean()])[attrim.Mean]
    for task in (None, "SEQ_CLS"):
        config = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False, task_type=task)
        adapted = peft.get_peft_model(copy.deepcopy(model), config).eval()
        assert [site.name for site in find_sites(adapted)] == names
        with torch.no_grad(), edit(adapted, attrim.Constant(averages)):
            constant = output_of(adapted(**inputs))
        plain, changed = output_of(adapted(**inputs)), halved(adapted, inputs)
        assert not torch.allclose(changed, plain, atol=1e-3)
        assert not torch.allclose(constant, plain, atol=1e-3)
        attrim.measure(adapted, [inputs], [attrim.Mean()])
        with pytest.raises(ParameterError, match=r"or bake what its merge_and_unload\(\) returns"):
            attrim.bake(adapted, attrim.Gate(0.5))
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(output_of(attrim.bake(merged, attrim.Gate(0.5))(**inputs)), changed)


def test_prefix_tuning_works_with_a_mask_and_is_refused_without() -> None:
    peft = pytest.importorskip("peft")
    model, inputs, _ = bert()
    model = peft.get_peft_model(model, peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="SEQ_CLS")).eval()
    length = inputs["input_ids"].shape[1]
    with torch.no_grad(), attach(model, [Scale(0.5)], [keep := Keep()]):
        model(**inputs)
    assert all(weights.shape[-2:] == (length, length + 3) for weights in keep.tensors.values())
    with pytest.raises(SiteError, match="pass an attention_mask"), torch.no_grad(), edit(model, Scale(0.5)):
        model(input_ids=inputs["input_ids"])
