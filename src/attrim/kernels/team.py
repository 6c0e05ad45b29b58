"""Call the functions of compiled.c on torch's own OpenMP threads.

Numba brings threads of its own, and two pools that spin while they wait fight for the cores: on two cores that costs
more than it gains. torch's wheels bundle their OpenMP library, whose entry point is a stable C function, so the
compiled function can run on the very threads that computed the attention.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

Job = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class CountParameters(ctypes.Structure):
    """What the compiled pass ``count`` reads, in the order of the struct of the same name in compiled.c.

    Pointers are addresses of contiguous arrays, None (NULL) for an array that no stat asks for.
    """

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next head that a thread takes
        ("weights", ctypes.c_void_p),  # float32 [examples, heads, queries, keys]
        ("examples", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("start", ctypes.c_void_p),  # int64 [examples, queries]: the first key that counts
        ("stop", ctypes.c_void_p),  # int64 [examples, queries]: the key after the last one that counts
        ("counts", ctypes.c_void_p),  # BinBuffers.counts
        ("counts_row", ctypes.c_void_p),  # int64 [heads]: the row of BinBuffers for each head, -1 for none
        ("below_uniform", ctypes.c_void_p),  # BinBuffers.below_uniform
        ("sums", ctypes.c_void_p),  # CellBuffers.sums
        ("sums_row", ctypes.c_void_p),  # int64 [heads]: the row of CellBuffers for each head, -1 for none
        ("sums_queries", ctypes.c_int64),  # CellBuffers.sums.shape[1]
        ("sums_keys", ctypes.c_int64),  # CellBuffers.sums.shape[2]
        ("cells", ctypes.c_void_p),  # CellBuffers.counts; NULL when this block does not count them
        ("query_slot", ctypes.c_void_p),  # int64 [examples]: the position of the block's first query
        ("key_slot", ctypes.c_void_p),  # int64 [examples]: the position of the block's first key
        ("failed", ctypes.c_void_p),  # int64: set to 1 by NaN or infinity, to 2 by a lack of memory
    )


class LookUpParameters(ctypes.Structure):
    """What the compiled look-up of a codebook reads, in the order of the struct of the same name in compiled.c."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next chunk that a thread takes
        ("weights", ctypes.c_void_p),  # float32 [size], read as bits
        ("result", ctypes.c_void_p),  # float32 [size]
        ("size", ctypes.c_int64),
        ("lowest", ctypes.c_void_p),  # uint16 [cells]: how many edges lie below each cell
        ("edges", ctypes.c_void_p),  # int32 [codes]: the bits of the edge above each code
        ("values", ctypes.c_void_p),  # float32 [codes]
        ("base", ctypes.c_int64),  # the bits of the first cell
        ("top", ctypes.c_int64),  # the bits of the last cell
        ("shift", ctypes.c_int64),  # how many bits of a weight do not matter for its cell
    )


@functools.cache
def available() -> bool:
    """Whether the compiled functions are there: they are built on installation where there is a C compiler.

    A build of another version of compiled.c would read its parameters in the wrong places, so it is not used.
    """
    try:
        from . import _compiled
    except ImportError:
        return False
    sizes = getattr(_compiled, "COUNT_SIZE", 0), getattr(_compiled, "LOOK_UP_SIZE", 0)
    return sizes == (ctypes.sizeof(CountParameters), ctypes.sizeof(LookUpParameters))


def run(name: Literal["count", "look_up"], parameters: CountParameters | LookUpParameters) -> None:
    """Call a compiled function with its parameters once on each of torch's threads."""
    from . import _compiled

    address: int = getattr(_compiled, name)
    parallel: Callable[..., None] | None = _parallel()
    threads = torch.get_num_threads()
    if parallel is None or threads == 1:
        Job(address)(ctypes.addressof(parameters))
    else:
        parallel(address, ctypes.addressof(parameters), threads, 0)


@functools.cache
def _parallel() -> Any:
    """``GOMP_parallel`` of the library that torch uses; None where torch uses another one."""
    library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not library.exists() or "OpenMP" not in torch.__config__.parallel_info():
        return None
    function = ctypes.CDLL(str(library)).GOMP_parallel
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function
