"""Cross-attention knows where its queries are, whatever became of the self-attention before it, and any padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BertModel,
    EncoderDecoderModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import attrim
from attrim.core.site import Select
from attrim.edits import Constant, Edit, Gate, Mask, MaskOutsideWindow, Window
from attrim.errors import SiteError
from baked_models import ANIMALS, noise

CROSS = Select(roles="cross")
SELF = Select(roles="decoder")
FIRST = Select(roles="decoder", layers=0)
ABOUT_CROSS: dict[str, Edit] = {
    "window": Window(3, select=CROSS),
    "mask": Mask(noise(4, 40, 40) < 0.5, select=CROSS),
    "mask outside window": MaskOutsideWindow(noise(4, 40, 40) < 0.7, 2, 1, select=CROSS),
}
WITHOUT_ATTENTION: dict[str, Edit] = {
    "first removed": Gate(0.0, select=FIRST),
    "all removed": Gate(0.0, select=SELF),
    "first constant": Constant(noise(4, 40, 40), select=FIRST),
    "all constant": Constant(noise(4, 40, 40), select=SELF),
}


def large(model: nn.Module) -> Any:
    """Weights that make wrong positions show."""
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.data = 0.2 * torch.randn(weights.shape, generator=generator)
    return model


def whisper() -> Any:
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_mel_bins": 8, "vocab_size": 60}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_source_positions": 30}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    torch.manual_seed(0)
    return large(WhisperForConditionalGeneration(WhisperConfig(**sizes, **heads, **special)).eval())


@pytest.mark.parametrize("cross", ABOUT_CROSS.values(), ids=ABOUT_CROSS)
@pytest.mark.parametrize("own", WITHOUT_ATTENTION.values(), ids=WITHOUT_ATTENTION)
@pytest.mark.parametrize("name", ["bart", "marian", "t5"])
def test_steps_of_a_decoder_whose_self_attention_is_gone(name: str, own: Edit, cross: Edit) -> None:
    model = large(ANIMALS[name].build())
    baked = attrim.bake(model, own, cross)
    source, target = torch.arange(5, 25).expand(2, -1), torch.randint(5, 40, (2, 9))
    with torch.no_grad(), attrim.edit(model, own, cross):
        expected = model(input_ids=source, decoder_input_ids=target).logits
    found, cache = [], None
    with torch.no_grad():
        encoded = baked.get_encoder()(source)
        for step in range(9):
            words = target[:, step : step + 1]
            output = baked(encoder_outputs=encoded, decoder_input_ids=words, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            found.append(output.logits)
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["bart", "marian", "t5"])
@pytest.mark.parametrize("edit", [Constant(noise(4, 40, 40), select=Select(roles="cross", heads=[1])),
                                  *ABOUT_CROSS.values()], ids=["constant", *ABOUT_CROSS])  # fmt: skip
def test_texts_of_a_batch_that_are_padded_on_the_left_for_the_decoder_alone(name: str, edit: Edit) -> None:
    model = large(ANIMALS[name].build())
    baked = attrim.bake(model, edit)
    target, mask = torch.arange(5, 17).expand(3, -1), torch.ones(3, 12, dtype=torch.int64)
    mask[0, :4] = mask[1, :2] = 0
    given = {
        "input_ids": torch.arange(5, 25).expand(3, -1), "decoder_input_ids": target, "decoder_attention_mask": mask,
    }  # fmt: skip
    with torch.no_grad():
        whole = baked(**given).logits
        for row in range(3):
            with attrim.edit(model, edit):
                alone = model(**{name: tensor[row : row + 1] for name, tensor in given.items()}).logits
            real = mask[row].bool()
            torch.testing.assert_close(whole[row, real], alone[0, real], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("edit", [Constant(noise(4, 60, 60), select=CROSS), *ABOUT_CROSS.values()],
                         ids=["constant", *ABOUT_CROSS])  # fmt: skip
def test_cross_attention_that_gets_no_mask_at_all(edit: Edit) -> None:
    """Whisper gives its cross-attention none, so that only the tensors tell how many examples there are."""
    model = whisper()
    target, mask = torch.arange(5, 17).expand(2, -1), torch.ones(2, 12, dtype=torch.int64)
    mask[0, :4] = 0
    given = {"input_features": torch.randn(2, 8, 60), "decoder_input_ids": target, "decoder_attention_mask": mask}
    with torch.no_grad(), attrim.edit(model, edit):
        whole = model(**given).logits
        alone = model(**{name: tensor[:1] for name, tensor in given.items()}).logits
    torch.testing.assert_close(whole[0, 4:], alone[0, 4:], atol=1e-4, rtol=1e-4)


def test_a_decoder_with_the_code_of_an_encoder() -> None:
    """The layers of BERT are an ``encoder`` in its names, also where BERT is the decoder."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = BertModel(BertConfig(**sizes, vocab_size=60))
    decoder = BertLMHeadModel(BertConfig(**sizes, vocab_size=60, is_decoder=True, add_cross_attention=True))
    model = large(EncoderDecoderModel(encoder=encoder, decoder=decoder).eval())
    text, target = torch.randint(3, 60, (2, 12)), torch.randint(3, 60, (2, 7))
    example = {"input_ids": text, "decoder_input_ids": target}
    assert [site.role for site in attrim.sites(model, example)] == ["encoder", "decoder", "cross"]
    edit = Window(2, select=CROSS)
    baked = attrim.bake(model, edit, example=example)
    with torch.no_grad():
        expected = baked(**example).logits
        first = baked(input_ids=text, decoder_input_ids=target[:, :4], use_cache=True)
        encoded = (first.encoder_last_hidden_state,)
        rest = baked(
            encoder_outputs=encoded, decoder_input_ids=target[:, 4:], past_key_values=first.past_key_values,
            use_cache=True,
        )  # fmt: skip
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), expected, atol=1e-4, rtol=1e-4)


def test_code_that_counts_heads_wrongly_is_refused_whatever_the_length() -> None:
    """Without heads, Whisper takes a fourth of the tokens for keys, which shows where four does not divide them."""
    with pytest.raises(SiteError, match="baked on a guess about its code"):
        attrim.bake(whisper(), Gate(0.0, select=SELF))
