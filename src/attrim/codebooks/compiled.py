"""The look-up of codebook values, compiled by numba; the meaning is that of ``Codebook.apply(fast=False)``."""

from __future__ import annotations

from typing import Any

import numpy
from numba import int32, int64
from numba.np.numpy_support import carray

from ..kernels.counting import _claim, _compile, _compiled, _pointer
from .lookup import PARAMETERS

_CHUNK = 1 << 15
_COUNT = len(PARAMETERS)


@_compile
def _look_up(bits, result, lowest, edges, values, base, top, shift):  # type: ignore[no-untyped-def]
    """One chunk; a weight outside of the table's cells counts to the first or the last of them."""
    for place in range(len(bits)):
        cell = (min(max(bits[place], base), top) - base) >> shift
        code = int64(lowest[cell])
        result[place] = values[code + int64(bits[place] >= edges[code])]


@_compile
def _work(p):  # type: ignore[no-untyped-def]
    """Take chunks, one after the other, until none is left; any number of threads may do this at once."""
    size = p[3]
    bits = carray(_pointer(p[1]), (size,), numpy.int32)
    result = carray(_pointer(p[2]), (size,), numpy.float32)
    lowest = carray(_pointer(p[4]), (p[5],), numpy.uint16)
    edges = carray(_pointer(p[6]), (p[8],), numpy.int32)
    values = carray(_pointer(p[7]), (p[8],), numpy.float32)
    base, top, shift = int32(p[9]), int32(p[10]), int32(p[11])
    while True:
        first = _claim(p[0]) * _CHUNK
        if first >= size:
            return
        last = min(first + _CHUNK, size)
        _look_up(bits[first:last], result[first:last], lowest, edges, values, base, top, shift)


def _job(parameters: Any) -> None:
    _work(carray(parameters, (_COUNT,), numpy.int64))


job = _compiled(_job)
"""The look-up as a C function of one pointer to the :data:`~attrim.codebooks.lookup.PARAMETERS`."""
