"""Baked models that torch traces, maps over and differentiates: each gives what the edited model gives."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import attrim
from attrim.edits import Constant, Edit, Gate, Mask, Window
from attrim.errors import SiteError
from baked_models import ANIMALS, noise
from zoo import batch

CELLS = noise(4, 64, 64) < 0.4
KINDS: dict[str, list[Edit]] = {
    "removed": [Gate(0, select=attrim.Select(heads=[1]))],
    "constant": [Constant(noise(4, 64, 64), heads=[0, 1])],
    "all constant": [Constant(noise(4, 64, 64))],
    "mask": [Mask(CELLS, unseen="offset")],
    "window": [Window(4, first=1)],
    "mixed": [Constant(noise(4, 64, 64), heads=[0]), Mask(CELLS, select=attrim.Select(heads=[1, 2]))],
}
ASKING = [kind for kind in KINDS if kind != "removed"]
"""Those that ask which tokens are real; the stock code of the others decides by the numbers of a mask itself."""


def built(name: str, kind: str, implementation: str = "sdpa") -> tuple[Any, Any]:
    """A model, and the same model baked."""
    model = ANIMALS[name].build()
    model.config.use_cache = False  # type: ignore[union-attr]
    model.set_attn_implementation(implementation)  # type: ignore[operator]
    return model, attrim.bake(model, *KINDS[kind])


def real(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """What a model gives for the real tokens."""
    return output[inputs["attention_mask"].bool()] if output.ndim == 3 else output


def expected(model: Any, kind: str, inputs: dict[str, Tensor]) -> Tensor:
    with attrim.edit(model, *KINDS[kind]):
        return real(model(**inputs)[0], inputs).detach()


EXPORTED = """
import sys
import torch
from test_tracing import ANIMALS, KINDS, attrim, batch, built, expected, real

name, seen, others = "{name}", batch(ANIMALS["{name}"], (9, 9)), batch(ANIMALS["{name}"], (5, 7, 3), seed=1)
examples, tokens = torch.export.Dim("examples", min=2, max=8), torch.export.Dim("tokens", min=2, max=40)
sizes = dict.fromkeys(seen, {{0: examples, 1: tokens}}) if name in ("bert", "gpt2") else None
for kind in KINDS:
    model, baked = built(name, kind)
    with torch.no_grad():
        exported = torch.export.export(baked, (), seen, dynamic_shapes=sizes).module()
        for inputs in (seen, others if sizes else batch(ANIMALS[name], (5, 9), seed=1)):
            wanted = expected(model, kind, inputs)
            for each in (exported, baked):  # nothing of the tracing is left in the model
                torch.testing.assert_close(real(each(**inputs)[0], inputs), wanted, atol=1e-5, rtol=1e-4)
"""


def run_apart(script: str) -> None:
    """Run a script in a process of its own, because torch keeps tensors without numbers after tracing."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "deberta_v2"])
def test_exported_models_know_which_tokens_are_real(name: str) -> None:
    """They are exported with a batch without padding, and used for one with it."""
    run_apart(EXPORTED.format(name=name))


LOADED = """
import tempfile
import torch
from test_tracing import ANIMALS, KINDS, attrim, batch, built

inputs, folder = batch(ANIMALS["bert"], (9, 9)), tempfile.mkdtemp()
built("bert", "mixed")[1].save_pretrained(folder)
loaded = attrim.load(folder).eval()
try:
    torch.export.export(loaded, (), inputs)
except attrim.errors.SiteError as error:
    assert "run the model once" in str(error), error
else:
    raise AssertionError("exported")
with torch.no_grad():
    wanted = loaded(**inputs)[0]
    torch.testing.assert_close(torch.export.export(loaded, (), inputs).module()(**inputs)[0], wanted)
"""


@pytest.mark.slow
def test_a_model_that_never_ran_is_not_exported() -> None:
    run_apart(LOADED)


def test_a_model_that_never_ran_is_not_derived() -> None:
    _, baked = built("bert", "window")
    never_ran, inputs = copy.deepcopy(baked), batch(ANIMALS["bert"], (9, 9))
    never_ran.set_attn_implementation("eager")

    def total(states: Tensor) -> Tensor:
        return never_ran(inputs_embeds=states)[0].sum()

    states = torch.rand(2, 9, 16)
    with pytest.raises(SiteError, match=r"run the model once.* torch\.func"):
        grad(total)(states)
    never_ran(**inputs)
    assert grad(total)(states).abs().sum() > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "deberta_v2"])
def test_traced_models_know_which_tokens_are_real(name: str, kind: str) -> None:
    model, baked = built(name, kind)
    seen, others = (
        batch(ANIMALS[name], (9, 9)),
        batch(ANIMALS[name], (5, 9) if name == "deberta_v2" else (5, 7), seed=1),
    )
    with torch.no_grad():
        traced: Any = torch.jit.trace(baked, example_kwarg_inputs=seen, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
        for inputs in (seen, others):
            found = traced(**inputs)
            first = found[0] if isinstance(found, tuple) else next(iter(found.values()))
            torch.testing.assert_close(real(first, inputs), expected(model, kind, inputs), atol=1e-5, rtol=1e-4)


def test_a_traced_text_longer_than_the_matrices_is_refused() -> None:
    model, inputs = ANIMALS["bert"].build(), batch(ANIMALS["bert"], (9, 9))
    baked = attrim.bake(model, Constant(noise(4, 6, 6)))
    with pytest.raises(attrim.errors.ShapeError, match="longer than the averages"):
        torch.jit.trace(baked, example_kwarg_inputs=inputs, strict=False, check_trace=False)  # type: ignore[no-untyped-call]


COMPILED = """
import torch
import warnings
from test_tracing import ANIMALS, KINDS, batch, built, expected, real

inputs = [batch(ANIMALS["bert"], lengths, seed=1) for lengths in ((9, 9), (5, 9), (20, 20), (20, 17))]
for kind in KINDS:
    model, baked = built("bert", kind)
    compiled = torch.compile(baked, backend="eager")
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), warnings.catch_warnings(record=True) as said:
            for each in inputs:
                torch.testing.assert_close(compiled(**each)[0], expected(model, kind, each), atol=1e-5, rtol=1e-4)
        assert not [str(each.message) for each in said if "attrim" in str(each.message)]
"""


@pytest.mark.slow
def test_compiled_models_are_the_edited_ones() -> None:
    run_apart(COMPILED)


def with_states(model: Any, inputs: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """The model as a function of the states of its tokens."""
    return lambda states: real(model(inputs_embeds=states, attention_mask=inputs["attention_mask"])[0], inputs)


def by_jvp(function: Callable[[Tensor], Tensor], states: Tensor, direction: Tensor) -> Tensor:
    found: Tensor = jvp(function, (states,), (direction,))[1]
    return found


def by_dual_numbers(function: Callable[[Tensor], Tensor], states: Tensor, direction: Tensor) -> Tensor:
    with forward_ad.dual_level():
        found: Tensor = forward_ad.unpack_dual(function(forward_ad.make_dual(states, direction))).tangent
        return found


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("way", [by_jvp, by_dual_numbers])
@pytest.mark.parametrize("lengths", [(9, 9), (9, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_forward_mode(kind: str, lengths: tuple[int, ...], way: Any, gradients: bool) -> None:
    model, baked = (each.double() for each in built("bert", kind, "eager"))
    inputs = batch(ANIMALS["bert"], lengths)
    states = model.get_input_embeddings()(inputs["input_ids"]).detach()
    direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(5), dtype=states.dtype)
    with torch.set_grad_enabled(gradients):
        found = way(with_states(baked, inputs), states, direction)
    step = 1e-5 * direction
    with torch.no_grad(), attrim.edit(model, *KINDS[kind]):
        function = with_states(model, inputs)
        difference = (function(states + step) - function(states - step)) / 2e-5
    torch.testing.assert_close(found.detach(), difference, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ASKING)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_functions_of_torch_func(name: str, kind: str) -> None:
    model, baked = built(name, kind, "eager")
    inputs = batch(ANIMALS[name], (9, 6))
    states, mask = model.get_input_embeddings()(inputs["input_ids"]).detach(), inputs["attention_mask"]
    with torch.no_grad():
        mapped = vmap(lambda one, its: baked(inputs_embeds=one[None], attention_mask=its[None])[0][0])(states, mask)
    with torch.no_grad(), attrim.edit(model, *KINDS[kind]):
        wanted = with_states(model, inputs)(states)
    torch.testing.assert_close(real(mapped, inputs), wanted, atol=1e-5, rtol=1e-4)
    found = grad(lambda these: with_states(baked, inputs)(these).square().sum())(states)
    tracked = states.clone().requires_grad_()
    with attrim.edit(model, *KINDS[kind]):
        (gradient,) = torch.autograd.grad(with_states(model, inputs)(tracked).square().sum(), tracked)
    torch.testing.assert_close(real(found, inputs), real(gradient, inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_and_buffers_in_one_call(kind: str) -> None:
    """What a call is given is used in it, and not kept for the next one."""
    _, baked = built("bert", kind)
    inputs = batch(ANIMALS["bert"], (9, 6))
    other = attrim.bake(ANIMALS["bert"].build(), *KINDS[kind])
    with torch.no_grad():
        for name, buffer in other.named_buffers():
            if "attrim" in name and buffer.dtype != torch.uint8 and "marker" not in name:
                buffer.copy_(buffer.flip(-1))
            elif buffer.dtype == torch.uint8:
                buffer.bitwise_not_()
        for parameter in other.parameters():
            parameter.mul_(1.01)
        before = baked(**inputs)[0]
        found = functional_call(baked, dict(other.state_dict()), (), inputs)[0]
        torch.testing.assert_close(found, other(**inputs)[0])
        assert torch.equal(baked(**inputs)[0], before)
    assert not torch.allclose(found, before, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind: str) -> None:
    model, baked = built("bert", kind)
    inputs = batch(ANIMALS["bert"], (9, 6))
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
            found = baked(**inputs)[0]
        torch.testing.assert_close(found.detach().float(), expected(model, kind, inputs), atol=0.1, rtol=0.1)
