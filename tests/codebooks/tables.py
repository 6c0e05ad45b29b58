"""The tables of the paper's quantisers (spec/sparsity-quantization.md, 5.2 to 5.5), by public name and bits."""

from __future__ import annotations

V = [0.5, 0.25, 0.125, 0.0625, 0.05, 0.01, 0.002, 0.0005]
W = [0.48, 0.24, 0.13, 0.06, 0.052, 0.011, 0.0025, 0.0004]
X = [1, 0.9995, 0.02, 0.001, 0.00099, 1e-6, 1e-12, 0]


def row(*numbers: float) -> list[float]:
    """A row of eight, filled up with zeros."""
    return [*numbers, *[0.0] * (8 - len(numbers))]


LEVELS = {
    ("linear-slinear", 2): [0, 0.333333, 0.666667, 1],
    ("linear-slinear", 3): [0, 0.142857, 0.285714, 0.428571, 0.571429, 0.714286, 0.857143, 1],
    ("linear-slinear-midval", 2): [0, 0.375, 0.625, 0.875],
    ("linear-slinear-midval", 3): [0, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125, 0.9375],
    ("linear-slinear-clamped", 2): [0, 0.334, 0.667, 1],
    ("linear-slinear-clamped", 3): [0, 0.143714, 0.286429, 0.429143, 0.571857, 0.714571, 0.857286, 1],
    ("linear-slinear-clamped-midval", 2): [0, 0.375625, 0.625375, 0.875125],
    ("linear-slinear-clamped-midval", 3): [
        0, 0.1883125, 0.3131875, 0.4380625, 0.5629375, 0.6878125, 0.8126875, 0.9375625,
    ],
    ("linear-slog", 2): [0, 0.01, 0.1, 1],
    ("linear-slog", 3): [0, 0.0026827, 0.00719686, 0.019307, 0.0517947, 0.13895, 0.372759, 1],
    ("linear-slog-midval", 2): [0, 5.62341e-07, 1.77828e-04, 0.0562341],
    ("linear-slog-midval", 3): [
        0, 7.49894e-09, 1.33352e-07, 2.37137e-06, 4.21697e-05, 7.49894e-04, 0.0133352, 0.237137,
    ],
    ("linear-slog-clamped-midval", 2): [0, 0.00316228, 0.0316228, 0.316228],
    ("linear-slog-clamped-midval", 3): [
        0, 0.00163789, 0.00439397, 0.0117877, 0.0316228, 0.0848343, 0.227585, 0.61054,
    ],
    ("quant-8-linear", 2): [0, 0.333933, 0.665967, 0.998],
    ("quant-8-linear", 3): [0, 0.1442, 0.2865, 0.4288, 0.5711, 0.7134, 0.8557, 0.998],
    ("quant-8-log", 2): [0, 0.0153301, 0.123691, 0.998],
    ("quant-8-log", 3): [0, 0.00464921, 0.0113764, 0.0278374, 0.0681169, 0.166679, 0.407855, 0.998],
}  # fmt: skip

SEVENTH = 1 / 7
V_TABLE = {
    ("linear-slinear", 2): row(0.666667, 0.333333),
    ("linear-slinear", 3): row(0.571429, 0.285714, 0.142857),
    ("linear-slinear-midval", 2): row(0.625, 0.375),
    ("linear-slinear-midval", 3): row(0.5625, 0.3125, 0.1875),
    ("linear-slinear-clamped", 2): row(0.334, 0.334),
    ("linear-slinear-clamped", 3): row(0.429143, 0.286429, 0.143714),
    ("linear-slinear-clamped-midval", 2): row(0.375625),
    ("linear-slinear-clamped-midval", 3): row(0.4380625, 0.1883125),
    ("linear-slog", 2): row(1, 0.1, 0.1, 0.1, 0.1, 0.01),
    ("linear-slog", 3): row(0.372759, 0.372759, 0.13895, 0.0517947, 0.0517947, 0.00719686),
    ("linear-slog-midval", 2): [*[0.0562341] * 6, *[0.000177828] * 2],
    ("linear-slog-midval", 3): [*[0.237137] * 4, *[0.0133352] * 2, *[0.000749894] * 2],
    ("linear-slog-clamped-midval", 2): row(*[0.316228] * 3, *[0.0316228] * 3, 0.00316228),
    ("linear-slog-clamped-midval", 3): row(0.61054, 0.227585, 0.0848343, 0.0848343, 0.0316228, 0.0117877, 0.00163789),
    ("uniform-slinear-clamped-mean", 2): row(0.3125, 0.3125, 0.3125, 0.0875, 0.0875, 0.0255, 0.0255),
    ("uniform-slinear-clamped-mean", 3): row(0.375, 0.375, 0.1875, 0.09375, 0.05625, 0.03, 0.0055),
    ("uniform-slog-clamped-mean", 2): row(*[0.0625] * 4, *[0.0206667] * 3),
    ("uniform-slog-clamped-mean", 3): row(*[0.0625] * 4, *[0.0206667] * 3),
    ("uniform-slog-mean", 2): [0.25, 0.25, 0.09375, 0.09375, *[0.015625] * 4],
    ("uniform-slog-mean", 3): [0.25, 0.25, 0.09375, 0.09375, *[0.015625] * 4],
    ("binarization", 2): row(*[SEVENTH] * 7),
    ("binarization", 3): row(*[SEVENTH] * 7),
    ("quant-8-linear", 2): row(0.333933),
    ("quant-8-linear", 3): row(0.4288, 0.1442),
    ("quant-8-log", 2): row(0.123691, 0.123691, 0.123691, 0.0153301, 0.0153301),
    ("quant-8-log", 3): row(0.407855, 0.166679, 0.0681169, 0.0278374, 0.0278374, 0.00464921),
    ("power-of-two", 2): row(0.5, 0.25),
    ("power-of-two", 3): row(0.5, 0.25, 0.125, 0.0625, 0.0625),
}

W_TABLE = {
    ("linear-slinear", 2): row(0.333333, 0.333333),
    ("linear-slinear", 3): row(0.428571, 0.285714, 0.142857),
    ("linear-slinear-midval", 2): row(0.375),
    ("linear-slinear-midval", 3): row(0.4375, 0.1875, 0.1875),
    ("linear-slinear-clamped", 2): row(0.334, 0.334),
    ("linear-slinear-clamped", 3): row(0.429143, 0.286429, 0.143714),
    ("linear-slinear-clamped-midval", 2): row(0.375625),
    ("linear-slinear-clamped-midval", 3): row(0.4380625, 0.1883125, 0.1883125),
    ("linear-slog", 2): row(1, 0.1, 0.1, 0.1, 0.1, 0.01),
    ("linear-slog", 3): row(0.372759, 0.372759, 0.13895, 0.0517947, 0.0517947, 0.00719686),
    ("linear-slog-midval", 2): [*[0.0562341] * 6, *[0.000177828] * 2],
    ("linear-slog-midval", 3): [*[0.237137] * 4, *[0.0133352] * 2, *[0.000749894] * 2],
    ("linear-slog-clamped-midval", 2): row(*[0.316228] * 3, *[0.0316228] * 3, 0.00316228),
    ("linear-slog-clamped-midval", 3): row(0.61054, 0.227585, 0.0848343, 0.0848343, 0.0848343, 0.0117877, 0.00163789),
    ("uniform-slinear-clamped-mean", 2): row(0.305, 0.305, 0.305, 0.091, 0.091, 0.0265, 0.0265),
    ("uniform-slinear-clamped-mean", 3): row(0.36, 0.36, 0.185, 0.095, 0.056, 0.0315, 0.006),
    ("uniform-slog-clamped-mean", 2): row(*[0.06] * 4, *[0.0218333] * 3),
    ("uniform-slog-clamped-mean", 3): row(*[0.06] * 4, *[0.0218333] * 3),
    ("uniform-slog-mean", 2): [0.24, 0.24, 0.095, 0.095, *[0.016475] * 4],
    ("uniform-slog-mean", 3): [0.24, 0.24, 0.095, 0.095, *[0.016475] * 4],
    ("binarization", 2): row(*[SEVENTH] * 7),
    ("quant-8-linear", 2): row(0.333933),
    ("quant-8-linear", 3): row(0.4288, 0.1442),
    ("quant-8-log", 2): row(0.123691, 0.123691, 0.123691, 0.0153301, 0.0153301),
    ("quant-8-log", 3): row(0.407855, 0.166679, 0.0681169, 0.0278374, 0.0278374, 0.00464921),
    ("ranking-head", 2): row(1, 1, 1, 0.0885893, 0.0885893, 0.0261431, 0.0261431),
    ("ranking-head", 3): row(1, 0.351079, 0.180158, 0.0923885, 0.0550853, 0.0308787, 0.00573564),
}

X_TABLE = {
    "linear-slinear": row(1, 1),
    "linear-slinear-midval": row(1.125, 0.875),
    "linear-slinear-clamped": row(1, 1),
    "linear-slinear-clamped-midval": row(1.124875, 0.875125),
    "linear-slog": row(1, 1, 0.01),
    "linear-slog-midval": row(17.7828, 0.0562341, 0.0562341, 0.000177828, 0.000177828, 5.62341e-07),
    "linear-slog-clamped-midval": row(0.316228, 0.316228, 0.0316228, 0.00316228),
    "uniform-slinear-clamped-mean": row(0, 0.99975, 0.50025, 0.50025),
    "uniform-slog-clamped-mean": row(0, 0.02, 0.02, 0.02),
    "uniform-slog-mean": [0, 0.9995, 0.0105, 0.0105, *[0.00024775] * 4],
    "binarization": row(0.25, 0.25, 0.25, 0.25),
    "quant-8-linear": row(0.998, 0.998),
    "quant-8-log": row(0.998, 0.998, 0.0153301),
}
"""As released, with 2 bits."""

FIXED = (
    "linear-slinear",
    "linear-slinear-midval",
    "linear-slinear-clamped",
    "linear-slinear-clamped-midval",
    "linear-slog",
    "linear-slog-midval",
    "linear-slog-clamped-midval",
    "quant-8-linear",
    "quant-8-log",
    "power-of-two",
)
GROUPED = (
    "uniform-slinear-clamped-mean",
    "uniform-slog-clamped-mean",
    "uniform-slog-mean",
    "binarization",
    "bin-majority",
    "ranking-head",
    "ranking-token",
)
FITTED = ("lloyd-max", "calibrated-linear", "calibrated-log")
