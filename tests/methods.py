"""Every edit, stat and score, ready to use, once for each of its forms; a new one is one line here.

The edits fit any model with texts of up to 64 positions and any number of heads. Stats add up, so here is what makes a
new one.
"""

from __future__ import annotations

import pytest
import torch

import attrim
from attrim.training.recipe import ProbeRecipe

POSITIONS = 64


def _noise(seed: int) -> torch.Tensor:
    return torch.rand(1, POSITIONS, POSITIONS, generator=torch.Generator().manual_seed(seed))


METHODS = [
    pytest.param(attrim.Threshold(0.1), id="threshold"),
    pytest.param(attrim.Threshold(1.0, relative_to="uniform"), id="threshold-uniform"),
    pytest.param(attrim.Threshold(0.5, relative_to="row-maximum"), id="threshold-row-maximum"),
    pytest.param(attrim.Threshold(0.1, relative_to="row-maximum", renormalize=True), id="threshold-renormalize"),
    pytest.param(attrim.Threshold(top=2), id="threshold-top"),
    pytest.param(attrim.Threshold(top=0.5, renormalize=True), id="threshold-top-share"),
    pytest.param(attrim.Threshold(mass=0.7), id="threshold-mass"),
    pytest.param(attrim.Constant(_noise(0)), id="constant"),
    pytest.param(attrim.Mix(_noise(2), 0.5), id="mix"),
    pytest.param(attrim.Offset(_noise(3)[0, :1, :31], tail=4), id="offset"),
    pytest.param(attrim.Mask(_noise(1) < 0.5), id="mask"),
    pytest.param(attrim.Mask(_noise(4)[:, :4, :4] < 0.7, "offset", "strongest"), id="mask-offset-strongest"),
    pytest.param(attrim.SparsePattern(_noise(5), 0.5), id="pattern"),
    pytest.param(attrim.SparsePattern(_noise(6), mass=0.7, scope="row", keep_row=1, tile=2), id="pattern-row-tiles"),
    pytest.param(attrim.SparsePattern(_noise(7), 0.5, tile=2, tile_keys=1, tiles="rank"), id="pattern-columns"),
    pytest.param(attrim.Window(2, first=1), id="window"),
    pytest.param(attrim.MaskOutsideWindow(_noise(8)[:, :20, :20] < 0.6, 2, first=1), id="mask-outside-window"),
    pytest.param(attrim.Entmax(), id="entmax"),
    pytest.param(attrim.Entmax(1.2), id="entmax-bisect"),
    pytest.param(attrim.Sparsemax(), id="sparsemax"),
    pytest.param(attrim.Gate(0.5), id="gate"),
    pytest.param(attrim.Uniform(), id="uniform"),
    pytest.param(attrim.RandomDrop(0.5), id="random-drop"),
    pytest.param(attrim.RandomDrop(0.5, seed=3, renormalize=True), id="random-drop-renormalize"),
    pytest.param(attrim.Quantize("linear-slog-clamped-midval", 3), id="quantize"),
    pytest.param(attrim.Quantize("uniform-slog-clamped-mean", 2, scope="row", renormalize=True), id="quantize-row"),
]

# Edits of hidden states, which know no heads.
HIDDEN_METHODS = [
    pytest.param(attrim.HiddenThreshold(0.3), id="hidden-threshold"),
    pytest.param(attrim.HiddenQuantize("fixed-point", 8), id="hidden-quantize-fixed-point"),
    pytest.param(attrim.HiddenQuantize("linear", 6, where="output"), id="hidden-quantize-linear"),
    pytest.param(attrim.HiddenQuantize("log", 5), id="hidden-quantize-log"),
]

# Stats of attention weights, which plain tensors can be given to.
STATS = [
    pytest.param(attrim.Histogram, id="histogram"),
    pytest.param(lambda: attrim.Histogram(rows=True), id="histogram-rows"),
    pytest.param(attrim.Mean, id="mean"),
    pytest.param(attrim.Moments, id="moments"),
    pytest.param(attrim.Majority, id="majority"),
    pytest.param(attrim.Extremes, id="extremes"),
    pytest.param(attrim.RowCurves, id="row-curves"),
    pytest.param(
        lambda: attrim.RowDistance(["quantize:linear-slog-clamped-midval,bits=2", "threshold:0.1"]), id="row-distance"
    ),
]

# Stats that number the examples, need their tokens, or watch another moment.
OTHER_STATS = [
    pytest.param(lambda: attrim.Sample(2), id="sample"),
    pytest.param(lambda: attrim.TokenSparsity([0.05, 0.5]), id="token-sparsity"),
    pytest.param(lambda: attrim.TokenTable(2, bar=0.05), id="token-table"),
    pytest.param(lambda: attrim.Values("layer_output"), id="values"),
]

SCORES = [
    pytest.param(attrim.Divergence(), id="divergence"),
    pytest.param(attrim.Gradient(), id="gradient"),
    pytest.param(attrim.Gradient(signed=True, scope="example", reduction="sum"), id="gradient-examples"),
    pytest.param(attrim.Gradient(towards="nothing", unit="site"), id="gradient-nothing"),
    pytest.param(attrim.GradientAttention(), id="gradient-attention"),
    pytest.param(
        attrim.GradientAttention(cells="mean", scope="example", target="label", unit="block"),
        id="gradient-attention-examples",
    ),
    pytest.param(attrim.GradientAttention(absolute=True, scope="example"), id="gradient-attention-absolute"),
    pytest.param(attrim.LayerRelevance(), id="lrp"),
    pytest.param(attrim.LayerRelevance(absolute=True), id="lrp-absolute"),
    pytest.param(attrim.LayerRelevance(rules="safe", cells="mean", scope="example", target=1), id="lrp-examples"),
    pytest.param(attrim.GradientRelevance(), id="gradient-relevance"),
    pytest.param(attrim.Confidence(), id="confidence"),
    pytest.param(attrim.Confidence(skip_end=False, scope="example", unit="site"), id="confidence-examples"),
    pytest.param(attrim.Fisher(), id="fisher"),
    pytest.param(attrim.Fisher(change="replaced", scope="example"), id="fisher-examples"),
    pytest.param(attrim.RandomOrder(seed=3), id="random"),
    pytest.param(attrim.RandomOrder(unit="block"), id="random-blocks"),
    pytest.param(attrim.RandomOrder(scope="example"), id="random-examples"),
    pytest.param(attrim.Lambdas(recipe=ProbeRecipe(steps=2)), id="lambdas"),
]
