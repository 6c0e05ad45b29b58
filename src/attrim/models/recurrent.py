"""Recurrent networks with attention outside of the recurrence (Snell et al. 2021, https://arxiv.org/abs/2103.07601).

Attention never feeds a recurrent state, so that "what if all attention were on one key" can be asked exactly. Both are
classes of ``transformers``, so that saving, loading, generating, tasks and training work as for any other. Weights
begin as those of torch's own layers: embeddings N(0, 1), recurrent ones U(±1/sqrt(hidden)), linear U(±1/sqrt(inputs)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import Seq2SeqLMOutput, SequenceClassifierOutput
from transformers.utils.generic import ModelOutput

from ..errors import DataError, ParameterError

FORBIDDEN = -1e9
"""Added to the score of a padded key, as in the released code."""


class RecurrentClassifierConfig(PretrainedConfig):
    """A bidirectional LSTM with attention that tells two classes apart; the defaults are the paper's sizes.

    Parameters
    ----------
    embed_dim : size of the embeddings.
    hidden_dim : size of each direction of the LSTM.
    intermediate_dim : size of the layer inside of the attention.
    layers, dropout : of the LSTM; dropout is between its layers.
    """

    model_type = "attrim-recurrent-classifier"

    vocab_size: int = 20_000
    embed_dim: int = 300
    hidden_dim: int = 256
    intermediate_dim: int = 256
    layers: int = 1
    dropout: float = 0.0
    pad_token_id: int | None = 0


class RecurrentSeq2SeqConfig(PretrainedConfig):
    """A recurrent encoder and decoder; the defaults are the paper's translator.

    Parameters
    ----------
    hidden_dim : size of embeddings, of each direction of the encoder, and of the decoder.
    layers : of the encoder and of the decoder.
    cell : ``lstm`` or ``gru``.
    bidirectional : whether the encoder reads backwards, too.
    dropout : between the layers of the encoder.
    heads : heads of attention, whose contexts are averaged.
    shared : one table of embeddings for source and target, or one each.
    mix : how the decoder state and the context are mixed: ``relu`` or ``tanh`` of a layer over both, or their ``sum``.
    context_first : the order of the two in that layer.
    context : whether the decoder sees the context; zeros otherwise.
    """

    model_type = "attrim-recurrent-seq2seq"

    vocab_size: int = 8000
    hidden_dim: int = 256
    layers: int = 2
    cell: str = "lstm"
    bidirectional: bool = True
    dropout: float = 0.5
    heads: int = 1
    shared: bool = True
    mix: str = "relu"
    context_first: bool = False
    context: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True

    @property
    def key_dim(self) -> int:
        """The size of the encoder's states."""
        return self.hidden_dim * (2 if self.bidirectional else 1)


def copier_config(
    num_vocab: int, hidden_dim: int = 256, *, heads: int = 0, bidirectional: bool = False, **options: Any
) -> RecurrentSeq2SeqConfig:
    """The copying networks: ``num_vocab`` symbols, then the end and the start of a sequence.

    Parameters
    ----------
    heads : 0 is the single-head LSTM; otherwise the GRU with so many heads and embeddings of its own for each side.
    """
    several = {"cell": "gru", "shared": False, "context_first": True, "heads": heads} if heads else {}
    return RecurrentSeq2SeqConfig(
        vocab_size=num_vocab + 2,
        hidden_dim=hidden_dim,
        layers=1,
        bidirectional=bidirectional,
        dropout=0.0,
        mix="tanh",
        pad_token_id=None,
        eos_token_id=num_vocab,
        bos_token_id=num_vocab + 1,
        decoder_start_token_id=num_vocab + 1,
        **{**several, **options},
    )


class _Recurrent(PreTrainedModel):
    """What both networks share: weights that begin as torch's layers do."""

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding, nn.RNNBase)):
            module.reset_parameters()


def run_recurrent(network: nn.RNNBase, inputs: Tensor, mask: Tensor | None, state: Any = None) -> tuple[Tensor, Any]:
    """Run a recurrent layer over texts ``[B, L, D]`` that are padded on the right.

    Parameters
    ----------
    mask : bool ``[B, L]``; padding is never read, so that the backward direction begins at the last real token.
    """
    if mask is None or bool(mask.all()):
        found: tuple[Tensor, Any] = network(inputs, state)
        return found
    packed = pack_padded_sequence(inputs, _lengths(mask).cpu(), batch_first=True, enforce_sorted=False)
    output, last = network(packed, state)
    return pad_packed_sequence(output, batch_first=True, total_length=inputs.shape[1])[0], last


def hidden_states(network: nn.LSTM, inputs: Tensor, mask: Tensor) -> Tensor:
    """The states ``[B, L, directions x D]`` of :func:`run_recurrent`, 0 on padding, without the final ones.

    Each direction is one call over the whole batch. torch steps through packed texts one token at a time, which takes
    three to four times as long on a CPU. Padding comes last for both directions, so that no real token depends on it.
    """
    if bool(mask.all()):
        found: Tensor = network(inputs)[0]
        return found
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    backwards = torch.where(mask, _lengths(mask)[:, None] - 1 - places, places)[..., None]
    weights, states = network.all_weights, inputs
    directions = 2 if network.bidirectional else 1
    first = inputs.new_zeros(1, inputs.shape[0], network.hidden_size)
    for layer in range(network.num_layers):
        if layer and network.dropout:
            states = functional.dropout(states, network.dropout, network.training)
        found_states = []
        for direction in range(directions):
            order = backwards.expand_as(states) if direction else None
            read = states if order is None else states.gather(1, order)
            own = tuple(weights[directions * layer + direction])
            output = torch.lstm(read, (first, first), own, network.bias, 1, 0.0, network.training, False, True)[0]
            found_states.append(output if order is None else output.gather(1, backwards.expand_as(output)))
        states = torch.cat(found_states, dim=-1)
    return states * mask[..., None]


def _lengths(mask: Tensor) -> Tensor:
    """The number of real tokens ``[B]`` of a mask that is checked."""
    lengths = mask.sum(1)
    front = torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]
    if int(lengths.min()) < 1 or not torch.equal(mask, front):
        raise DataError(
            "A recurrent network reads texts of at least one token that are padded on the right; set "
            "tokenizer.padding_side = 'right' and leave empty texts out."
        )
    return lengths


class AttentionPooling(nn.Module):
    """One query, the same for all texts, over the states of a text: what its attention weighs are scalars."""

    def __init__(self, config: RecurrentClassifierConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * config.hidden_dim, config.intermediate_dim)
        self.score = nn.Linear(config.intermediate_dim, 1)

    def forward(self, hidden: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """States ``[B, L, D]`` and values ``[B, L, 1]`` to the attended value ``[B]``; mask bool ``[B, L]``."""
        scores = self.score(functional.relu(self.inner(hidden))).transpose(1, 2)
        weights = scores.masked_fill(~mask[:, None], FORBIDDEN).softmax(-1)
        return (weights @ values).flatten()


class RecurrentClassifier(_Recurrent):
    """Embeddings, a bidirectional LSTM, a logit for each position, and attention that weighs these logits.

    Its two logits are 0 and z, so that their cross entropy is the binary one of z, and the larger one says whether z
    is above 0.
    """

    config_class = RecurrentClassifierConfig

    def __init__(self, config: RecurrentClassifierConfig) -> None:
        super().__init__(config)
        if config.num_labels != 2:
            raise ParameterError(
                f"This classifier tells two classes apart, not {config.num_labels}; reduce the data to two."
            )
        self.embedding = nn.Embedding(config.vocab_size, config.embed_dim)
        dropout = config.dropout if config.layers > 1 else 0.0
        self.encoder = nn.LSTM(
            config.embed_dim, config.hidden_dim, config.layers, dropout=dropout, bidirectional=True, batch_first=True
        )
        self.pooling = AttentionPooling(config)
        self.value = nn.Linear(2 * config.hidden_dim, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Classify texts ``[B, L]``; logits ``[B, 2]``."""
        inputs = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones_like(inputs[..., 0], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        hidden = hidden_states(self.encoder, inputs, mask)
        values = self.position_logits(hidden, mask)
        logit = self.pooling(hidden, values, mask)
        logits = torch.stack([torch.zeros_like(logit), logit], dim=1)
        loss = None if labels is None else functional.binary_cross_entropy_with_logits(logit, labels.to(logit.dtype))
        found: dict[str, Any] = {"loss": loss, "logits": logits}
        result = SequenceClassifierOutput(**found)
        return result if return_dict is not False else result.to_tuple()

    def position_logits(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The logit of every position ``[B, L, 1]``, beta of the paper: 0 on padding."""
        values: Tensor = self.value(hidden)
        return values * mask[..., None]

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of tokens."""
        return self.embedding


class Head(nn.Module):
    """What one head of cross-attention owns; it can be swapped into another model."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_dim, config.key_dim)
        self.output = nn.Linear(config.key_dim, config.hidden_dim)


class CrossAttention(nn.Module):
    """Heads over the encoder's states, without scaling; their contexts are averaged."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        super().__init__()
        self.num_heads = config.heads
        self.heads = nn.ModuleList(Head(config) for _ in range(config.heads))

    def parts(self) -> list[Head]:
        """The heads in order."""
        return list(self.heads)  # type: ignore[arg-type]  # torch types the members of a list as modules

    def forward(self, states: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Decoder states ``[B, T, D]`` and encoder states ``[B, S, K]`` to the mean context ``[B, T, D]``."""
        found = [head.query(states) for head in self.parts()]
        queries = found[0][:, None] if len(found) == 1 else torch.stack(found, dim=1)
        # All heads in one product for each text: with a dimension for heads, torch would copy the keys for each.
        scores = (queries.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, queries.shape[1:3])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], FORBIDDEN)
        attended = scores.softmax(-1) @ keys[:, None]
        # Unbound, not indexed: the backward pass of an index fills a tensor of all heads with zeros for each of them.
        outputs = [head.output(one) for head, one in zip(self.parts(), attended.unbind(1), strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)


@dataclass
class Encoded(ModelOutput):
    """What the encoder gives: states ``[B, S, K]`` and the decoder's first state, ``[B, layers, D]`` each part."""

    last_hidden_state: Tensor | None = None
    state: Tensor | None = None
    cell: Tensor | None = None


class RecurrentEncoder(nn.Module):
    """Reads the source."""

    main_input_name = "input_ids"

    def __init__(self, config: RecurrentSeq2SeqConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        dropout = config.dropout if config.layers > 1 else 0.0  # torch has it between layers only
        self.network = _network(config, bidirectional=config.bidirectional, dropout=dropout)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Encoded:
        """Source tokens ``[B, S]``, or their embeddings, to states."""
        inputs = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        hidden, last = run_recurrent(self.network, inputs, None if attention_mask is None else attention_mask.bool())
        parts = [self._first(part) for part in (last if isinstance(last, tuple) else (last,))]
        return Encoded(hidden, *parts)

    def _first(self, last: Tensor) -> Tensor:
        """Final states ``[layers x directions, B, D]`` to ``[B, layers, D]``: the mean of the two directions."""
        states = last.unflatten(0, (self.config.layers, -1)).mean(1) if self.config.bidirectional else last
        return states.transpose(0, 1)


class RecurrentSeq2Seq(_Recurrent, GenerationMixin):
    """A recurrent encoder and decoder with cross-attention between their states."""

    config_class = RecurrentSeq2SeqConfig
    main_input_name = "input_ids"
    _tied_weights_keys = {"encoder.embedding.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        super().__init__(config)
        if config.cell not in ("lstm", "gru") or config.mix not in ("relu", "tanh", "sum"):
            raise ParameterError(
                f"cell is lstm or gru and mix is relu, tanh or sum, not {config.cell!r} and {config.mix!r}."
            )
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_dim)
        source = self.embedding if config.shared else nn.Embedding(config.vocab_size, config.hidden_dim)
        self.encoder = RecurrentEncoder(config, source)
        self.decoder = _network(config)
        self.cross_attention = CrossAttention(config)
        self.mix = nn.Linear(2 * config.hidden_dim, config.hidden_dim) if config.mix != "sum" else None
        self.output = nn.Linear(config.hidden_dim, config.vocab_size)
        self._tied_weights_keys = self._tied_weights_keys if config.shared else {}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Predict every next target token with the true ones before it; logits ``[B, T, V]``.

        Parameters
        ----------
        labels : int64 ``[B, T]``, -100 where there is none; without ``decoder_input_ids`` the decoder reads them, moved
            by one.
        decoder_attention_mask : bool ``[B, T]``; no computation needs it, but what watches attention does.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds)
        if decoder_input_ids is None:
            if labels is None:
                raise DataError("The decoder has nothing to read; give labels or decoder_input_ids.")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        states = self.decoder_states(decoder_input_ids, encoder_outputs)
        keys = encoder_outputs.last_hidden_state
        context = self.cross_attention(states, keys, None if attention_mask is None else attention_mask.bool())
        logits = self.predict(states, context if self.config.context else torch.zeros_like(context))
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        found: dict[str, Any] = {"loss": loss, "logits": logits, "encoder_last_hidden_state": keys}
        result = Seq2SeqLMOutput(**found)
        return result if return_dict is not False else result.to_tuple()

    def swap_heads(self, heads: Sequence[Head]) -> None:
        """Put these heads in place of those that attend; there may be more or fewer of them."""
        self.cross_attention.heads = nn.ModuleList(heads)
        self.cross_attention.num_heads = self.config.heads = len(heads)

    def decoder_states(self, decoder_input_ids: Tensor, encoded: Any) -> Tensor:
        """The decoder's states ``[B, T, D]``; they depend on the context of no step."""
        first = [part.transpose(0, 1).contiguous() for part in (encoded.state, encoded.cell) if part is not None]
        state = tuple(first) if len(first) == 2 else first[0]
        states: Tensor = self.decoder(self.embedding(decoder_input_ids), state)[0]
        return states

    def predict(self, states: Tensor, context: Tensor) -> Tensor:
        """Decoder states and contexts ``[..., D]`` to logits ``[..., V]``."""
        if self.mix is None:
            mixed = states + context
        else:
            both = (context, states) if self.config.context_first else (states, context)
            mixed = getattr(torch, self.config.mix)(self.mix(torch.cat(both, dim=-1)))
        logits: Tensor = self.output(mixed)
        return logits

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels ``[B, T]`` moved to the right by one, after the start token."""
        padding = self.config.pad_token_id or 0
        shifted = labels.masked_fill(labels == -100, padding).roll(1, dims=1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted

    def prepare_inputs_for_generation(  # type: ignore[override]  # nothing else of the stock inputs is used
        self, input_ids: Tensor, encoder_outputs: Any = None, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """The whole target so far, because no state is kept between steps."""
        return {
            "decoder_input_ids": input_ids,
            "encoder_outputs": encoder_outputs,
            "attention_mask": attention_mask,
        }

    def _prepare_cache_for_generation(self, *_: Any, **__: Any) -> bool:
        """Make no cache of keys and values: there are none."""
        return False

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        """What reads the source."""
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of source tokens."""
        return self.encoder.embedding


def _network(config: RecurrentSeq2SeqConfig, *, bidirectional: bool = False, dropout: float = 0.0) -> nn.RNNBase:
    kind = nn.LSTM if config.cell == "lstm" else nn.GRU
    size = config.hidden_dim
    return kind(size, size, config.layers, bidirectional=bidirectional, dropout=dropout, batch_first=True)


def register() -> None:
    """Make the networks known to the ``Auto`` classes of transformers, so that saved ones load by their folder."""
    AutoConfig.register(RecurrentClassifierConfig.model_type, RecurrentClassifierConfig, exist_ok=True)
    AutoConfig.register(RecurrentSeq2SeqConfig.model_type, RecurrentSeq2SeqConfig, exist_ok=True)
    AutoModel.register(RecurrentClassifierConfig, RecurrentClassifier, exist_ok=True)
    AutoModelForSequenceClassification.register(RecurrentClassifierConfig, RecurrentClassifier, exist_ok=True)
    AutoModel.register(RecurrentSeq2SeqConfig, RecurrentSeq2Seq, exist_ok=True)
    AutoModelForSeq2SeqLM.register(RecurrentSeq2SeqConfig, RecurrentSeq2Seq, exist_ok=True)
