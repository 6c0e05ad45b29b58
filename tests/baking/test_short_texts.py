"""A baked model does no more in a pass over a short text than the stock model does."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

import attrim
from attrim.attention import dropping
from attrim.baking.carrying import Carrier, carrying
from attrim.core.site import Select
from attrim.edits import Edit, Mask, Window
from attrim.edits.saving import CARRIER
from attrim.kernels import team, ways
from baked_models import noise
from watching import TorchCalls

pytestmark = pytest.mark.skipif(
    not team.available() or team.PATHS[team.path()] == "torch", reason="the compiled passes are not used here"
)
SIZES: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    config: Any = BertConfig if kind == "bert" else LlamaConfig
    made: Any = BertModel if kind == "bert" else LlamaModel
    model = made(config(**SIZES, num_hidden_layers=3, num_key_value_heads=2)).eval()
    model.set_attn_implementation("sdpa")
    return model


def text(length: int, batch: int = 2) -> dict[str, Tensor]:
    tokens = torch.randint(5, 60, (batch, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def calls_of(model: Any, inputs: dict[str, Tensor]) -> list[str]:
    """What torch is asked to do in the second pass."""
    with torch.inference_mode():
        model(**inputs, use_cache=False)
        with TorchCalls() as calls:
            model(**inputs, use_cache=False)
    return calls.names


@pytest.mark.parametrize("length", [1, 2, 16])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_tiny_texts_of_which_everything_is_kept_equal_the_stock_model(kind: str, length: int) -> None:
    stock, inputs = model_of(kind), text(length)
    baked = attrim.bake(stock, Window(33, 2))
    with torch.inference_mode():
        expected = stock(**inputs).last_hidden_state
        for _ in range(2):  # the second pass repeats the calls of the first
            torch.testing.assert_close(baked(**inputs).last_hidden_state, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [17, 32])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_what_keeps_everything_of_a_text_runs_as_the_stock_model(
    kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, inputs = model_of(kind), text(length)
    baked = attrim.bake(stock, Window(33, 2))
    asked: list[tuple[Tensor | None, bool]] = []
    plain = functional.scaled_dot_product_attention

    def attend(*tensors: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **rest: Any) -> Tensor:
        asked.append((attn_mask, is_causal))
        return plain(*tensors, attn_mask=attn_mask, is_causal=is_causal, **rest)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    with torch.inference_mode():
        expected = stock(**inputs).last_hidden_state
        by_stock = asked.copy()
        asked.clear()
        found = baked(**inputs).last_hidden_state
    assert torch.equal(found, expected)
    assert asked == by_stock == [(None, kind == "llama")] * 3


@pytest.mark.parametrize("edit", [Window(3, 1), Mask(noise(4, 40, 40) < 0.5)], ids=["window", "mask"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("length", [9, 16, 40])
def test_no_more_calls_than_the_stock_model(kind: str, edit: Edit, length: int) -> None:
    stock, inputs = model_of(kind), text(length)
    baked = attrim.bake(stock, edit)
    expected, found = calls_of(stock, inputs), calls_of(baked, inputs)
    assert sum("scaled_dot_product" in name for name in expected) == 3
    # In place of SDPA, the kernel asks for room for the output.
    assert len(found) <= len(expected) + 3


def test_plans_of_short_texts_are_made_once_for_lengths_that_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of a long plan lie in another order, so that those of a short text would be in all of its blocks."""
    made: list[tuple[int, ...]] = []
    real = dropping.make_plan

    def spy(call: Any, *arguments: Any, **options: Any) -> Any:
        made.append(tuple(call.allowed.shape[-2:]))
        return real(call, *arguments, **options)

    monkeypatch.setattr(dropping, "make_plan", spy)
    baked = attrim.bake(model_of("bert"), Mask(noise(4, 300, 300) < 0.6))
    made.clear()
    with torch.inference_mode():
        for length in (17, 130, 64, 100, 24, 65, 128, 200, 33, 3):
            baked(**text(length))
    # Bake itself ran a text of up to 16 tokens.
    assert sorted(set(made)) == [(size, size) for size in (32, 64, 128, 256)]
    assert len(made) == 4 * baked.config.num_hidden_layers


@pytest.mark.parametrize("length", [5, 16, 17, 60])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("edit", [Window(3, 1), Window(20), Mask(noise(4, 40, 40) < 0.5)], ids=["3", "20", "mask"])
def test_short_texts_with_padding_equal_the_reference(kind: str, edit: Edit, length: int) -> None:
    stock = model_of(kind)
    baked = attrim.bake(stock, edit)
    for padded in (0, 1, length // 2):
        inputs = text(length)
        inputs["attention_mask"][1, length - padded :] = 0
        real = inputs["attention_mask"].bool()
        with attrim.edit(stock, edit), torch.enable_grad():  # with gradients the reference runs
            expected = stock(**inputs).last_hidden_state
        with torch.inference_mode():
            for _ in range(2):  # the second time with what was kept of the first
                found = baked(**inputs).last_hidden_state
                torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


PASSES = st.lists(
    st.tuples(
        st.sampled_from([5, 9, 16]),
        st.integers(1, 3),
        st.sampled_from(["none", "right", "left"]),
        st.sampled_from(["inference", "no gradients", "gradients"]),
        st.sampled_from([torch.float32, torch.bfloat16]),
        st.sampled_from([1, 2]),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=25)
@given(kind=st.sampled_from(["bert", "llama"]), edit=st.sampled_from([Window(3, 1), Window(20)]), passes=PASSES)
def test_a_text_has_the_same_output_whatever_ran_before_it(
    kind: str, edit: Edit, passes: list[tuple[int, int, str, str, torch.dtype, int]]
) -> None:
    stock = model_of(kind)
    baked, threads = attrim.bake(stock, edit), torch.get_num_threads()
    modes = {"inference": torch.inference_mode, "no gradients": torch.no_grad, "gradients": torch.enable_grad}
    try:
        for length, batch, padding, mode, dtype, count in passes:
            torch.set_num_threads(count)
            inputs = text(length, batch)
            if padding != "none":
                inputs["attention_mask"][-1, slice(-2, None) if padding == "right" else slice(2)] = 0
            real = inputs["attention_mask"].bool()
            with attrim.edit(stock.to(dtype), edit), torch.enable_grad():  # the reference
                expected = stock(**inputs).last_hidden_state
            with modes[mode]():
                found = baked.to(dtype)(**inputs).last_hidden_state
            error = 1e-5 if dtype == torch.float32 else 0.1
            torch.testing.assert_close(found[real], expected[real], rtol=10 * error, atol=error)
    finally:
        torch.set_num_threads(threads)


def test_a_call_like_the_last_one_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    baked, looked_up = attrim.bake(model_of("bert"), Window(3)), []
    plan = dropping._plan
    monkeypatch.setattr(dropping, "_plan", lambda *args: looked_up.append(True) or plan(*args))  # type: ignore[func-returns-value]
    with torch.inference_mode():
        for length, expected in ((9, 3), (9, 0), (12, 3), (9, 3)):
            looked_up.clear()
            baked(**text(length))
            assert len(looked_up) == expected


def test_what_a_pass_needs_is_kept_until_something_changes() -> None:
    stock = model_of("bert")
    baked, inputs = attrim.bake(stock, Mask(noise(4, 20, 20) < 0.5)), text(12)
    carrier: Carrier = getattr(baked, CARRIER)
    first = carrier.attachment(baked)
    assert carrier.attachment(baked) is first
    with torch.inference_mode():
        before = baked(**inputs).last_hidden_state
    # Another mask is loaded into the buffers.
    other = attrim.bake(stock, Mask(noise(4, 20, 20) > 0.5))
    baked.load_state_dict(other.state_dict())
    second = carrier.attachment(baked)
    assert second is not first
    with torch.inference_mode():
        found, expected = (model(**inputs).last_hidden_state for model in (baked, other))
    assert torch.equal(found, expected)
    assert not torch.allclose(found, before)
    # A module is replaced.
    attention = baked.encoder.layer[0].attention
    attention.self = copy.deepcopy(attention.self)
    third = carrier.attachment(baked)
    assert third is not second
    with torch.inference_mode():
        assert torch.equal(baked(**inputs).last_hidden_state, expected)
    # Another number type.
    baked.to(torch.bfloat16)
    assert carrier.attachment(baked) is not third
    with torch.inference_mode():
        torch.testing.assert_close(baked(**inputs).last_hidden_state.float(), expected, rtol=0.1, atol=0.1)


def test_a_model_that_ran_is_freed_when_it_is_no_longer_used() -> None:
    baked = attrim.bake(model_of("bert"), Window(3))
    with torch.inference_mode():
        baked(**text(12))
    gone = weakref.ref(baked.encoder)
    del baked
    assert gone() is None, "without waiting for the garbage collector"


def test_copies_and_threads_do_not_share_passes() -> None:
    baked, texts = (
        attrim.bake(model_of("bert"), Mask(noise(4, 40, 40) < 0.5)),
        [text(length) for length in range(8, 24)],
    )
    with torch.inference_mode():
        expected = [baked(**inputs).last_hidden_state for inputs in texts]
        copied = copy.deepcopy(baked)
        assert getattr(copied, CARRIER).attachment(copied).map.root is copied
    wrong: list[int] = []

    def run(model: nn.Module) -> None:
        with torch.inference_mode():
            for _ in range(5):
                for number, inputs in enumerate(texts):
                    if not torch.allclose(model(**inputs).last_hidden_state, expected[number], atol=1e-6):
                        wrong.append(number)

    threads = [threading.Thread(target=run, args=(model,)) for model in (baked, copied, baked, baked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_some_dense_heads_and_layers() -> None:
    """Layers without an edit, and heads without one, run beside the others."""
    stock, inputs = model_of("llama"), text(30)
    edit = Window(4, select=Select(heads=[(0, 1), (2, 0), (2, 1), (2, 2), (2, 3)]))
    baked = attrim.bake(stock, edit)
    with attrim.edit(stock, edit), torch.enable_grad():
        expected = stock(**inputs).last_hidden_state
    with torch.inference_mode(), carrying(baked), ways.noting() as noted:
        for _ in range(2):
            torch.testing.assert_close(baked(**inputs).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
    assert len(noted) == 4


def test_attention_that_is_put_into_a_baked_model_is_not_left_out() -> None:
    """Whatever module it is put into, the next pass finds it."""
    baked, inputs = attrim.bake(model_of("bert"), Window(3)), text(12)
    with torch.inference_mode():
        before = baked(**inputs).last_hidden_state
        baked.encoder.layer.append(copy.deepcopy(baked.encoder.layer[0]))
        with carrying(baked), ways.noting() as noted:
            assert not torch.allclose(baked(**inputs).last_hidden_state, before)
        assert len(noted) == 4

    class Twice(nn.Module):
        """Attends once more in the place of another module."""

        def __init__(self, output: nn.Module, layer: nn.Module) -> None:
            super().__init__()
            self.output, self.again = output, layer

        def forward(self, *tensors: Tensor) -> Tensor:
            found: Any = self.again(self.output(*tensors), attention_mask=None)
            return found[0] if isinstance(found, tuple) else found

    layer = baked.encoder.layer[1]
    layer.output = Twice(layer.output, copy.deepcopy(baked.encoder.layer[0]))
    with torch.inference_mode(), carrying(baked), ways.noting() as noted:
        baked(**inputs)
    assert len(noted) == 5
    layer.output.output.dense = Twice(layer.output.output.dense, copy.deepcopy(baked.encoder.layer[0]))
    with torch.inference_mode(), carrying(baked), ways.noting() as noted:
        baked(**inputs)
    assert len(noted) == 6
