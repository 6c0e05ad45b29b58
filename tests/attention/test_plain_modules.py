"""Attention that nobody listed: plain modules with a softmax over keys of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attrim.attention.context import attach, edit
from attrim.attention.discover import find_sites
from attrim.core.site import Select
from attrim.edits.uniform import Uniform
from attrim.errors import SiteError
from attrim.measurement import measure
from attrim.stats.mean import Mean
from watching import Keep, SameScores, SameWeights, Scale, ScaleOutput


class Handmade(nn.Module):
    """Self-attention as one writes it by hand; the ways of calling softmax differ."""

    def __init__(self, how: str = "child", heads: int = 2, size: int = 8) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.project = nn.Linear(size, 3 * size)
        self.normal = nn.Softmax(dim=-1)
        self.drop = nn.Dropout(0.1)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, size = hidden.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.project(hidden).chunk(3, -1)
        )
        if self.how == "fused":
            merged = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            return merged.transpose(1, 2).reshape(batch, length, size)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if self.how == "flat":  # [B*H, Q, K], as older code has it
            weights = functional.softmax(scores.flatten(0, 1), 2).view_as(scores)
        else:
            weights = {
                "child": lambda: self.normal(scores),
                "function": lambda: functional.softmax(scores, dim=-1, dtype=torch.float32),
                "method": lambda: scores.softmax(-1),
                "torch": lambda: torch.softmax(input=scores, dim=3),
                "einsum": lambda: torch.softmax(scores, -1),
            }[self.how]()
        weights = self.drop(weights).to(value.dtype)
        output = torch.einsum("bhqk,bhkd->bhqd", weights, value) if self.how == "einsum" else weights @ value
        return output.transpose(1, 2).reshape(batch, length, size)


class Network(nn.Module):
    """Two layers, with a router whose softmax is no attention."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Handmade(how) for _ in range(2))
        self.router = nn.Linear(8, 3)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            hidden = hidden + layer(hidden, mask)
        return hidden * functional.softmax(self.router(hidden), dim=-1)[..., :1]


WAYS = ["child", "function", "method", "torch", "einsum", "flat", "fused"]


@pytest.mark.parametrize("how", WAYS)
def test_handmade_attention_is_found_and_edited(how: str) -> None:
    torch.manual_seed(0)
    model, hidden = Network(how).eval(), torch.randn(3, 5, 8)
    found = find_sites(model, (hidden,))
    assert [(site.name, site.role, site.layer, site.heads, site.route) for site in found] == [
        ("layers.0", "encoder", 0, 2, "softmax"),
        ("layers.1", "encoder", 1, 2, "softmax"),
    ]
    mask = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    mask[1, :, :, 3:] = False
    with torch.no_grad():
        stock = model(hidden, mask)
        for same in (SameScores(), SameWeights()):
            with edit(model, same):
                torch.testing.assert_close(model(hidden, mask), stock)
        with attach(model, [Uniform()], [keep := Keep()]):
            assert not torch.allclose(model(hidden, mask), stock)
    torch.testing.assert_close(keep.tensors["layers.0"][1, 0, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0, 0]))
    torch.testing.assert_close(keep.tensors["layers.0"][0, 0, 0], torch.full((5,), 0.2))
    assert keep.calls["layers.0"].keys.int().tolist()[1] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("how", WAYS)
def test_outputs_of_handmade_heads(how: str) -> None:
    model, hidden = Network(how).eval(), torch.randn(3, 5, 8)
    one = Select(names="layers.1", heads=[0])
    with torch.no_grad():
        with edit(model, Scale(0.2), select=one, example=(hidden,)):
            by_weights = model(hidden)
        with edit(model, ScaleOutput(0.2), select=one):
            by_output = model(hidden)
    torch.testing.assert_close(by_output, by_weights)


@pytest.mark.parametrize("how", ["child", "fused"])
def test_gradients_flow_through_handmade_attention(how: str) -> None:
    model, hidden = Network(how), torch.randn(2, 4, 8)
    with edit(model, Scale(0.5), example=(hidden,)):
        model(hidden).sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())


def test_encoder_and_decoder_of_torch_are_told_by_their_paths() -> None:
    """Without a causal mask only the paths tell the decoder, and only its own padding tells real cross queries."""
    model = nn.Transformer(16, 4, 1, 1, 24, batch_first=True).eval()
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    batch = {"src": source, "tgt": target, "tgt_key_padding_mask": padding}
    mean = measure(model, [batch], Mean(), progress=False)["Mean"]
    assert isinstance(mean, Mean)
    assert [(site.role, site.layer) for site in mean.sites] == [("encoder", 0), ("decoder", 0), ("cross", 0)]
    assert mean.counts(mean.sites[2])[0].tolist() == [[2] * 5, [2] * 5, [1] * 5, [1] * 5]


def test_grouped_queries_in_fused_attention() -> None:
    class Grouped(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    model = Grouped()
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    (site,) = find_sites(model, (query, key, value))
    assert (site.role, site.heads) == ("decoder", 4)
    with torch.no_grad(), attach(model, stats=[keep := Keep()]):
        torch.testing.assert_close(model(query, key, value), model.forward(query, key, value))
    weights = keep.tensors[site.name]
    assert not weights.triu(1).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 7}]
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_torch_multi_head_attention(options: dict[str, Any], need_weights: bool) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()
    query = torch.randn(2, 4, 8)
    key, value = torch.randn(2, 5, options.get("kdim", 8)), torch.randn(2, 5, options.get("vdim", 8))
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    arguments = {"key_padding_mask": padding, "need_weights": need_weights, "average_attn_weights": False}
    with torch.no_grad():
        stock, stock_weights = model(query, key, value, **arguments)
        with attach(model, stats=[keep := Keep()], example=(query, key, value)):
            ours, weights = model(query, key, value, **arguments)
        torch.testing.assert_close(ours, stock)
        if need_weights:
            torch.testing.assert_close(weights, stock_weights)
            torch.testing.assert_close(keep.tensors[""], stock_weights)
        else:
            assert weights is None
        with edit(model, Scale(0.0)):
            nothing, _ = model(query, key, value, **arguments)
    expected = model.out_proj.bias if model.out_proj.bias is not None else torch.zeros(8)
    torch.testing.assert_close(nothing, expected.expand_as(nothing))


def test_torch_transformer_has_three_roles() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True).eval()
    source, target = torch.randn(2, 6, 8), torch.randn(2, 4, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    example = {"src": source, "tgt": target, "tgt_mask": causal}
    assert [site.role for site in find_sites(model, example)] == ["encoder"] * 2 + ["decoder", "cross"] * 2
    with torch.no_grad():
        stock = model(**example)
        with attach(model, stats=[keep := Keep()]):
            torch.testing.assert_close(model(**example), stock)
    for weights in keep.of_roles("decoder"):
        assert not weights.triu(1).any()
    for weights in keep.of_roles("cross"):
        assert weights.shape == (2, 2, 4, 6)


def test_a_row_without_allowed_keys_gives_zeros() -> None:
    model, hidden = Network("child").eval(), torch.randn(1, 3, 8)
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[0, 0, 1] = False
    with torch.no_grad(), attach(model, [SameScores()], [keep := Keep()], example=(hidden,)):
        assert model(hidden, mask).isfinite().all()
    assert not keep.tensors["layers.0"][0, :, 1].any()


def test_scores_that_do_not_show_the_heads_are_refused() -> None:
    class Odd(nn.Module):
        num_heads = 3

        def forward(self, hidden: Tensor) -> Tensor:  # [B, Q, H, K]: the heads stand after the queries
            return torch.softmax(hidden, -1) @ hidden.transpose(-1, -2)

    with pytest.raises(SiteError, match="does not show 3 heads"):
        find_sites(Odd(), (torch.randn(2, 5, 4, 5),))


def test_windows_between_heads_and_queries() -> None:
    class Windows(nn.Module):
        num_heads = 2

        def forward(self, query: Tensor, value: Tensor) -> Tensor:  # [B, H, W, Q, D]
            return torch.softmax(query @ query.transpose(-1, -2), -1) @ value

    model, query, value = Windows(), torch.randn(2, 2, 3, 5, 4), torch.randn(2, 2, 3, 5, 4)
    with torch.no_grad():
        stock = model(query, value)
        with attach(model, [SameWeights()], [keep := Keep()], example=(query, value)):
            torch.testing.assert_close(model(query, value), stock)
        with edit(model, Scale(0.0), select=Select(heads=1)):
            half = model(query, value)
    assert keep.tensors[""].shape == (6, 2, 5, 5)
    torch.testing.assert_close(half[:, 0], stock[:, 0])
    assert not half[:, 1].any()
