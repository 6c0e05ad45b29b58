"""Numbers as hexadecimal words, the form in which hardware test benches read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from .errors import DataError, ParameterError


@dataclass(frozen=True)
class Format:
    """How a number becomes a word: IEEE float32, or signed fixed point (two's complement, saturated).

    Parameters
    ----------
    integer, fraction : bits of a fixed-point number, the sign being one of the integer bits; None for float32.
    """

    integer: int | None = None
    fraction: int = 0

    @classmethod
    def parse(cls, text: str) -> Format:
        """``float32``, or ``q8.8`` for 8 integer bits (with the sign) and 8 fraction bits."""
        if text == "float32":
            return cls()
        match = re.fullmatch(r"[qQ](\d+)\.(\d+)", text)
        if match is None or not int(match[1]) >= 1 or not int(match[1]) + int(match[2]) <= 32:
            raise ParameterError(
                f"{text!r} is no format of words; write float32, or q8.8 for fixed point of up to 32 bits."
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def digits(self) -> int:
        """Hexadecimal digits of a word."""
        return 8 if self.integer is None else -(-(self.integer + self.fraction) // 4)

    def words(self, numbers: Tensor) -> list[str]:
        """The words of all numbers, row by row."""
        flat = numbers.detach().flatten().to(torch.float32 if self.integer is None else torch.float64).cpu()
        if not bool(torch.isfinite(flat).all()):
            raise DataError(
                "NaN and infinity have no word in a test vector; check where the numbers come from (of a model: its "
                "dtype and inputs)."
            )
        if self.integer is None:
            codes = flat.numpy().view(numpy.uint32).astype(numpy.int64)
        else:
            bits = self.integer + self.fraction
            # Towards zero, as the fixed-point library of the paper's exporter rounds.
            whole = torch.trunc(flat * 2.0**self.fraction).clamp(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
            codes = whole.to(torch.int64).numpy() & ((1 << bits) - 1)
        return [f"{int(code):0{self.digits}x}" for code in codes]

    def numbers(self, words: list[str]) -> Tensor:
        """The inverse of :meth:`words`, float64."""
        codes = numpy.array([int(word, 16) for word in words], dtype=numpy.int64)
        if self.integer is None:
            return torch.from_numpy(codes.astype(numpy.uint32).view(numpy.float32).astype(numpy.float64))
        bits = self.integer + self.fraction
        signed = codes - ((codes >> (bits - 1)) << bits)
        return torch.from_numpy(signed / 2.0**self.fraction)


def to_lines(tensor: Tensor, form: Format) -> str:
    """A matrix (or anything with a last axis) as comma-separated words, a line for each row."""
    if not tensor.numel():
        raise DataError(f"A tensor of shape {list(tensor.shape)} has no numbers to write; choose another one.")
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    words, width = form.words(rows), rows.shape[1]
    return "".join(",".join(words[start : start + width]) + "\n" for start in range(0, len(words), width))


def from_lines(text: str, form: Format) -> Tensor:
    """The inverse of :func:`to_lines`: a float64 matrix."""
    rows = [line.split(",") for line in text.splitlines() if line]
    if not rows or len({len(row) for row in rows}) != 1:
        raise DataError("The text is no matrix of words: its lines differ in length, or there are none.")
    return form.numbers([word for row in rows for word in row]).reshape(len(rows), -1)
