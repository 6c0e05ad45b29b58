"""Every edit inside real model code: padding on either side, grouped queries, a cache, gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import attrim
from attrim.attention.context import attach
from attrim.edits import Constant, Edit, Gate, Mask
from attrim.errors import ShapeError
from attrim.stats.mean import Mean
from methods import METHODS

every_method = pytest.mark.parametrize("edit", METHODS)
VOCABULARY = 64


def widen(model: torch.nn.Module) -> torch.nn.Module:
    """The usual small weights give nearly even attention, which would hide mistakes."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture
def bert() -> BertModel:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    return widen(BertModel(BertConfig(vocab_size=VOCABULARY, **sizes)))


@pytest.fixture
def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    return widen(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes, **special)))


def batch(side: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Texts of 8 and 5 tokens, padded together and alone."""
    texts = [torch.randint(3, VOCABULARY, (length,)) for length in (8, 5)]
    padding = torch.zeros(3, dtype=torch.int64)
    short = torch.cat([padding, texts[1]] if side == "left" else [texts[1], padding])
    ids = torch.stack([texts[0], short])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}, texts


@every_method
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_equals_single_texts(llama: LlamaForCausalLM, edit: Edit, side: str) -> None:
    inputs, texts = batch(side)
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), attrim.edit(llama, edit):
        together = llama(**inputs, position_ids=positions).logits
        for row, real, text in zip(together, inputs["attention_mask"].bool(), texts, strict=True):
            torch.testing.assert_close(row[real], llama(text[None]).logits[0], rtol=1e-4, atol=1e-4)


@every_method
def test_cached_steps_equal_the_whole_forward(llama: LlamaForCausalLM, edit: Edit) -> None:
    ids = torch.randint(3, VOCABULARY, (2, 9))
    with torch.no_grad(), attrim.edit(llama, edit):
        whole = llama(ids, use_cache=False).logits
        first = llama(ids[:, :4], use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for step in range(4, 9):
            steps.append(llama(ids[:, step : step + 1], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-4)


@every_method
def test_training_through_an_edit(bert: BertModel, edit: Edit) -> None:
    inputs, _ = batch("right")
    with attrim.edit(bert.train(), edit):
        hidden = bert(**inputs).last_hidden_state
    hidden[inputs["attention_mask"].bool()].square().sum().backward()
    gradients = [parameter.grad for parameter in bert.parameters() if parameter.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_average_of_one_text_gives_that_text_back(bert: BertModel, side: str) -> None:
    """Property (i) of spec/papa.md, for a text that is padded in the batch."""
    inputs, texts = batch(side)
    bert.set_attn_implementation("eager")
    with torch.no_grad():
        stock = bert(texts[1][None], output_attentions=True)
        averages = {site.name: stock.attentions[site.layer][0] for site in attrim.sites(bert)}
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)[1:]
        padded = {name: tensor[1:] for name, tensor in inputs.items()}
        with attrim.edit(bert, Constant(averages)):
            hidden = bert(**padded, position_ids=positions).last_hidden_state
    real = padded["attention_mask"].bool()
    torch.testing.assert_close(hidden[real], stock.last_hidden_state[0], rtol=1e-5, atol=1e-5)


def test_an_empty_mask_is_the_dense_model(bert: BertModel) -> None:
    inputs, _ = batch("right")
    bert.set_attn_implementation("eager")
    with torch.no_grad():
        stock = bert(**inputs).last_hidden_state
        with attrim.edit(bert, Mask(torch.zeros(1, 64, 64, dtype=torch.bool))):
            edited = bert(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(edited[real], stock[real], rtol=1e-5, atol=1e-5)


def test_a_site_that_is_switched_off_gives_its_bias(bert: BertModel) -> None:
    inputs, _ = batch("right")
    seen: list[Tensor] = []
    dense = bert.encoder.layer[1].attention.output.dense
    torch.nn.init.normal_(dense.bias)
    hook = dense.register_forward_hook(lambda module, given, output: seen.append(output))
    with torch.no_grad(), attrim.edit(bert, Gate(0.0)):
        bert(**inputs)
    hook.remove()
    torch.testing.assert_close(seen[-1], dense.bias.expand_as(seen[-1]))  # earlier ones are of the dry run


def test_the_gradient_of_gates_predicts_the_effect_of_a_head(bert: BertModel) -> None:
    """The derivative by each factor, against a central difference, over all sites in one tensor [S, H]."""
    bert = bert.double()
    inputs, _ = batch("right")
    sites = attrim.sites(bert)
    factors = torch.ones(len(sites), 3, dtype=torch.float64, requires_grad=True)

    def loss(values: Tensor) -> Tensor:
        with attrim.edit(bert, Gate(values, sites=sites)):
            return bert(**inputs).last_hidden_state[:, 0].square().sum(-1).log().sum()

    (gradient,) = torch.autograd.grad(loss(factors), factors)
    with torch.no_grad():
        for site, head in ((0, 1), (1, 2)):
            nudge = torch.zeros_like(factors)
            nudge[site, head] = 1e-5
            difference = (loss(factors + nudge) - loss(factors - nudge)) / 2e-5
            torch.testing.assert_close(gradient[site, head], difference, rtol=1e-5, atol=1e-8)


def test_a_trained_model_tells_the_same_story_with_and_without_a_cache(shared_data: Path) -> None:
    """The average attention of one story replaces half of the heads of a real model (stories260K, grouped queries).

    So that story comes out as before and another one changes; a left-padded batch and a cache make no difference.
    """
    folder = shared_data / "weights" / "stories260K" / "hf"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text).input_ids for text in ("Once upon a time there was a little girl", "Tom and his dog")]
    longest = max(len(ids) for ids in prompts)
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in prompts])
    real = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in prompts])
    mean = Mean()
    with torch.no_grad(), attach(model, stats=[mean]):
        story = model.generate(ids[:1], max_new_tokens=80, do_sample=False, use_cache=False)
    heads = [(layer, head) for layer in range(model.config.num_hidden_layers) for head in range(0, 8, 2)]
    options = {"attention_mask": real, "max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), attrim.edit(model, Constant(mean, heads=heads)):
        cached = model.generate(ids, use_cache=True, **options)
        whole = model.generate(ids, use_cache=False, **options)
        alone = model.generate(torch.tensor(prompts[1:]), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert torch.equal(cached, whole)
    assert torch.equal(cached[1, -30:], alone[0, -30:])
    assert torch.equal(cached[0], story[0, : cached.shape[1]])
    unedited = model.generate(torch.tensor(prompts[1:]), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert not torch.equal(alone, unedited)
    with pytest.raises(ShapeError, match="longer than the averages"), attrim.edit(model, Constant(mean)):
        model.generate(ids[:1], max_new_tokens=100, do_sample=False)
