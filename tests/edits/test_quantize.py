"""The edit: options and their errors, gradients, bad weights, text and files, and real models."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertConfig, BertModel

import attrim
from attrim.attention.context import attach
from attrim.codebooks import METHODS, Codebook, make_codebook
from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.core.registry import EDITS
from attrim.core.site import Select
from attrim.core.text import describe, parse
from attrim.edits import load_edits, save_edits
from attrim.edits.quantize import Quantize, quantize
from attrim.errors import ArtefactError, AttrimError, DataError, ParameterError, UnknownName
from attrim.stats.sample import Sample

BEST = "linear-slog-clamped-midval"
UNFITTED = [method for method in METHODS if METHODS[method].kind != "fitted"]


def attention(*shape: int) -> Tensor:
    return torch.softmax(torch.randn(*shape) * 3, -1)


@pytest.mark.parametrize("bits", [0, 17, -1, 2.5, 3.0, True])
def test_bits(bits) -> None:
    with pytest.raises(ParameterError, match=r"bits('.* cannot be .*; give| must be) a whole number"):
        Quantize(BEST, bits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "linear-slog-clamped-midvall", "bits": 3}, "did you mean 'linear-slog-clamped-midval'"),
        ({"method": BEST}, "needs bits"),
        ({"method": BEST, "bits": 3, "prune": 1.0}, "prune must lie between 0 and 1"),
        ({"method": BEST, "bits": 3, "prune": 0.0}, "cannot begin at 0"),
        ({"method": BEST, "bits": 3, "prune": float("nan")}, "prune must lie between 0 and 1"),
        ({"method": "linear-slinear", "bits": 3, "prune": 0.01}, "has no 'prune'; leave it out, and put a Threshold"),
        ({"method": "linear-slinear", "bits": 3, "low": 0.1}, "has no 'low'"),
        ({"method": BEST, "bits": 3, "scope": "head"}, "the same for all weights"),
        ({"method": "binarization", "scope": "layer"}, "it can have row"),
        ({"method": "bin-majority", "mass": 0.0}, "mass must lie above 0"),
        ({"method": "uniform-slog-mean", "bits": 3, "scope": "row", "as_coded": True}, "leave out scope"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(AttrimError, match=message) as caught:
        Quantize(**options).apply(attention(1, 1, 2, 2))
    assert "\n" not in str(caught.value)


def test_names_with_underscores() -> None:
    assert Quantize("linear_slog_clamped_midval", 3).method == BEST
    with pytest.raises(UnknownName, match="There is no quantising method named 'nothing-like-it'"):
        Quantize("nothing-like-it", 3)


@pytest.mark.parametrize("method", UNFITTED)
@pytest.mark.parametrize("as_coded", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(method: str, as_coded: bool, bad: float) -> None:
    weights = attention(1, 2, 4, 4)
    weights[0, 1, 2, 3] = bad
    edit = Quantize(method, 3, as_coded=as_coded)
    with pytest.raises(DataError, match="'plain' hold NaN or infinity"):
        edit.apply(weights)
    allowed = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    allowed[..., 3] = False
    assert torch.isfinite(edit.apply(weights, allowed)).all()  # nobody looks at a forbidden cell


@pytest.mark.parametrize("method", UNFITTED)
@pytest.mark.parametrize("renormalize", [False, True])
def test_nothing_above_one_and_zeros_stay(method: str, renormalize: bool) -> None:
    weights = attention(2, 3, 5, 30)
    weights[0, 0, 0] = 0
    weights[0, 0, 1] = torch.eye(30)[3]
    found = Quantize(method, 2, renormalize=renormalize).apply(weights)
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[weights == 0] == 0).all()
    if renormalize:
        sums = found.sum(-1)
        assert torch.allclose(sums[sums > 0], torch.ones(()), atol=1e-5)


def test_the_released_code_depends_on_the_batch_and_ours_does_not() -> None:
    weights = attention(2, 2, 6, 6)
    for as_coded, same in ((True, False), (False, True)):
        edit = Quantize("uniform-slog-mean", 2, as_coded=as_coded)
        assert torch.equal(edit.apply(weights)[:1], edit.apply(weights[:1])) == same
    released = Quantize("binarization", as_coded=True).apply(weights)
    kept = weights >= 1e-3
    assert torch.allclose(released[kept], 1 / kept.sum())
    ours = Quantize("binarization").apply(weights)
    assert torch.allclose(ours.sum(-1), torch.ones(()))


def test_the_released_code_counts_padding_as_zeros() -> None:
    """Half of the tensor is padding, so the first cut is zero and the zeros survive; alone they would be raised."""
    weights = attention(1, 1, 4, 4)
    edit = Quantize("uniform-slog-mean", 2, as_coded=True)
    padded = torch.zeros(1, 1, 8, 8)
    padded[..., :4, :4] = weights
    junk = torch.where(padded > 0, padded, torch.rand_like(padded))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0]])
    assert torch.equal(edit.apply(junk, mask), edit.apply(padded, mask))


@pytest.mark.parametrize("method", ["uniform-slinear-clamped-mean", "uniform-slog-clamped-mean", "binarization"])
def test_where_the_released_code_fails(method: str) -> None:
    with pytest.raises(DataError, match="leave out as_coded=True"):
        Quantize(method, 2, as_coded=True).apply(torch.full((1, 1, 1, 4), 1e-4))


def test_gradients_go_straight_through_to_what_is_kept() -> None:
    weights = torch.tensor([0.5, 0.3, 0.1995, 0.0005]).view(1, 1, 1, 4).requires_grad_()
    factors = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for edit in (Quantize(BEST, 3), Quantize("uniform-slog-clamped-mean", 2), Quantize(BEST, 3, as_coded=True)):
        (gradient,) = torch.autograd.grad((edit.apply(weights) * factors).sum(), weights)
        assert gradient.flatten().tolist() == [1.0, 2.0, 3.0, 0.0]
    values = quantize(weights, make_codebook(BEST, 3))
    assert torch.equal(values, Quantize(BEST, 3).apply(weights))
    assert values.requires_grad
    assert torch.equal(quantize(weights, make_codebook(BEST, 3), renormalize=True).sum(-1), torch.ones(1, 1, 1))


def test_one_training_step_lowers_the_loss() -> None:
    scores = torch.zeros(1, 1, 3, 6, requires_grad=True)
    target = torch.eye(6)[:3][None, None]
    edit = Quantize(BEST, 3)
    call = Call.plain(scores)
    losses = []
    for _ in range(60):
        loss = (Plan([(edit, (0,))]).weights(scores, call) - target).square().sum()
        (gradient,) = torch.autograd.grad(loss, scores)
        scores = (scores - 2.0 * gradient).detach().requires_grad_()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize(
    "text",
    [
        f"quantize:{BEST},bits=3",
        f"quantize:{BEST},bits=3,prune=0.01,renormalize=true,layers=0-3",
        "quantize:uniform-slog-mean,bits=2,scope=row",
        "quantize:quant-8-log,bits=4,as_coded=true,low=0.01,high=0.9",
        "quantize:bin-majority,mass=0.9",
        "quantize:binarization",
    ],
)
def test_text_and_back(text: str) -> None:
    edit = parse(EDITS, text)
    assert isinstance(edit, Quantize)
    assert describe(edit) == text


def test_bad_text() -> None:
    for text, message in (
        ("quantize", "lacks 'method'"),
        ("quantize:linear-slog,bits=2.5", "a whole number"),
        ("quantize:linear-slog,3,scope=heads", "did you mean 'head'"),
        ("quantize:liner-slog,3", "did you mean 'linear-slog'"),
        ("quantize:linear-slog,20", "from 1 to 16"),
    ):
        with pytest.raises(AttrimError, match=message):
            parse(EDITS, text)


def test_a_codebook_of_ones_own(tmp_path) -> None:
    book = Codebook(torch.tensor([0.1, 0.5]), torch.tensor([0.0, 0.25, 0.75]), name="mine")
    edit = Quantize(book, select=Select(heads=0))
    weights = attention(1, 2, 3, 4)
    expected = book.apply(weights)
    found = edit.apply(weights)
    assert torch.equal(found[:, 0], expected[:, 0])
    assert torch.equal(found[:, 1], weights[:, 1])
    (loaded,) = load_edits(save_edits(edit, tmp_path))
    assert isinstance(loaded, Quantize)
    assert (loaded.method, loaded.bits) == ("mine", 2)
    assert torch.equal(loaded.apply(weights), found)
    assert torch.equal(dataclasses.replace(edit, select=Select()).apply(weights), expected)
    with pytest.raises(ParameterError, match="not for codebooks"):
        Quantize(book, as_coded=True)
    with pytest.raises(ParameterError, match="must be a Histogram stat or codebooks"):
        Quantize("lloyd-max", 3, fitted=3)


def test_a_damaged_file_is_refused(tmp_path) -> None:
    folder = save_edits(Quantize(BEST, 3), tmp_path)
    path = folder / "edits.json"
    path.write_text(path.read_text().replace('"bits": 3', '"bits": 33'))
    with pytest.raises(ArtefactError, match="has changed since it was saved"):
        load_edits(folder)


@given(length=st.integers(1, 10), more=st.integers(1, 5), method=st.sampled_from(UNFITTED))
def test_padding_does_not_matter(length: int, more: int, method: str) -> None:
    edit = Quantize(method, 3)
    alone = attention(1, 2, length, length)
    padded = torch.nn.functional.pad(alone, (0, more, 0, more), value=0.5)
    mask = torch.tensor([[1] * length + [0] * more])
    found = edit.apply(padded, mask)
    torch.testing.assert_close(found[..., :length, :length], edit.apply(alone), rtol=1e-6, atol=0)
    assert (found[..., length:] == 0).all()


def test_in_a_model_the_weights_are_levels() -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    model = BertModel(BertConfig(vocab_size=50, initializer_range=0.5, **sizes)).eval()
    sample = Sample()
    with torch.no_grad(), attach(model, [Quantize(BEST, 3)], [sample]):
        model(torch.randint(1, 50, (2, 9)))
    levels = make_codebook(BEST, 3).values.float()
    for site in sample.sites:
        for weights in sample.matrices(site).values():
            assert bool(torch.isin(weights, levels).all())
            assert len(weights.unique()) > 1
    assert len(sample.sites) == 2
    assert attrim.Quantize is Quantize
