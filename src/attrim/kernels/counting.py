"""One pass over attention weights that are still in cache: bins and fixed-point sums, compiled by numba.

The meaning is that of ``Histogram.watch`` and ``Mean.watch``; a test compares the integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
from llvmlite import ir  # type: ignore[import-untyped]
from numba import cfunc, float64, int32, int64, njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from ..stats import bins
from ..stats.fixed import ONE as FIXED_ONE

_SHIFT = numpy.int32(bins.SHIFT)
_ONE_BITS = numpy.int32(bins.ONE_BITS)
_NOT_FINITE = 0x7F800000
_SCALE = float(FIXED_ONE)
_MAGIC = 1.5 * 2.0**52  # adding it puts the rounded integer into the low bits of the float, which vectorises
_MAGIC_BITS = int(numpy.float64(_MAGIC).view(numpy.int64))
_RAW = (bins.ONE_BITS >> bins.SHIFT) + 1

# Compiled functions are typed for numba, by their arguments, and not for a type checker.
_compile: Any = functools.partial(njit, nogil=True, boundscheck=False, error_model="numpy")
_builtin: Any = intrinsic

PARAMETERS = (
    "next", "weights", "examples", "heads", "queries", "keys", "start", "stop", "counts", "counts_row",
    "below", "sums", "sums_row", "sums_queries", "sums_keys", "cells", "query_slot", "key_slot", "failed",
)  # fmt: skip
"""The numbers (addresses and sizes) that :data:`job` reads, in this order; see :mod:`attrim.kernels.feed`."""


@_builtin
def _bits(context: Any, value: Any) -> Any:
    """The bits of a float64 as an int64."""
    return int64(float64), lambda _, builder, signature, values: builder.bitcast(values[0], ir.IntType(64))


@_builtin
def _pointer(context: Any, address: Any) -> Any:
    """An address as a pointer."""
    return types.voidptr(int64), lambda _, builder, signature, values: builder.inttoptr(
        values[0], ir.IntType(8).as_pointer()
    )


@_builtin
def _claim(context: Any, address: Any) -> Any:
    """Add one to the int64 at an address, atomically, and give what was there before."""

    def generate(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "monotonic")

    return int64(int64), generate


@_compile
def _count_row(row, bits, raw, places):  # type: ignore[no-untyped-def]
    """Count one row into the raw bins; gives how many values are 0 and how many are below 1/n."""
    size = len(row)  # loops over a length vectorise; loops from a start would check for negative indices
    uniform = numpy.float32(1.0 / size)
    zeros, below = int32(0), int32(0)
    for key in range(size):
        below += int32(row[key] < uniform)
        zeros += int32(bits[key] <= int32(0))
        places[key] = min(max(bits[key], int32(0)), _ONE_BITS) >> _SHIFT
    for key in range(size):
        raw[places[key]] += int32(1)
    return zeros, below


@_compile
def _sum_row(row, into):  # type: ignore[no-untyped-def]
    """Add one row to its fixed-point sums."""
    for key in range(len(row)):
        into[key] += _bits(float64(row[key]) * _SCALE + _MAGIC) - _MAGIC_BITS


@_compile
def _largest(bits):  # type: ignore[no-untyped-def]
    """The largest of the values' bits, which shows infinity and NaN."""
    top = int32(0)
    for key in range(len(bits)):
        top = max(top, bits[key])
    return top


@_compile
def _watch_head(weights, bits, head, start, stop, counts, below, sums, query_slot, key_slot):  # type: ignore[no-untyped-def]
    """Add one head of all examples to its counts and sums (where these have a size); whether all values are finite."""
    raw = numpy.zeros(_RAW, numpy.int32)
    places = numpy.empty(weights.shape[3], numpy.uint16)
    zeros, small, top = 0, 0, int32(0)
    for example in range(weights.shape[0]):
        for query in range(weights.shape[2]):
            first, last = start[example, query], stop[example, query]
            if first >= last:
                continue
            row, row_bits = weights[example, head, query, first:last], bits[example, head, query, first:last]
            top = max(top, _largest(row_bits))
            if len(counts):
                found = _count_row(row, row_bits, raw, places)
                zeros += found[0]
                small += found[1]
            if len(sums):
                slot = key_slot[example]
                _sum_row(row, sums[query + query_slot[example], first + slot : last + slot])
    if len(counts):
        tiny = 0
        for place in range(bins.FIRST_NORMAL):
            tiny += raw[place]
        counts[bins.ZERO] += zeros
        counts[bins.UNDERFLOW] += tiny - zeros
        for place in range(bins.FIRST_NORMAL, _RAW):
            counts[place - bins.FIRST_NORMAL + bins.NORMAL] += raw[place]
        below[0] += small
    return top < _NOT_FINITE


@_compile
def _count_cells(start, stop, cells, query_slot, key_slot):  # type: ignore[no-untyped-def]
    """Add one to every valid cell."""
    for example in range(start.shape[0]):
        for query in range(start.shape[1]):
            first, last = start[example, query] + key_slot[example], stop[example, query] + key_slot[example]
            if first < last:
                into = cells[query + query_slot[example], first:last]
                for key in range(len(into)):
                    into[key] += 1


@_compile
def _work(p):  # type: ignore[no-untyped-def]
    """Take heads, one after the other, until none is left; any number of threads may do this at once."""
    examples, heads, queries, keys = p[2], p[3], p[4], p[5]
    weights = carray(_pointer(p[1]), (examples, heads, queries, keys), numpy.float32)
    bits = carray(_pointer(p[1]), (examples, heads, queries, keys), numpy.int32)
    start = carray(_pointer(p[6]), (examples, queries), numpy.int64)
    stop = carray(_pointer(p[7]), (examples, queries), numpy.int64)
    counts_row = carray(_pointer(p[9]), (heads,), numpy.int64)
    sums_row = carray(_pointer(p[12]), (heads,), numpy.int64)
    query_slot = carray(_pointer(p[16]), (examples,), numpy.int64)
    key_slot = carray(_pointer(p[17]), (examples,), numpy.int64)
    failed = carray(_pointer(p[18]), (1,), numpy.int64)
    while True:
        head = _claim(p[0])
        if head > heads:
            return
        if head == heads:
            if p[15] != 0:
                _count_cells(start, stop, carray(_pointer(p[15]), (p[13], p[14]), numpy.int64), query_slot, key_slot)
            continue
        row, size = counts_row[head], (bins.BINS if counts_row[head] >= 0 else 0)
        counts = carray(_pointer(p[8] + row * bins.BINS * 8), (size,), numpy.int64)
        below = carray(_pointer(p[10] + row * 8), (1,), numpy.int64)
        row, size = sums_row[head], (p[13] if sums_row[head] >= 0 else 0)
        sums = carray(_pointer(p[11] + row * p[13] * p[14] * 8), (size, p[14]), numpy.int64)
        if not _watch_head(weights, bits, head, start, stop, counts, below, sums, query_slot, key_slot):
            failed[0] = 1


def _job(parameters: Any) -> None:
    _work(carray(parameters, (19,), numpy.int64))


def _compiled(function: Callable[..., None]) -> Any:
    signature = types.void(types.voidptr)
    try:
        return cfunc(signature, cache=True)(function)
    except RuntimeError:  # no folder that compiled code can be cached in
        return cfunc(signature)(function)


job = _compiled(_job)
"""The pass as a C function of one pointer to the :data:`PARAMETERS`."""
