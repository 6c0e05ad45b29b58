"""Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860), the language model of Attention Pruning.

``transformers`` no longer has it, but its XLNet is built on the same layer. With ``attn_type="uni"`` it differs in what
is corrected here: embeddings are scaled by the square root of their size, the biases u and v are shared by all
layers, the attention weights have a dropout of their own, and the words are predicted by an adaptive softmax. Two
things stay different: that softmax is torch's, whose words have no biases and are not tied to the embeddings (without
cutoffs the prediction is tied), and the unused parts of XLNet (segments, the second stream) are there without effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, XLNetConfig, XLNetModel
from transformers.models.xlnet.modeling_xlnet import XLNetPreTrainedModel, XLNetRelativeAttention
from transformers.utils.generic import ModelOutput

from ..errors import DataError, ParameterError

IGNORED = -100
"""The label of a token whose follower is not predicted."""


class TransformerXLConfig(XLNetConfig):
    """The configuration of a Transformer-XL; the defaults are the base model of the paper for WikiText-103.

    Parameters
    ----------
    mem_len : how many hidden states of earlier segments every layer remembers.
    cutoffs : where the clusters of the adaptive softmax begin, by rank of frequency; none for a plain tied softmax.
    div_value : each cluster of rarer words is narrower by this factor.
    attention_dropout : of attention weights.
    """

    model_type = "attrim-transformer-xl"

    vocab_size: int = 267_735
    d_model: int = 410
    n_layer: int = 16
    n_head: int = 10
    d_inner: int = 2100
    ff_activation: str = "relu"
    attn_type: str = "uni"
    layer_norm_eps: float = 1e-5
    mem_len: int | None = 150
    use_mems_train: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    cutoffs: list[int] | tuple[int, ...] = (20_000, 40_000, 200_000)
    div_value: float = 1.0
    attention_dropout: float = 0.0


class ScaledEmbedding(nn.Embedding):
    """Embeddings times the square root of their size."""

    def forward(self, input: Tensor) -> Tensor:
        """Token numbers ``[...]`` to states ``[..., D]``."""
        return super().forward(input) * math.sqrt(self.embedding_dim)


class MemoryAttention(XLNetRelativeAttention):
    """XLNet's attention with a dropout of its own for the weights."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.output_dropout = nn.Dropout(config.dropout)
        self.dropout = nn.Dropout(config.attention_dropout)

    def post_attention(self, h: Tensor, attn_vec: Tensor, residual: bool = True) -> Tensor:
        """The heads' outputs ``[Q, B, H, D]`` mixed, with dropout, residual and layer norm."""
        mixed = self.output_dropout(torch.einsum("ibnd,hnd->ibh", attn_vec, self.o))
        return self.layer_norm(mixed + h if residual else mixed)


class TransformerXLBackbone(XLNetModel):
    """The layers of a Transformer-XL."""

    config_class = TransformerXLConfig
    _tied_weights_keys = {  # noqa: RUF012  (transformers wants a plain attribute)
        rf"layer\.(?!0\.)\d+\.rel_attn\.{name}": f"layer.0.rel_attn.{name}" for name in ("r_w_bias", "r_r_bias")
    }

    def __init__(self, config: TransformerXLConfig) -> None:
        if config.n_layer == 1:  # there is no other layer to share its biases with, which stock code refuses
            self._tied_weights_keys = {}
        super().__init__(config)
        self.word_embedding = ScaledEmbedding(config.vocab_size, config.d_model)
        for layer in self.layer:
            layer.rel_attn = MemoryAttention(config)
        self.post_init()

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """As in XLNet; ``attention_mask`` must be all ones, if it is given."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise DataError(
                "A Transformer-XL takes no padding; use the task streams, or one text at a time (a batch size of 1)."
            )
        # Stock code cannot add a mask to its causal one when there are several texts.
        return super().forward(input_ids, **options)


@dataclass
class TransformerXLOutput(ModelOutput):
    """What a Transformer-XL gives.

    Attributes
    ----------
    loss : the mean of ``token_losses`` over the predicted tokens, where there are labels.
    logits : log-probabilities ``[B, L, V]``, where there are no labels.
    token_losses : ``[B, L]``, minus the log-probability of each label in nats; 0 where it is ignored.
    mems : the memory after this segment, ``[M, B, D]`` for each layer.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransformerXL(XLNetPreTrainedModel):
    """A Transformer-XL that predicts the next word (https://arxiv.org/abs/1901.02860).

    The memory can be handed from segment to segment (``mems``), as in stock XLNet; or the model keeps it itself, where
    a batch has ``begins``: then batches are consecutive segments of the same texts.
    """

    config_class = TransformerXLConfig
    remembers = True
    _tied_weights_keys = {"head.weight": "transformer.word_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        if config.attn_type != "uni" or not config.mem_len:
            raise ParameterError(
                "A Transformer-XL has attn_type='uni' and mem_len of at least 1; see XLNet for others."
            )
        self.transformer = TransformerXLBackbone(config)
        cutoffs = [cutoff for cutoff in config.cutoffs if cutoff < config.vocab_size]
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False) if not cutoffs else None
        self.adaptive = (
            nn.AdaptiveLogSoftmaxWithLoss(config.d_model, config.vocab_size, cutoffs, config.div_value)
            if cutoffs
            else None
        )
        self._tied_weights_keys = self._tied_weights_keys if self.adaptive is None else {}
        self.memory: tuple[Tensor, ...] | None = None
        """What the model remembers between batches that have ``begins``; save it to go on later."""
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        begins: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Predict the token after each of ``input_ids`` ``[B, L]``.

        Parameters
        ----------
        labels : int64 ``[B, L]``, the token that follows each one (the last one's is in the next segment, so they are
            not shifted here); -100 is ignored.
        begins : bool ``[B]``, whether texts begin here, the same for all of them; what the model remembers from the
            batch before is used where they do not. Without it nothing is remembered.
        mems : the memory of the segment before, instead.
        attention_mask : all ones, if it is given: there is no padding.
        """
        if begins is not None:
            mems = self._remembered(begins, input_ids.shape[0])
        found = self.transformer(
            input_ids,
            attention_mask,
            mems=mems,
            use_mems=True,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        if begins is not None:
            self.memory = tuple(found.mems)
        hidden = found.last_hidden_state
        result = TransformerXLOutput(mems=found.mems, hidden_states=found.hidden_states, attentions=found.attentions)
        if labels is None:
            result.logits = self._log_probabilities(hidden)
        else:
            result.token_losses, result.loss = self._losses(hidden, labels)
        return result if return_dict is not False else result.to_tuple()

    def _remembered(self, begins: Tensor, texts: int) -> tuple[Tensor, ...] | None:
        if bool(begins.all()):
            return None
        if bool(begins.any()):
            raise DataError("Some texts of a batch begin and others go on; begin all texts of a batch together.")
        if self.memory is None or self.memory[0].shape[1] != texts:
            raise DataError(
                f"A batch of {texts} texts goes on with what the model does not remember; run the batches in order, "
                "from one that begins, or set model.memory to what was saved."
            )
        return self.memory

    def _log_probabilities(self, hidden: Tensor) -> Tensor:
        if self.adaptive is None:
            assert self.head is not None
            return functional.log_softmax(self.head(hidden), dim=-1)
        return self.adaptive.log_prob(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])

    def _losses(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        predicted = labels != IGNORED
        losses = hidden.new_zeros(labels.shape, dtype=torch.float32)
        if bool(predicted.any()):
            if self.adaptive is None:
                assert self.head is not None
                some = functional.cross_entropy(self.head(hidden[predicted]), labels[predicted], reduction="none")
            else:
                some = -self.adaptive(hidden[predicted], labels[predicted]).output
            losses = losses.masked_scatter(predicted, some.float())
        return losses, losses.sum() / predicted.sum().clamp_min(1)

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of words."""
        return self.transformer.word_embedding


def register() -> None:
    """Make the model known to the ``Auto`` classes of transformers, so that saved ones load by their folder."""
    AutoConfig.register(TransformerXLConfig.model_type, TransformerXLConfig, exist_ok=True)
    AutoModel.register(TransformerXLConfig, TransformerXLBackbone, exist_ok=True)
    AutoModelForCausalLM.register(TransformerXLConfig, TransformerXL, exist_ok=True)
