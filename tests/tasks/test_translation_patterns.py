"""Patterns in a translation model: encoder, decoder and cross-attention apart and together, in training and writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
from attrim.attention.context import attach
from attrim.cli import main
from attrim.edits import Edit, Entmax, Mask, SparsePattern
from attrim.measurement import measure
from attrim.stats.mean import Mean
from attrim.tasks import load_task
from translated import save_marian, small_marian, word_tokenizer, write_parallel
from watching import Keep

ROLES = ("encoder", "decoder", "cross")
CHOICES = [("encoder",), ("decoder",), ("cross",), ("decoder", "cross"), ROLES]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parallel(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def averages(files: Path) -> Mean:
    task = load_task("translation", data=str(files), split="train")
    return measure(small_marian(), task.feed(small_marian(), word_tokenizer()), [Mean()])[Mean]


def pairs(files: Path, size: int = 6) -> dict[str, Any]:
    task, model = load_task("translation/loss", data=str(files), batch_size=size), small_marian()
    return next(task.feed(model, word_tokenizer()))


@pytest.mark.parametrize("roles", CHOICES)
def test_a_pattern_removes_cells_of_the_chosen_roles_only(files: Path, averages: Mean, roles: tuple[str, ...]) -> None:
    model = small_marian()
    pattern = SparsePattern(averages, 0.6, select=attrim.Select(roles=roles))
    inputs, keep, dense = pairs(files), Keep(), Keep()
    with torch.no_grad():
        with attach(model, stats=[dense]):
            model(**inputs)
        with attach(model, [pattern], [keep]):
            model(**inputs)
    for site, weights in keep.tensors.items():
        call = keep.calls[site]
        removed = (weights == 0) & call.allowed
        if call.site.role in roles:
            share = float(removed.sum() / call.allowed.expand_as(removed).sum())
            assert 0.3 < share < 0.9
        else:
            assert not removed.any()
    changed = {name for name, weights in keep.tensors.items() if not torch.equal(weights, dense.tensors[name])}
    # Of an edited decoder nothing comes back to the encoder.
    assert any("encoder.layers" in name for name in changed) == ("encoder" in roles)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("roles", CHOICES)
def test_written_step_t_is_row_t(files: Path, averages: Mean, roles: tuple[str, ...], beams: int) -> None:
    """The probabilities of a translation, written with a cache, are those of one pass over the whole of it."""
    model, tokenizer = small_marian(), word_tokenizer()
    pattern = SparsePattern(averages, 0.6, unseen="offset", select=attrim.Select(roles=roles))
    inputs = {name: pairs(files)[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "num_beams": beams, "do_sample": False}
    with torch.no_grad(), attrim.edit(model, pattern):
        found = model.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
        without = model.generate(**inputs, **options, use_cache=False)
        logits = model(**inputs, decoder_input_ids=found.sequences[:, :-1], use_cache=False).logits
    assert torch.equal(found.sequences, without)
    best = found.beam_indices if beams > 1 else None
    written = model.compute_transition_scores(found.sequences, found.scores, best, normalize_logits=beams == 1)
    if beams == 1:  # greedy search forbids the early end before it takes the logarithm, beam search after it
        logits[..., tokenizer.eos_token_id] = -torch.inf
    rows = logits.log_softmax(-1).gather(-1, found.sequences[:, 1:, None])[..., 0]
    torch.testing.assert_close(written, rows, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("empty", ["zero", "strongest"])
def test_a_fully_pruned_row_of_the_decoder_does_not_leak(files: Path, empty: Any) -> None:
    model, inputs = small_marian(), pairs(files)
    length, sources = inputs["decoder_input_ids"].shape[1], inputs["input_ids"].shape[1]
    assert length > 4
    cells, crossing = (
        torch.zeros(1, length, length, dtype=torch.bool),
        torch.zeros(1, length, sources, dtype=torch.bool),
    )
    cells[:, 2] = crossing[:, 2] = True
    masks = [
        Mask(cells, empty=empty, select=attrim.Select(roles="decoder")),
        Mask(crossing, empty=empty, select=attrim.Select(roles="cross")),
    ]
    other = {**inputs, "decoder_input_ids": inputs["decoder_input_ids"].clone()}
    other["decoder_input_ids"][:, 3:] = (other["decoder_input_ids"][:, 3:] + 2) % 12 + 3
    keep = Keep()
    with torch.no_grad(), attach(model, masks, [keep]):
        one, two = model(**inputs).logits, model(**other).logits
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert not torch.allclose(one[:, 3:], two[:, 3:])
    for weights in keep.of_roles("decoder"):
        assert (weights.triu(1) == 0).all()
    for weights in keep.of_roles("decoder", "cross"):
        assert (weights[:, :, 2].sum(-1) - (0.0 if empty == "zero" else 1.0)).abs().max() < 1e-5


@pytest.mark.parametrize("roles", CHOICES)
@pytest.mark.parametrize("pruned", [False, True])
def test_entmax_trains_with_and_without_a_pattern(
    files: Path, averages: Mean, roles: tuple[str, ...], pruned: bool
) -> None:
    model, task = small_marian(spread=0.1), load_task("translation", data=str(files), split="train", batch_size=16)
    select = attrim.Select(roles=roles)
    edits: list[Edit] = [Entmax(1.5, select=select)]
    if pruned:
        edits.insert(0, SparsePattern(averages, 0.8, select=select))
    batches = list(task.train_batches(word_tokenizer(), model))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, loss = [], task.smoothed(0.1)
    model.train()
    with attrim.edit(model, *edits):
        for _ in range(3):
            for inputs in batches:
                optimizer.zero_grad()
                value = loss(model, inputs)
                value.backward()
                gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
                optimizer.step()
                losses.append(value.item())
    assert losses[-1] < losses[0]


def test_the_command_line_measures_trains_and_evaluates_a_role(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save_marian(tmp_path / "marian")
    task = f"--task translation --data {files} --option max_new_tokens=8 --option beams=2"
    words = f"measure {source} {task} --option split=train --stats mean --output {tmp_path / 'averages'} --quiet"
    assert main(words.split()) == 0
    shares = {}
    for role in ROLES:
        words = f"train {source} {task} --steps 4 --batch-size 16 --output {tmp_path / 'runs'} --json"
        words += f" --edit pattern:{tmp_path / 'averages'},tau=0.8 --select-roles {role}"
        capsys.readouterr()
        assert main(words.split()) == 0
        found = json.loads(capsys.readouterr().out)
        shares[role] = found["validations"]["4"]["zero_share"]
        edit = f"pattern:{tmp_path / 'averages'},tau=0.8"
        assert main(f"evaluate {source} {task} --edit {edit} --select-roles {role} --json".split()) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        assert results["unedited"]["zero_share"] < results[edit]["zero_share"] < 1
    assert all(0 < share < 0.8 for share in shares.values())
    assert len(set(shares.values())) == 3
