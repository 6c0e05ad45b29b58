"""Cross-attention of plain modules without self-attention: recurrent encoders and decoders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attrim.attention.context import attach
from attrim.attention.discover import find_sites
from attrim.measurement import measure
from attrim.stats.mean import Mean
from watching import Keep


class Attend(nn.Module):
    """One head over what the encoder gave."""

    def forward(self, query: Tensor, key: Tensor, real: Tensor) -> Tensor:
        scores = query @ key.transpose(1, 2)
        return scores.masked_fill(~real[:, None], -1e9).softmax(-1) @ key


class Copier(nn.Module):
    """A plain recurrent encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.read, self.write = (nn.GRU(8, 8, batch_first=True) for _ in range(2))
        self.attend = Attend()

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor | None = None) -> Tensor:
        hidden, last = self.read(self.embed(source))
        return self.attend(self.write(self.embed(target), last)[0], hidden, source_mask.bool())


class SelfAttending(nn.Module):
    """Tokens and their types go together: neither can be cut alone, so that there is only one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.attend = Attend()

    def forward(self, tokens: Tensor, types: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.embed(types)
        return self.attend(hidden, hidden, torch.ones_like(tokens, dtype=torch.bool))


SOURCE = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]])
TARGET = torch.tensor([[3, 2, 1, 4, 5], [3, 2, 0, 0, 0]])


@pytest.mark.parametrize("length", [5, 3])
def test_two_sequences_are_told_apart_whatever_their_lengths(length: int) -> None:
    example = (SOURCE, SOURCE > 0, TARGET[:, :length])
    (site,) = find_sites(Copier(), example)
    assert (site.role, site.streams, site.heads) == ("cross", ("decoder", "encoder"), 1)


def test_one_sequence_stays_one() -> None:
    (site,) = find_sites(SelfAttending(), (SOURCE, SOURCE.clone()))
    assert site.role == "encoder"


def test_one_tensor_given_twice_is_one_sequence() -> None:
    hidden = torch.randn(2, 5, 8)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    assert find_sites(model, (hidden, hidden, hidden))[0].role == "encoder"


@pytest.mark.parametrize("named", [True, False])
def test_padded_target_steps_do_not_count(named: bool) -> None:
    model = Copier().eval()
    batch = {"source": SOURCE, "source_mask": SOURCE > 0, "target": TARGET, "target_mask": TARGET > 0}
    example = (SOURCE, SOURCE > 0, TARGET)
    with attach(model, stats=[keep := Keep()], example=example), torch.no_grad():
        model(**batch) if named else model(*batch.values())
    call = keep.calls["attend"]
    assert call.queries.tolist() == (TARGET > 0).tolist()
    assert call.valid[1, 0].tolist() == [[True] * 3 + [False] * 2] * 2 + [[False] * 5] * 3


def test_averages_leave_padded_target_steps_out() -> None:
    batch = {"source": SOURCE, "source_mask": SOURCE > 0, "target": TARGET, "target_mask": TARGET > 0}
    mean = measure(Copier().eval(), [batch], Mean(), progress=False)["Mean"]
    assert isinstance(mean, Mean)
    assert mean.counts(mean.sites[0])[0].tolist() == [[2, 2, 2, 1, 1]] * 2 + [[1, 1, 1, 1, 1]] * 3


def test_labels_tell_padded_target_steps_too() -> None:
    class Labelled(Copier):
        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(input_ids, input_ids > 0, labels.clamp(min=0))

    labels, model = TARGET.masked_fill(TARGET == 0, -100), Labelled().eval()
    with attach(model, stats=[keep := Keep()], example=(SOURCE, labels)), torch.no_grad():
        model(SOURCE, labels=labels)
    assert keep.calls["attend"].queries.tolist() == (TARGET > 0).tolist()
