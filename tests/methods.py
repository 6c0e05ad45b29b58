"""Every edit, ready to use, once for each of its forms; a new edit is one line here.

The instances fit any model with texts of up to 64 positions and any number of heads.
"""

from __future__ import annotations

import pytest
import torch

from attrim.edits import Constant, Gate, Mask, Mix, Offset, RandomDrop, Threshold, Uniform
from attrim.edits.hidden_quantize import HiddenQuantize
from attrim.edits.hidden_threshold import HiddenThreshold
from attrim.edits.quantize import Quantize

POSITIONS = 64


def _noise(seed: int) -> torch.Tensor:
    return torch.rand(1, POSITIONS, POSITIONS, generator=torch.Generator().manual_seed(seed))


METHODS = [
    pytest.param(Threshold(0.1), id="threshold"),
    pytest.param(Threshold(1.0, relative_to="uniform"), id="threshold-uniform"),
    pytest.param(Threshold(0.5, relative_to="row-maximum"), id="threshold-row-maximum"),
    pytest.param(Threshold(0.1, relative_to="row-maximum", renormalize=True), id="threshold-renormalize"),
    pytest.param(Threshold(top=2), id="threshold-top"),
    pytest.param(Threshold(top=0.5, renormalize=True), id="threshold-top-share"),
    pytest.param(Threshold(mass=0.7), id="threshold-mass"),
    pytest.param(Constant(_noise(0)), id="constant"),
    pytest.param(Mix(_noise(2), 0.5), id="mix"),
    pytest.param(Offset(_noise(3)[0, :1, :31], tail=4), id="offset"),
    pytest.param(Mask(_noise(1) < 0.5), id="mask"),
    pytest.param(Gate(0.5), id="gate"),
    pytest.param(Uniform(), id="uniform"),
    pytest.param(RandomDrop(0.5), id="random-drop"),
    pytest.param(RandomDrop(0.5, seed=3, renormalize=True), id="random-drop-renormalize"),
    pytest.param(Quantize("linear-slog-clamped-midval", 3), id="quantize"),
    pytest.param(Quantize("uniform-slog-clamped-mean", 2, scope="row", renormalize=True), id="quantize-row"),
]

# Edits of hidden states, which know no heads.
HIDDEN_METHODS = [
    pytest.param(HiddenThreshold(0.3), id="hidden-threshold"),
    pytest.param(HiddenQuantize("fixed-point", 8), id="hidden-quantize-fixed-point"),
    pytest.param(HiddenQuantize("linear", 6, where="output"), id="hidden-quantize-linear"),
    pytest.param(HiddenQuantize("log", 5), id="hidden-quantize-log"),
]
