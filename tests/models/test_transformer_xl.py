"""Transformer-XL against the equations of its paper, its memory, and masks in it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import attrim
from attrim.attention.context import attach
from attrim.edits import Mask, SparsePattern
from attrim.errors import DataError, ParameterError
from attrim.measurement import Checkpoint
from attrim.models.loading import load_model
from attrim.models.transformer_xl import TransformerXL, TransformerXLConfig
from attrim.stats.mean import Mean
from attrim.stats.npy import read_averages, write_averages
from watching import Keep

SIZES = {"vocab_size": 40, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 16, "mem_len": 6}
LENGTH = 4


def build(**changes: Any) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(TransformerXLConfig(**{**SIZES, "cutoffs": [10, 25], **changes}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def segments(number: int = 3, texts: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randint(0, 40, (number, texts, LENGTH), generator=generator))


def streamed(ids: list[Tensor]) -> list[dict[str, Tensor]]:
    return [
        {"input_ids": segment, "begins": torch.full((len(segment),), place == 0)} for place, segment in enumerate(ids)
    ]


def layer_by_the_paper(layer: Any, hidden: Tensor, memory: Tensor, shared: Any) -> Tensor:
    """One layer as https://arxiv.org/abs/1901.02860 writes it, for one text: ``[L, D]`` after a memory ``[M, D]``.

    ``A[i, j] = q_i k_j + q_i W_r R_(i - j) + u k_j + v W_r R_(i - j)``, each term written out for every pair.
    """
    attention = layer.rel_attn
    everything = torch.cat([memory, hidden])
    size = hidden.shape[-1]
    frequency = 1 / 10000 ** (torch.arange(0, size, 2.0, dtype=hidden.dtype) / size)
    outputs = []
    for i, state in enumerate(hidden):
        position = len(memory) + i
        heads = []
        for head in range(attention.n_head):
            query = state @ attention.q[:, head]
            scores = []
            for j in range(position + 1):
                angle = (position - j) * frequency
                relative = torch.cat([angle.sin(), angle.cos()]) @ attention.r[:, head]
                key = everything[j] @ attention.k[:, head]
                content, place = shared.r_w_bias[head], shared.r_r_bias[head]
                scores.append((query @ key + query @ relative + content @ key + place @ relative) / math.sqrt(len(key)))
            weights = torch.softmax(torch.stack(scores), 0)
            value = weights @ (everything[: position + 1] @ attention.v[:, head])
            heads.append(attention.o[:, head] @ value)
        outputs.append(sum(heads) + state)
    attended = attention.layer_norm(torch.stack(outputs))
    inner = functional.relu(layer.ff.layer_1(attended))
    return layer.ff.layer_norm(layer.ff.layer_2(inner) + attended)


def test_layers_and_memory_are_those_of_the_paper() -> None:
    """Scaled embeddings, shared biases, relative positions, the memory of the layer's input; three segments."""
    model = build().double()
    shared = model.transformer.layer[0].rel_attn
    memory = [torch.zeros(0, 12, dtype=torch.float64) for _ in range(2)]
    with torch.no_grad():
        for batch in streamed(segments(texts=1)):
            found = model(**batch, output_hidden_states=True)
            hidden = model.transformer.word_embedding.weight[batch["input_ids"][0]] * math.sqrt(12)
            torch.testing.assert_close(found.hidden_states[0][0], hidden)
            for place, layer in enumerate(model.transformer.layer):
                before, memory[place] = memory[place], torch.cat([memory[place], hidden])[-6:]
                hidden = layer_by_the_paper(layer, hidden, before, shared)
                torch.testing.assert_close(found.hidden_states[place + 1][0], hidden)


def test_a_single_layer_shares_its_biases_with_none(tmp_path: Path) -> None:
    model = build(n_layer=1)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, kind="causal-lm")
    ids = segments()[0]
    with torch.no_grad():
        assert torch.equal(loaded(ids, labels=ids).loss, model(ids, labels=ids).loss)


def test_biases_are_shared_and_saved_once(tmp_path: Path) -> None:
    model = build()
    names = [name for name, _ in model.named_parameters() if "r_w_bias" in name or "r_r_bias" in name]
    assert len(names) == 2
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, kind="causal-lm")
    assert type(loaded) is TransformerXL
    first, second = (layer.rel_attn.r_w_bias for layer in loaded.transformer.layer)
    assert first is second
    ids = segments()[0]
    with torch.no_grad():
        assert torch.equal(loaded(ids, labels=ids).loss, model(ids, labels=ids).loss)


@pytest.mark.parametrize("cutoffs", [[10, 25], []], ids=["adaptive", "tied"])
def test_losses_are_those_of_the_log_probabilities(cutoffs: list[int]) -> None:
    model = build(cutoffs=cutoffs)
    ids, labels = segments()[0], segments()[1].clone()
    labels[0, 2] = -100
    with torch.no_grad():
        logits, found = model(ids).logits, model(ids, labels=labels)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, LENGTH))
    expected = functional.nll_loss(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    torch.testing.assert_close(found.token_losses, expected.view(2, LENGTH))
    torch.testing.assert_close(found.loss, expected.sum() / 7)
    tied = [name for name, _ in model.named_parameters(remove_duplicate=False) if name == "head.weight"]
    assert bool(tied) is not bool(cutoffs)
    if tied:
        assert model.head.weight is model.transformer.word_embedding.weight


def test_the_model_remembers_between_batches() -> None:
    model = build()
    with torch.no_grad():
        kept = [model(**batch).logits for batch in streamed(segments())]
        mems, handed = None, []
        for segment in segments():
            found = model(segment, mems=mems)
            mems = found.mems
            handed.append(found.logits)
        alone = model(segments()[1]).logits
    assert all(torch.equal(one, other) for one, other in zip(kept, handed, strict=True))
    assert not torch.allclose(kept[1], alone)


def test_a_batch_that_goes_on_with_nothing_is_refused() -> None:
    model = build()
    first, second, _ = streamed(segments())
    with pytest.raises(DataError, match="does not remember"):
        model(**second)
    with torch.no_grad():
        model(**first)
    with pytest.raises(DataError, match="does not remember"):
        model(input_ids=second["input_ids"][:1], begins=second["begins"][:1])
    with pytest.raises(DataError, match="begin all texts"):
        model(input_ids=second["input_ids"], begins=torch.tensor([True, False]))
    with pytest.raises(ParameterError, match="uni"):
        TransformerXL(TransformerXLConfig(**SIZES, attn_type="bi"))


def test_positions_count_from_the_end_of_a_full_memory() -> None:
    """Quirk 8 of spec/attention-pruning.md: a segment without memory has the last columns, not those of the memory."""
    model = build()
    mean = attrim.measure(model, streamed(segments()), Mean(), progress=False)[Mean]
    counts = mean.counts(mean.sites[0])[0]
    assert counts.shape == (10, 10)
    assert not counts[:6].any()  # the memory asks nothing
    row = counts[6]  # the first token of a segment: three times itself; memory of 0, 4 and 6 tokens
    assert row.tolist() == [2, 2, 4, 4, 4, 4, 6, 0, 0, 0]
    assert counts[9].tolist() == [2, 2, 4, 4, 4, 4, 6, 6, 6, 6]


def test_a_mask_removes_the_same_relative_cells_in_every_segment() -> None:
    model = build()
    cells = torch.zeros(1, 10, 10, dtype=torch.bool)
    cells[0, 7, 5] = True  # two tokens before the second of a segment
    cells[0, 9, 6] = True  # the first of the segment, asked by the last
    for memory in (0, 4, 6):
        mems = None if memory == 0 else tuple(torch.randn(memory, 2, 12) for _ in range(2))
        keep = Keep()
        with torch.no_grad(), attach(model, [Mask(cells)], [keep]):
            model(segments()[0], mems=mems)
        for weights in keep.tensors.values():
            zeros = (weights[0, 0] == 0).nonzero().tolist()
            future = [[i, memory + j] for i in range(LENGTH) for j in range(i + 1, LENGTH)]
            removed = ([[1, memory - 1]] if memory else []) + [[3, memory]]
            assert sorted(zeros) == sorted(future + removed)


def test_a_fully_pruned_row_does_not_leak_the_future() -> None:
    """Quirk 5: the released code spreads such a row over all keys, later ones among them."""
    model = build()
    cells = torch.zeros(1, 10, 10, dtype=torch.bool)
    cells[0, 7] = True
    one, two = segments()[0], segments()[0].clone()
    two[:, 2:] = (two[:, 2:] + 11) % 40
    with torch.no_grad(), attach(model, [Mask(cells)], [keep := Keep()]):
        first, second = model(one).logits, model(two).logits
    assert torch.equal(first[:, :2], second[:, :2])
    assert not torch.allclose(first[:, 2:], second[:, 2:])
    assert all((weights[:, :, 1] == 0).all() for weights in keep.tensors.values())


def test_patterns_of_a_stream_and_the_file_of_the_released_code(tmp_path: Path) -> None:
    model = build()
    mean = attrim.measure(model, streamed(segments()), Mean(), progress=False)[Mean]
    path = write_averages(mean, tmp_path / "attn_scores.npy", "transformer-xl")
    again = read_averages(path)
    pattern, same = SparsePattern(mean, 0.5), SparsePattern(again, 0.5)
    assert pattern.total.removed == same.total.removed
    assert pattern.total.cells == 2 * 3 * (4 * 6 + 10)
    with torch.no_grad():
        results = []
        for edit in (pattern, same):
            with attrim.edit(model, edit):
                results.append([model(**batch).logits for batch in streamed(segments())])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    # As coded: 4 x 10 cells of 3 heads are ranked, 18 of them in the future; round(119 / 2) = 60, and one more.
    released = SparsePattern(mean, 0.5, as_coded="transformer-xl")
    assert {facts.removed for facts in released.facts.values()} == {61 - 18}
    baked = attrim.bake(model, pattern)
    baked.save_pretrained(tmp_path / "pruned")
    loaded = attrim.load(tmp_path / "pruned")
    with torch.no_grad():
        for batch, expected in zip(streamed(segments()), results[0], strict=True):
            torch.testing.assert_close(loaded(**batch).logits, expected)


class Stopped(Exception):
    pass


def test_a_measurement_resumes_with_the_memory(tmp_path: Path) -> None:
    model = build()
    ids = segments(6)
    expected = attrim.measure(model, streamed(ids), Mean(), progress=False)[Mean]

    def breaking() -> Any:
        yield from streamed(ids)[:4]
        raise Stopped

    checkpoint = Checkpoint(tmp_path / "begun", every=0.0)
    with pytest.raises(Stopped):
        attrim.measure(model, breaking(), Mean(), progress=False, checkpoint=checkpoint)
    model.memory = None  # another process
    resumed = attrim.measure(model, streamed(ids), Mean(), progress=False, checkpoint=checkpoint)[Mean]
    for site in expected.sites:
        assert torch.equal(resumed.sums(site), expected.sums(site))


def test_it_trains_with_a_pattern() -> None:
    model = build()
    mean = attrim.measure(model, streamed(segments()), Mean(), progress=False)[Mean]
    pattern = SparsePattern(mean, 0.5)
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.Adam(trained.parameters(), lr=3e-3)
    ids = segments(4)
    losses = []
    for _ in range(8):
        total = 0.0
        with attrim.edit(trained, pattern):
            for batch, following in zip(streamed(ids[:-1]), ids[1:], strict=True):
                labels = torch.cat([batch["input_ids"][:, 1:], following[:, :1]], 1)
                loss = trained(**batch, labels=labels).loss
                optimizer.zero_grad()
                loss.backward()
                assert all(torch.isfinite(p.grad).all() for p in trained.parameters() if p.grad is not None)
                optimizer.step()
                total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]
