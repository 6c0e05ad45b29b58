"""A cache that keeps what windows see: the same logits as with all keys, fewer bytes, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import attrim
from attrim.attention.context import attach
from attrim.baking import window_cache as window_caches
from attrim.baking.window_cache import WindowCache, WindowLayer, group_heads, window_cache
from attrim.baking.windows import find_windows
from attrim.edits import Edit, Entmax, Gate, Window
from attrim.errors import ParameterError
from baked_models import ANIMALS
from watching import Keep, TorchCalls
from zoo import batch

EDITS: dict[str, list[Edit]] = {
    "all": [Window(3, first=1)],
    "no first": [Window(4)],
    "one group": [Window(3, first=2, select=attrim.Select(heads=[(0, 0), (0, 1)]))],
    "part of a group": [Window(3, first=1, select=attrim.Select(heads=[(1, 0), (1, 2), (1, 3)]))],
    "several": [
        Window(3, select=attrim.Select(heads=[(0, 0), (0, 1)])),
        Window(5, first=2, select=attrim.Select(heads=[(0, 2), (1, 0)])),
        Window(2, first=3, select=attrim.Select(heads=[(0, 3), (1, 1)])),
    ],
    "one within another": [Window(5, first=2), Window(3, first=1, select=attrim.Select(heads=[(0, 0), (0, 1)]))],
    "one across another": [Window(3, first=2), Window(5, first=1, select=attrim.Select(heads=[(0, 0)]))],
}
TOKENS = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))


def logits(model: Any, cache: Any, parts: list[int], mask: torch.Tensor) -> torch.Tensor:
    """The logits of a text that is read in parts."""
    found, begin = [], 0
    for length in parts:
        stop = begin + length
        with torch.no_grad():
            output = model(
                TOKENS[:, begin:stop], attention_mask=mask[:, :stop], past_key_values=cache, use_cache=True,
                position_ids=(mask[:, :stop].cumsum(1) - 1).clamp(min=0)[:, begin:],
            )  # fmt: skip
        found.append(output.logits)
        begin = stop
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("parts", [[4, 1, 1, 1, 1, 1], [1] * 9, [2, 3, 4], [6, 3], [9]], ids=str)
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(("name", "wasted"), [("llama", 0), ("gpt2", window_caches.WASTED)])
def test_logits_are_those_with_all_keys(
    name: str, edits: list[Edit], parts: list[int], wasted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_caches, "WASTED", wasted)
    model = attrim.bake(ANIMALS[name].build(), *edits)
    mask = torch.ones_like(TOKENS)
    mask[1, :3] = 0  # all of the first part, or of the first parts, where these are short
    expected = logits(model, DynamicCache(), parts, mask)
    found = logits(model, window_cache(model), parts, mask)
    real = mask.bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 6), first=st.integers(0, 4), heads=st.sets(st.integers(0, 3), min_size=1),
    prompt=st.integers(1, 8), padding=st.integers(0, 3), wasted=st.sampled_from([0, window_caches.WASTED]),
)  # fmt: skip
def test_any_window(size: int, first: int, heads: set[int], prompt: int, padding: int, wasted: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_caches, "WASTED", wasted)
        check_window(size, first, heads, prompt, padding)


def check_window(size: int, first: int, heads: set[int], prompt: int, padding: int) -> None:
    select = attrim.Select(heads=[(layer, head) for layer in (0, 1) for head in heads])
    model = attrim.bake(ANIMALS["llama"].build(), Window(size, first, select=select))
    mask = torch.ones_like(TOKENS)
    mask[0, : min(padding, prompt - 1)] = 0
    parts = [prompt, *[1] * (9 - prompt)]
    expected, found = (logits(model, cache, parts, mask) for cache in (DynamicCache(), window_cache(model)))
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generate_uses_it_by_itself(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    attrim.bake(ANIMALS[name].build(), *EDITS["several"]).save_pretrained(tmp_path)
    model = attrim.load(tmp_path)
    mask = torch.ones_like(TOKENS)
    mask[1, :2] = 0
    wanted = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True, **options}
    wanted |= {"attention_mask": mask, "output_logits": True, "min_new_tokens": 8}
    found = model.generate(TOKENS, **wanted)
    expected = model.generate(TOKENS, past_key_values=DynamicCache(), **wanted)
    assert isinstance(found.past_key_values, WindowCache)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-5)


def test_a_text_that_begins_after_the_first_part_of_the_prompt() -> None:
    model = attrim.bake(ANIMALS["llama"].build(), Window(3, first=1))
    mask = torch.ones_like(TOKENS)
    mask[1, :7] = 0
    arguments = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    for options in ({}, {"num_beams": 2}):
        both = {**arguments, **options, "attention_mask": mask, "prefill_chunk_size": 3}
        expected = model.generate(TOKENS, **both, past_key_values=DynamicCache())
        assert torch.equal(model.generate(TOKENS, **both), expected)
    cache = window_cache(model)
    with torch.no_grad():
        model(TOKENS[:, :3], attention_mask=mask[:, :3], past_key_values=cache, use_cache=True)
    layer = cache.layers[0]
    assert isinstance(layer, WindowLayer)
    assert layer.waiting is not None
    assert cache.nbytes == sum(tensor.nbytes for one in cache.layers for tensor in one.waiting)  # type: ignore[union-attr]
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    assert len(layer.waiting[0]) == 4
    cache.reset()
    assert (cache.nbytes, cache.get_seq_length()) == (0, 0)


def test_bytes_are_those_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_caches, "WASTED", 0)
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["one group"])
    cache = window_cache(model)
    logits(model, cache, [9], torch.ones_like(TOKENS))
    size = model.config.hidden_size // model.config.num_attention_heads
    layer = cache.layers[0]
    slots = {kept.groups.numbers: kept.tensors[0].shape for kept in layer.kept}
    assert slots[(0,)] == (2, 1, 5, size)  # a window of 3 and 2 first tokens
    assert slots[(1,)][2] >= 9
    assert cache.nbytes == sum(tensor.nbytes for own in cache.layers for kept in own.kept for tensor in kept.tensors)
    assert cache.get_seq_length() == 9


@pytest.mark.parametrize(("wasted", "until"), [(0, 5), (1 << 18, 10), (2 * 3 * 2 * 4 * 4, 8)])
def test_groups_are_kept_together_until_one_can_drop_enough(
    wasted: int, until: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_caches, "WASTED", wasted)
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["one group"])  # a window of 3 and 2 first tokens
    assert model.config.hidden_size // model.config.num_attention_heads == 4
    cache, tokens = window_cache(model), torch.randint(5, 50, (2, 14))
    layer: Any = cache.layers[0]
    for length in range(1, 15):
        with torch.no_grad():
            found = model(tokens[:, length - 1 : length], past_key_values=cache, use_cache=True).logits[:, -1]
            expected = model(tokens[:, :length], use_cache=False).logits[:, -1]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert (cache.get_seq_length(), len(layer.kept)) == (length, 1 if length <= until else 2)
    assert [kept.filled()[0].shape[2] for kept in layer.kept] == [5, 14]


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 8), first=st.integers(0, 3), heads=st.sets(st.integers(0, 3), min_size=1),
    parts=st.lists(st.integers(1, 4), min_size=1, max_size=4), small=st.integers(0, 12), wasted=st.integers(0, 12),
    batches=st.lists(st.sampled_from([None, [1, 0], [0], [0, 0, 0]]), min_size=12, max_size=12),
)  # fmt: skip
def test_short_texts_become_long_ones(
    size: int, first: int, heads: set[int], parts: list[int], small: int, wasted: int, batches: list[list[int] | None]
) -> None:
    """From copying all that is kept, to slots that are filled, to groups that are divided, with beams that change."""
    model = attrim.bake(
        ANIMALS["llama"].build(),
        Window(size, first, select=attrim.Select(heads=[(layer, head) for layer in (0, 1) for head in heads])),
    )
    # Bytes of the keys of one token are those of two examples and two groups of four numbers.
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(window_caches, "SMALL", small * 2 * 2 * 4 * 4)
        patch.setattr(window_caches, "WASTED", wasted * 2 * 2 * 4 * 4)
        cache, text, generator = window_cache(model), TOKENS[:, :0], torch.Generator().manual_seed(0)
        for count, examples in zip([*parts, *[1] * 8], batches, strict=False):
            new = torch.randint(5, 50, (len(text), count), generator=generator)
            text = torch.cat([text, new], dim=1)
            found = model(new, past_key_values=cache, use_cache=True).logits
            expected = model(text, use_cache=False).logits[:, -count:]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            if examples is not None:
                index = torch.tensor(examples) % len(text)
                text = text[index]
                cache.batch_select_indices(index)
    assert {layer.get_seq_length() for layer in cache.layers} == {text.shape[1]}


def test_a_short_text_of_more_examples_is_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_caches, "SMALL", 8 * 2 * 2 * 4 * 4)  # keys of eight tokens of two examples
    model = attrim.bake(ANIMALS["llama"].build(), Window(9))
    cache, text = window_cache(model), TOKENS.repeat_interleave(5, dim=0)
    with torch.no_grad():
        model(TOKENS[:, :2], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(5)
        model(text[:, 2:4], past_key_values=cache, use_cache=True)  # now there are empty slots
        found = model(text[:, 4:5], past_key_values=cache, use_cache=True).logits
        expected = model(text[:, :5], use_cache=False).logits[:, -1:]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_short_text_needs_the_calls_and_bytes_of_stock() -> None:
    model, size = attrim.bake(ANIMALS["llama"].build(), *EDITS["several"]), 4
    cache, stock = window_cache(model), DynamicCache()
    logits(model, cache, [2], torch.ones_like(TOKENS))
    logits(model, stock, [2], torch.ones_like(TOKENS))
    layer: Any = cache.layers[0]
    query, key, value = torch.randn(2, 4, 1, size), torch.randn(2, 2, 1, size), torch.randn(2, 2, 1, size)
    module = model.model.layers[0].self_attn
    with torch.inference_mode(), cache.serving(model), TorchCalls() as calls:
        layer.update(key, value)
        found, _ = layer.answer(None, module, query, key, value, None, scaling=1.0)
    keys, values = stock.update(key, value, 0)
    expected, _ = sdpa_attention_forward(module, query, keys, values, None, scaling=1.0)
    # Queries by group and outputs by head are views, where stock code makes one view and asks whether it is contiguous.
    names = [name.split(".")[1] for name in calls.names]
    assert names == ["cat", "cat", "reshape", "scaled_dot_product_attention", "reshape"]
    torch.testing.assert_close(found, expected)
    assert layer.nbytes == keys.nbytes + values.nbytes


def test_sessions_and_masks_are_asked_for_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["all"])
    cache, asked = window_cache(model), []
    monkeypatch.setattr(window_caches.WindowLayer, "_check", noting(window_caches.WindowLayer._check, asked))
    logits(model, cache, [4, 1, 1, 3], torch.ones_like(TOKENS))
    assert len(asked) == 3  # and not for every layer


def noting(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    """A function that notes its calls."""

    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return noted


def test_what_the_last_token_sees_is_found_out_once_a_step() -> None:
    model = attrim.bake(
        ANIMALS["llama"].build(), Window(3, 2, select=attrim.Select(heads=[(0, 0), (0, 1), (1, 0), (1, 1)]))
    )
    cache = window_cache(model)
    logits(model, cache, [7], torch.ones_like(TOKENS))
    masks = []
    find = window_caches.DecodingStep.find_mask
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(window_caches.DecodingStep, "find_mask", lambda *given: masks.append(find(*given)) or masks[-1])
        for place in (7, 8):
            model(TOKENS[:, place : place + 1], past_key_values=cache, use_cache=True)
    assert [mask.shape[-1] for mask in masks] == [8, 8, 9, 9]
    assert masks[0] is masks[1]
    assert masks[2] is masks[3] is not masks[0]


def test_a_step_makes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_caches, "WASTED", 0)
    # One token at a time, calls and not numbers are what takes time; lists of indices cost most of all. Each of the two
    # kinds of groups takes its part of query, key and value (3), writes two tokens (4) and attends (1); one that keeps
    # everything cuts off empty slots (2). The layer splits the queries and joins the outputs (4).
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["one group"])
    cache = window_cache(model)
    logits(model, cache, [7], torch.ones_like(TOKENS))
    layer: Any = cache.layers[0]
    size = model.config.hidden_size // model.config.num_attention_heads
    query, key, value = torch.randn(2, 4, 1, size), torch.randn(2, 2, 1, size), torch.randn(2, 2, 1, size)
    with torch.inference_mode(), TorchCalls() as calls:
        layer.attend(query, key, value, 1.0)
    assert sum("scaled_dot_product_attention" in name for name in calls.names) == len(layer.kept) == 2
    assert not [name for name in calls.names if "index" in name]
    assert len(calls.names) <= 2 * 8 + 2 + 4


def test_groups_keep_what_their_widest_head_sees() -> None:
    (whole, narrow) = group_heads(4, 2, {0: (3, 1), 2: (3, 1), 3: (5, 0)})
    assert (whole.numbers, whole.span) == ((0,), None)
    assert (narrow.numbers, narrow.span, narrow.uniform) == ((1,), (5, 1), False)
    assert [narrow.kept(length) for length in (2, 100)] == [2, 6]


def test_only_the_layer_of_windows_that_are_no_window_keeps_all_keys() -> None:
    inner, crossed = (
        find_windows(attrim.bake(ANIMALS["llama"].build(), *EDITS[name]))
        for name in ("one within another", "one across another")
    )
    assert inner == [{0: (3, 1), 1: (3, 1), 2: (5, 2), 3: (5, 2)}, dict.fromkeys(range(4), (5, 2))]
    assert crossed == [None, dict.fromkeys(range(4), (3, 2))]


@pytest.mark.parametrize(
    ("name", "edits"),
    [("bart", [Window(3)]), ("llama", [Entmax(1.5)]), ("bert", [Window(3)])],
    ids=["encoder-decoder", "entmax", "encoder"],
)
def test_other_models_have_none(name: str, edits: list[Edit]) -> None:
    model = attrim.bake(ANIMALS[name].build(), *edits)
    assert find_windows(model) is None
    with pytest.raises(ParameterError, match="cannot drop keys"):
        window_cache(model)


def test_what_needs_all_keys_is_refused() -> None:
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["all"])
    cache = window_cache(model)
    logits(model, cache, [4], torch.ones_like(TOKENS))
    with pytest.raises(ParameterError, match="cannot be cropped"):
        cache.crop(-1)
    with attach(model, [Gate(0.5)], strict=False), pytest.raises(ParameterError, match="DynamicCache"):
        model(TOKENS[:, 4:5], past_key_values=cache, use_cache=True)
    with pytest.raises(ParameterError, match="padded on the left"):
        hole = torch.ones_like(TOKENS)
        hole[0, 2] = 0
        logits(model, window_cache(model), [9], hole)


def four_axes(length: int, begin: int = 0) -> torch.Tensor:
    """The additive mask ``[2, 1, Q, K]`` of causal texts, the second with two tokens of padding."""
    allowed = torch.ones(length, length, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    allowed[1, :, 2:, :2] = False
    return torch.zeros(2, 1, length, length).masked_fill(~allowed, float("-inf"))[:, :, begin:]


def test_a_mask_with_four_axes_that_is_causal() -> None:
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["several"])
    found = []
    for cache in (DynamicCache(), window_cache(model)):
        with torch.no_grad():
            parts = [
                model(TOKENS[:, begin:stop], attention_mask=mask, past_key_values=cache, use_cache=True).logits
                for begin, stop, mask in ((0, 5, four_axes(5)), (5, 6, four_axes(6, 5) == 0), (6, 9, four_axes(9, 6)))
            ]
        logits_of_all = torch.cat(parts, dim=1)
        found.append(torch.cat([logits_of_all[0], logits_of_all[1, 2:]]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def biased(mask: torch.Tensor) -> torch.Tensor:
    return mask + torch.linspace(0, 1, mask.shape[-1])


def forbidding(mask: torch.Tensor) -> torch.Tensor:
    return (mask == 0).index_fill(-1, torch.tensor([3]), False)


@pytest.mark.parametrize("change", [biased, forbidding])
def test_a_mask_with_four_axes_that_says_more_is_refused(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What is kept does not know it: the bias was lost in all tokens after the prompt."""
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["one group"])
    options: dict[str, Any] = {"past_key_values": window_cache(model), "use_cache": True}
    with torch.no_grad():
        with pytest.raises(ParameterError, match=r"with four axes|padded on the left only"):
            model(TOKENS[:, :5], attention_mask=change(four_axes(5)), **options)
        options["past_key_values"] = window_cache(model)
        model(TOKENS[:, :5], attention_mask=four_axes(5), **options)
        with pytest.raises(ParameterError, match="without biases, and the attention_mask with four axes"):
            model(TOKENS[:, 5:6], attention_mask=change(four_axes(6, 5)), **options)


def test_generation_that_is_watched_keeps_all_keys() -> None:
    model = attrim.bake(ANIMALS["llama"].build(), *EDITS["all"])
    with attach(model, stats=[Keep()]):
        found = model.generate(TOKENS, max_new_tokens=2, pad_token_id=0, return_dict_in_generate=True)
    assert not isinstance(found.past_key_values, WindowCache)


def test_a_cache_of_windows_is_not_for_other_models() -> None:
    model = ANIMALS["llama"].build()
    cache = WindowCache([{}, {}])
    with torch.no_grad(), pytest.raises(ParameterError, match="baked model that it was made for"):
        model(TOKENS, past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("begun", [False, True])
def test_a_cache_of_windows_needs_the_call(begun: bool) -> None:
    """Neither the forward alone, nor the backbone, nor the stock model knows of it, after a prompt of the call, too."""
    model = ANIMALS["llama"].build()
    baked = attrim.bake(model, Window(3, first=1, select=attrim.Select(layers=0)))
    for other in (baked.forward, baked.model, model):
        cache = window_cache(baked)
        with torch.no_grad():
            if begun:
                baked(TOKENS[:, :6], past_key_values=cache, use_cache=True)
            with pytest.raises(ParameterError, match="needs the call of the baked model"):
                other(TOKENS[:, 6:], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_with_windows_assists_another(name: str) -> None:
    """Tokens of an assistant are taken back, which a cache of windows cannot do."""
    model = ANIMALS[name].build()
    baked = attrim.bake(model, Window(3, first=1))
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    inputs = batch(ANIMALS[name], (9,))
    found = model.generate(**inputs, assistant_model=baked, **options)  # type: ignore[operator]
    assert torch.equal(found, model.generate(**inputs, **options))  # type: ignore[operator]


def test_a_cache_that_is_passed_by_its_place() -> None:
    baked = attrim.bake(ANIMALS["llama"].build(), Window(3, first=1))
    cache = window_cache(baked)
    with torch.no_grad():
        expected = baked(TOKENS).logits
        baked(TOKENS[:, :6], None, None, cache, use_cache=True)
        found = baked(TOKENS[:, 6:], None, None, cache, use_cache=True).logits
    torch.testing.assert_close(found, expected[:, 6:])


@pytest.mark.parametrize("other", [Window(5), Window(3, first=1, select=attrim.Select(layers=0))], ids=repr)
def test_a_cache_of_other_windows_is_refused(other: Edit) -> None:
    model = ANIMALS["llama"].build()
    cache = window_cache(attrim.bake(model, Window(3, first=1)))
    same, baked = attrim.bake(model, Window(3, first=1)), attrim.bake(model, other)
    with torch.no_grad():
        same(TOKENS[:, :6], past_key_values=cache, use_cache=True)
        with pytest.raises(ParameterError, match="made for other windows than those of this"):
            baked(TOKENS[:, 6:], past_key_values=cache, use_cache=True)
