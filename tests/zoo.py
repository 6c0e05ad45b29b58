"""A tiny random model of every architecture that attrim is tested on; a new architecture is one line."""

# ruff: noqa: E501, C408  (one line an architecture, fields as keyword arguments)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 64
TEXT = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24)
VISION = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=8, patch_size=4
)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SEQ2SEQ = dict(
    vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
    decoder_start_token_id=1, forced_eos_token_id=None, **TOKENS,
)  # fmt: skip


@dataclass(frozen=True)
class Animal:
    """One architecture: how to build it, what it eats, and how many sites of which roles it has."""

    name: str
    build: Callable[[], nn.Module]
    roles: dict[str, int]
    eats: str = "text"  # text, pair (encoder and decoder ids), image, image-text, regions, embeddings
    route: str = "interface"
    causal: bool = False
    generates: bool = False
    stock_attentions: tuple[str, ...] = ("attentions",)
    heads: int = 4
    sides: tuple[str, ...] = ("right",)

    def __str__(self) -> str:
        return self.name


def _hf(model: str, config: str, **fields: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**fields))
        for parameter in built.parameters():  # the usual 0.02 gives nearly uniform attention, which shows nothing
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
        return built.eval()

    return build


def _torch_encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


_BI = ("encoder_attentions", "decoder_attentions", "cross_attentions")
_SEQ = {"encoder": 2, "decoder": 2, "cross": 2}
_ENCODER = {"encoder": 2}
_DECODER = {"decoder": 2}
_LM: dict[str, Any] = dict(causal=True, generates=True, sides=("right", "left"))
_XSEQ: dict[str, Any] = dict(eats="pair", generates=True, stock_attentions=_BI)
_SOFTMAX: dict[str, Any] = dict(route="softmax")
_GROUPS = dict(num_key_value_heads=2, max_position_embeddings=64, **TOKENS)

ZOO = [
    Animal("bert", _hf("BertForSequenceClassification", "BertConfig", **TEXT), _ENCODER),
    Animal("roberta", _hf("RobertaModel", "RobertaConfig", **TEXT, max_position_embeddings=66, **TOKENS), _ENCODER),
    Animal("electra", _hf("ElectraModel", "ElectraConfig", **TEXT, embedding_size=16), _ENCODER),
    Animal("distilbert", _hf("DistilBertModel", "DistilBertConfig", vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4, hidden_dim=24), _ENCODER),
    Animal("albert", _hf("AlbertModel", "AlbertConfig", **TEXT, embedding_size=16), _ENCODER),
    Animal("modernbert", _hf("ModernBertModel", "ModernBertConfig", **TEXT, global_attn_every_n_layers=2, local_attention=4, cls_token_id=3, sep_token_id=4, **TOKENS), _ENCODER),
    Animal("deberta", _hf("DebertaModel", "DebertaConfig", **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"]), _ENCODER, **_SOFTMAX),
    Animal("deberta_v2", _hf("DebertaV2Model", "DebertaV2Config", **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"]), _ENCODER, **_SOFTMAX),
    Animal("gpt2", _hf("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, **TOKENS), _DECODER, **_LM),
    Animal("llama", _hf("LlamaForCausalLM", "LlamaConfig", **TEXT, **_GROUPS), _DECODER, **_LM),
    Animal("qwen3", _hf("Qwen3ForCausalLM", "Qwen3Config", **TEXT, head_dim=4, **_GROUPS), _DECODER, **_LM),
    Animal("mistral", _hf("MistralForCausalLM", "MistralConfig", **TEXT, sliding_window=4, **_GROUPS), _DECODER, **_LM),
    Animal("gemma2", _hf("Gemma2ForCausalLM", "Gemma2Config", **TEXT, head_dim=4, sliding_window=4, query_pre_attn_scalar=4, attn_logit_softcapping=2.0, **_GROUPS), _DECODER, **_LM),
    Animal("gpt_oss", _hf("GptOssForCausalLM", "GptOssConfig", **TEXT, head_dim=4, num_local_experts=2, num_experts_per_tok=1, sliding_window=4, **_GROUPS), _DECODER, **_LM),
    Animal("bart", _hf("BartForConditionalGeneration", "BartConfig", **SEQ2SEQ), _SEQ, **_XSEQ),
    Animal("marian", _hf("MarianMTModel", "MarianConfig", **SEQ2SEQ), _SEQ, **_XSEQ),
    Animal("t5", _hf("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2), _SEQ, **_XSEQ),
    Animal("fsmt", _hf("FSMTForConditionalGeneration", "FSMTConfig", langs=["de", "en"], src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, **{k: v for k, v in SEQ2SEQ.items() if k != "vocab_size"}), _SEQ, **_XSEQ, **_SOFTMAX),
    Animal("vit", _hf("ViTModel", "ViTConfig", **VISION), _ENCODER, eats="image"),
    Animal("clip", _hf("CLIPModel", "CLIPConfig", text_config=dict(TEXT, max_position_embeddings=64, **TOKENS), vision_config=VISION, projection_dim=8), {"text": 2, "vision": 2}, eats="image-text", stock_attentions=()),
    Animal("visual_bert", _hf("VisualBertModel", "VisualBertConfig", **TEXT, visual_embedding_dim=8), _ENCODER, eats="visual-embeds", **_SOFTMAX),
    Animal("lxmert", _hf("LxmertModel", "LxmertConfig", vocab_size=VOCABULARY, hidden_size=16, num_attention_heads=4, intermediate_size=24, l_layers=2, r_layers=1, x_layers=2, visual_feat_dim=8, visual_pos_dim=4), {"language": 4, "vision": 3, "language>vision": 2, "vision>language": 2}, eats="regions", stock_attentions=(), **_SOFTMAX),
    Animal("xlnet", _hf("XLNetModel", "XLNetConfig", vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=4, d_inner=24), _ENCODER, **_SOFTMAX),
    Animal("mpt", _hf("MptForCausalLM", "MptConfig", vocab_size=VOCABULARY, d_model=16, n_layers=2, n_heads=4, max_seq_len=64), _DECODER, **_SOFTMAX, **_LM),
    Animal("bloom", _hf("BloomForCausalLM", "BloomConfig", vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=4, **TOKENS), _DECODER, **_LM, **_SOFTMAX),
    Animal("torch_encoder", _torch_encoder, _ENCODER, eats="embeddings", stock_attentions=(), **_SOFTMAX),
]  # fmt: skip

# With a head, so that there are answers to explain.
_LXMERT = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_attention_heads=4,
    intermediate_size=24,
    l_layers=2,
    r_layers=1,
    x_layers=2,
    visual_feat_dim=8,
    visual_pos_dim=4,
    num_qa_labels=5,
)
HEADED = [
    Animal("bert", _hf("BertForSequenceClassification", "BertConfig", **TEXT, num_labels=5), _ENCODER),
    Animal("vit", _hf("ViTForImageClassification", "ViTConfig", **VISION, num_labels=5), _ENCODER, eats="image"),
    Animal("visual_bert", _hf("VisualBertForQuestionAnswering", "VisualBertConfig", **TEXT, visual_embedding_dim=8, num_labels=5), _ENCODER, eats="visual-embeds", **_SOFTMAX),
    Animal("lxmert", _hf("LxmertForQuestionAnswering", "LxmertConfig", **_LXMERT), {"language": 4, "vision": 3, "language>vision": 2, "vision>language": 2}, eats="regions", **_SOFTMAX),
    Animal("gpt2", _hf("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, **TOKENS), _DECODER, **_LM),
    Animal("llama", _hf("LlamaForCausalLM", "LlamaConfig", **TEXT, **_GROUPS), _DECODER, **_LM),
]  # fmt: skip


def batch(
    animal: Animal,
    lengths: tuple[int, ...] = (7, 7),
    dtype: torch.dtype = torch.float32,
    side: str = "right",
    seed: int = 0,
) -> dict[str, Tensor]:
    """A batch of random inputs for an animal, padded on ``side`` where lengths differ; same texts for the same seed."""
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed * 100 + row)
        text = torch.randint(5, VOCABULARY, (length,), generator=generator)
        where = slice(longest - length, longest) if side == "left" else slice(0, length)
        ids[row, where], mask[row, where] = text, 1
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(len(lengths), 3, 8, generator=generator).to(dtype)
    if animal.eats == "image":
        return {"pixel_values": torch.randn(len(lengths), 3, 8, 8, generator=generator).to(dtype)}
    if animal.eats == "embeddings":
        table = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
        return {"src": table[ids], "src_key_padding_mask": mask == 0}
    inputs = {"input_ids": ids, "attention_mask": mask}
    if animal.eats == "pair":
        inputs |= {"decoder_input_ids": ids[:, :5].clone(), "decoder_attention_mask": mask[:, :5].clone()}
    if animal.eats == "image-text":
        inputs |= {"pixel_values": torch.randn(len(lengths), 3, 8, 8, generator=generator).to(dtype)}
    if animal.eats == "regions":
        inputs |= {"visual_feats": regions, "visual_pos": torch.rand(len(lengths), 3, 4, generator=generator).to(dtype)}
    if animal.eats == "visual-embeds":
        inputs |= {"visual_embeds": regions, "visual_attention_mask": torch.ones(len(lengths), 3, dtype=torch.long)}
    return inputs
