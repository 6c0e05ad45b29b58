from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, BertModel

import attrim
from attrim.core.call import Call
from attrim.core.site import Select
from attrim.edits import Constant
from attrim.edits.base import Edit
from attrim.errors import DataError
from attrim.scores import SCORES
from attrim.scores.gradient import Gradient

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}


def make(kind: type, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    model = kind(BertConfig(vocab_size=64, num_labels=3, **SIZES)).to(dtype)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def texts(count: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(count, 6, dtype=torch.long)
    mask[0, 3:5] = 0  # a gap, as layouts make it
    ids = torch.randint(3, 64, (count, 6), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (count,), generator=generator)}


@dataclass(frozen=True, eq=False)
class Blend(Edit):
    """So much of the attention, the rest constant; independent of the code that is tested."""

    matrix: dict[str, Tensor]
    share: float

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        mask = call.keys[:, None, None, :] & call.queries[:, None, :, None]
        constant = self.matrix[call.site.name][list(call.heads)] * mask
        return self.share * weights + (1 - self.share) * constant / constant.sum(-1, keepdim=True).clamp(min=1e-12)


@pytest.mark.parametrize("signed", [False, True])
def test_it_is_the_slope_towards_the_constant(signed: bool) -> None:
    """Every head of every example, against a one-sided difference of its own loss."""
    model = make(BertForSequenceClassification).train()
    batches = [texts(3, seed=1), texts(2, seed=2)]
    matrix = {site.name: torch.rand(3, 6, 6, dtype=torch.float64) for site in attrim.sites(model)}
    scores = Gradient(signed=signed)(model, batches, matrix)
    assert model.training  # as before, although dropout is off while heads are scored
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    step = 1e-6
    for site in attrim.sites(model):
        for head in range(3):
            changes = []
            for inputs in batches:
                for number in range(len(inputs["labels"])):
                    one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
                    edit = Blend(matrix, 1 - step, select=Select(heads=[(site.name, head)]))
                    with torch.no_grad():
                        before = model(**one).loss
                        with attrim.edit(model, edit):
                            changes.append(float((model(**one).loss - before) / step))
            slopes = torch.tensor(changes, dtype=torch.float64)
            expected = slopes.mean() if signed else slopes.abs().mean()
            assert float(scores.values[site.name][head]) == pytest.approx(float(expected), rel=1e-3, abs=1e-6)


def test_what_is_constant_already_changes_nothing() -> None:
    model = make(BertForSequenceClassification)
    inputs = texts(1, seed=3)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model.eval()(**inputs, output_attentions=True).attentions
    matrix = {site.name: attentions[site.layer][0] for site in attrim.sites(model)}
    scores = SCORES["gradient"]()(model, [inputs], matrix)
    assert scores.table().max() < 1e-12
    other = SCORES["gradient"]()(model, [inputs], Constant(torch.rand(1, 6, 6)))
    assert other.table().min() > 1e-9


def test_it_needs_a_loss() -> None:
    inputs = texts(2, seed=1)
    constants = torch.rand(1, 6, 6)
    with pytest.raises(DataError, match="the batches are empty"):
        Gradient()(make(BertModel), [], constants)
    unlabelled = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    for kind in (BertModel, BertForSequenceClassification):
        with pytest.raises(DataError, match="gave no loss"):
            Gradient()(make(kind, torch.float32), [unlabelled], constants)
