"""Call the functions of compiled.c on torch's own threads.

Two pools of threads that spin while they wait fight for the cores, so the compiled functions run on the very threads
that computed the attention: by ``torch_parallel_for`` of torch's stable C interface, which is ``at::parallel_for``
whatever torch uses for threads. It is looked up when it is first needed. So the extension is plain C, built without
torch, and one build serves all versions of torch that have the interface.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import ParameterError

log = logging.getLogger(__name__)

INTERFACE = 10
"""How the compiled functions are called; the number of the same name in compiled.c."""


class Buffers(ctypes.Structure):
    """What the stats of one call are added to, in the order of the struct of the same name in compiled.c.

    Pointers are addresses of contiguous arrays, None (NULL) for an array that no stat asks for.
    """

    _fields_ = (
        ("counts", ctypes.c_void_p),  # BinBuffers.counts
        ("counts_row", ctypes.c_void_p),  # int64 [heads]: the row of BinBuffers for each head, -1 for none
        ("below_uniform", ctypes.c_void_p),  # BinBuffers.below_uniform
        ("sums", ctypes.c_void_p),  # CellBuffers.sums
        ("sums_row", ctypes.c_void_p),  # int64 [heads]: the row of CellBuffers for each head, -1 for none
        ("sums_queries", ctypes.c_int64),  # CellBuffers.sums.shape[1]
        ("sums_keys", ctypes.c_int64),  # CellBuffers.sums.shape[2]
        ("cells", ctypes.c_void_p),  # CellBuffers.counts; NULL when this block does not count them
        ("facts", ctypes.c_void_p),  # RowBuffers.facts
        ("facts_row", ctypes.c_void_p),  # int64 [heads]: the row of RowBuffers for each head, -1 for none
        ("query_slot", ctypes.c_void_p),  # int64 [examples]: the position of the block's first query
        ("key_slot", ctypes.c_void_p),  # int64 [examples]: the position of the block's first key
        ("failed", ctypes.c_void_p),  # int64: set to 1 by NaN or infinity, to 2 by a lack of memory
    )


class CountParameters(ctypes.Structure):
    """What the compiled pass ``count`` reads: weights that are there, to be counted."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next head that a thread takes
        ("weights", ctypes.c_void_p),  # float32 [examples, heads, queries, keys]
        ("examples", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("start", ctypes.c_void_p),  # int64 [examples, queries]: the first key that counts
        ("stop", ctypes.c_void_p),  # int64 [examples, queries]: the key after the last one that counts
        ("into", Buffers),
    )


class TableParameters(ctypes.Structure):
    """A codebook that is cut into cells, ``operations.LookupTable``."""

    _fields_ = (
        ("edges", ctypes.c_void_p),  # int32 [codes]: the bits of the edge above each code
        ("values", ctypes.c_void_p),  # float32 [codes]
        ("cells", ctypes.c_void_p),  # int32 [cells, 4]: LookupTable.cells
        ("codes", ctypes.c_int64),
        ("base", ctypes.c_int64),  # the bits of the first cell
        ("top", ctypes.c_int64),  # the bits of the last cell
        ("shift", ctypes.c_int64),  # how many bits of a weight do not matter for its cell
    )


KEEP_ABOVE, LOOK_UP = range(2)
"""Kinds of operations on rows, as in compiled.c."""


class EditParameters(ctypes.Structure):
    """What an edit does to the rows of some heads, one of ``operations.RowOperation``."""

    _fields_ = (
        ("heads", ctypes.c_void_p),  # bool [heads]: whether the edit is about the head
        ("kind", ctypes.c_int64),  # KEEP_ABOVE or LOOK_UP
        ("relative_to", ctypes.c_int64),  # of KEEP_ABOVE: number in operations.RULES
        ("renormalize", ctypes.c_int64),  # whether the row is divided by what is left of it
        ("bar", ctypes.c_double),  # of KEEP_ABOVE
        ("table", TableParameters),  # of LOOK_UP
    )


Steps = ctypes.c_int64 * 4


class AttendParameters(ctypes.Structure):
    """What the compiled pass ``attend`` reads: queries, keys and values, whose weights are counted on the way."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next piece of work that a thread takes
        ("path", ctypes.c_int64),  # the number of a path in PATHS
        ("parts", ctypes.c_int64),  # how many pieces of work the queries of a head are cut into
        ("together", ctypes.c_int64),  # heads of a piece
        ("apart", ctypes.c_int64),  # whether a piece has one example, or all of them
        ("query", ctypes.c_void_p),  # float32 [examples, heads, queries, size] with the strides query_steps
        ("key", ctypes.c_void_p),  # float32 [examples, heads / group, keys, size]
        ("value", ctypes.c_void_p),  # float32 [examples, heads / group, keys, value_size]
        ("output", ctypes.c_void_p),  # float32 [examples, queries, heads, value_size]
        ("weights", ctypes.c_void_p),  # float32 [examples, heads, queries, keys]: gets the weights; NULL
        ("examples", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("group", ctypes.c_int64),  # how many heads share keys and values
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("value_size", ctypes.c_int64),
        ("query_steps", Steps),
        ("key_steps", Steps),
        ("value_steps", Steps),
        ("scaling", ctypes.c_double),
        ("start", ctypes.c_void_p),  # int64 [examples, queries]: the first key of each query
        ("stop", ctypes.c_void_p),  # int64 [examples, queries]: the key after its last one
        ("counted", ctypes.c_void_p),  # bool [examples, queries]: whether stats count the query
        ("edits", ctypes.c_void_p),  # EditParameters [edit_count], in the order in which they are done
        ("edit_count", ctypes.c_int64),
        ("into", Buffers),
    )


class LookUpParameters(ctypes.Structure):
    """What the compiled look-up of a codebook reads, in the order of the struct of the same name in compiled.c."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next chunk that a thread takes
        ("weights", ctypes.c_void_p),  # float32 [size], read as bits
        ("result", ctypes.c_void_p),  # float32 [size]
        ("size", ctypes.c_int64),
        ("table", TableParameters),
    )


class SparseParameters(ctypes.Structure):
    """What the compiled sparse attention reads, in the order of the struct of the same name in compiled.c."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next piece of work that a thread takes
        ("path", ctypes.c_int64),  # number in PATHS
        ("parts", ctypes.c_int64),  # how many pieces the blocks of a head are cut into
        ("bfloat16", ctypes.c_int64),  # whether the tensors are bfloat16 and not float32
        ("query", ctypes.c_void_p),  # [examples, heads, queries, size]
        ("key", ctypes.c_void_p),  # [examples, heads / group, keys, size]
        ("value", ctypes.c_void_p),  # [examples, heads / group, keys, value_size]
        ("output", ctypes.c_void_p),  # [examples, queries, heads, value_size], contiguous
        *((name, ctypes.c_int64) for name in ("examples", "heads", "group", "queries", "keys", "size", "value_size")),
        ("query_steps", Steps),
        ("key_steps", Steps),
        ("value_steps", Steps),
        ("scaling", ctypes.c_double),
        ("start", ctypes.c_void_p),  # int64 [examples, queries]: the first key that a query may see
        ("stop", ctypes.c_void_p),  # int64 [examples, queries]: the key after the last
        ("plan_of", ctypes.c_void_p),  # int64 [heads]: the pattern of each head
        ("block_begin", ctypes.c_void_p),  # SparsePlan.block_begin
        ("column_begin", ctypes.c_void_p),  # SparsePlan.column_begin
        ("column_end", ctypes.c_void_p),  # SparsePlan.column_end
        ("rows", ctypes.c_void_p),  # SparsePlan.rows
        ("shift", ctypes.c_void_p),  # SparsePlan.shift
        ("columns", ctypes.c_void_p),  # SparsePlan.columns
        ("kept", ctypes.c_void_p),  # SparsePlan.kept
        ("most_columns", ctypes.c_int64),  # in any block
        ("failed", ctypes.c_void_p),  # int64: set to 1 when there is no memory
    )


class BinTableParameters(ctypes.Structure):
    """The bins of a row's magnitudes, ``described.BinTable``."""

    _fields_ = (
        ("lowest", ctypes.c_void_p),  # int32 [cells]: how many edges lie below each cell
        ("edges", ctypes.c_void_p),  # float32 or float64 [bins]: the edge above each bin; the last is NaN
        ("steps", ctypes.c_void_p),  # BinTable.steps; NULL where there are none
        ("bins", ctypes.c_int64),
        ("base", ctypes.c_int64),  # the bits of the first cell (the upper 32 of a float64)
        ("top", ctypes.c_int64),  # the bits of the last cell
        ("shift", ctypes.c_int64),  # how many bits of a weight do not matter for its cell
        ("most", ctypes.c_int64),  # how many edges any cell has at most
    )


NO_NUMBERS, NO_MEMORY, TOO_LARGE = 1, 2, 3
"""Why facts about rows are not there, as in rows.h: NaN or infinity, a lack of memory, too large for fixed point."""


class RowEditParameters(ctypes.Structure):
    """An edit of rows whose facts are wanted, one of ``operations.RowOperation``, and where they are written."""

    _fields_ = (
        ("kind", ctypes.c_int64),  # KEEP_ABOVE or LOOK_UP
        ("relative_to", ctypes.c_int64),  # of KEEP_ABOVE: number in operations.RULES
        ("renormalize", ctypes.c_int64),  # whether the row is divided by what is left of it
        ("bar", ctypes.c_double),  # of KEEP_ABOVE
        ("codes", BinTableParameters),  # of LOOK_UP: the edges between the codes, of float32
        ("values", ctypes.c_void_p),  # of LOOK_UP: float64 [codes]
        ("distance", ctypes.c_void_p),  # float64 [heads, queries]: how far the counts are from those before the edit
        ("sums", ctypes.c_void_p),  # int64 [heads, queries]: sum in fixed point
        ("shares", ctypes.c_void_p),  # int64 [heads, bins]: added to, see RowParameters.shares
    )


class RowParameters(ctypes.Structure):
    """What the compiled pass ``describe_rows`` reads: weights that are there, and which facts about them to write."""

    _fields_ = (
        ("next", ctypes.c_void_p),  # int64: the next head that a thread takes
        ("path", ctypes.c_int64),  # the number of a path in PATHS
        ("wide", ctypes.c_int64),  # whether the weights are float64 and not float32
        ("weights", ctypes.c_void_p),  # [heads, queries, keys] with the strides weight_steps; keys are neighbours
        ("valid", ctypes.c_void_p),  # bool [heads, queries, keys] with the strides valid_steps: the cells that count
        ("heads", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("weight_steps", ctypes.c_int64 * 2),
        ("valid_steps", ctypes.c_int64 * 2),
        ("bars", ctypes.c_void_p),  # float64 [bar_count], rounded to float32
        ("bar_count", ctypes.c_int64),
        ("table", BinTableParameters),
        ("wide_table", BinTableParameters),  # the same bins for float64, which edits compute in
        ("levels", ctypes.c_int64),  # of curves
        ("edits", ctypes.c_void_p),  # RowEditParameters [edit_count]
        ("edit_count", ctypes.c_int64),
        # What is written, or NULL:
        ("sizes", ctypes.c_void_p),  # int64 [heads, queries]: cells that count
        ("small", ctypes.c_void_p),  # int64 [heads, queries, bar_count]: magnitudes that are not above each bar
        ("counts", ctypes.c_void_p),  # int32 [heads, queries, bins]: magnitudes in each bin
        ("before", ctypes.c_void_p),  # int32 [heads, queries, bins], read: the counts before an edit
        ("distance", ctypes.c_void_p),  # float64 [heads, queries]: how far the counts are from those
        ("curves", ctypes.c_void_p),  # int64 [heads, bins, levels + 1]: added to, rows by their share up to each bin
        ("shares", ctypes.c_void_p),  # int64 [heads, bins]: added to, 1 in fixed point shared by the cells of each row
        ("medians", ctypes.c_void_p),  # int64 [heads, bins]: added to, rows by the bin that reaches half their cells
        ("sums", ctypes.c_void_p),  # int64 [heads, queries]: sum in fixed point
        ("majority", ctypes.c_void_p),  # int64 [heads, queries]: tokens to majority, 0 where it is not reached
        ("histogram", ctypes.c_void_p),  # int64 [heads, BINS]: added to, magnitudes in each bin of BinBuffers
        ("below_uniform", ctypes.c_void_p),  # int64 [heads]: added to, magnitudes below one over the row's cells
        ("extremes", ctypes.c_void_p),  # float64 [heads, 4]: largest, smallest, mean, standard deviation of all cells
        ("failed", ctypes.c_void_p),  # int64: set to why there are no facts
    )


@functools.cache
def available() -> bool:
    """Whether the compiled functions are there: they are built on installation where there is a C compiler.

    A build of another version of compiled.c would read its parameters in the wrong places, so it is not used, and
    a warning says so.
    """
    try:
        from . import _compiled
    except ImportError:
        return False
    fits = getattr(_compiled, "INTERFACE", 0) == INTERFACE and all(
        getattr(_compiled, name, 0) == ctypes.sizeof(parameters)
        for name, parameters in (
            ("COUNT_SIZE", CountParameters),
            ("ATTEND_SIZE", AttendParameters),
            ("LOOK_UP_SIZE", LookUpParameters),
            ("SPARSE_SIZE", SparseParameters),
            ("ROWS_SIZE", RowParameters),
        )
    )
    if not fits:
        log.warning(
            "The compiled functions (%s) are of another version of attrim and are not used, so measuring is slower; "
            "install attrim again to build them.",
            _compiled.__file__,
        )
    return fits


PATHS = ("torch", "portable", "avx2", "avx512")
"""Ways to compute attention while it is measured: by torch, or by the fused pass for one kind of processor."""


@functools.cache
def path() -> int:
    """The number in ``PATHS`` of the way to take: the fastest on this machine, or what ``ATTRIM_KERNEL`` says."""
    best = PATHS.index("torch")
    if available():
        from . import _compiled

        best = _compiled.BEST_PATH
    wanted = os.environ.get("ATTRIM_KERNEL", "")
    if not wanted:
        # Without the vectors of AVX2 at least, torch's own products are faster.
        return best if PATHS.index("avx2") <= best else PATHS.index("torch")
    possible = PATHS[: best + 1]
    if wanted not in possible:
        raise ParameterError(
            f"ATTRIM_KERNEL={wanted} is not a kernel of this machine; it has {', '.join(possible)}, or leave it unset."
        )
    return possible.index(wanted)


def differentiates(*tensors: Tensor) -> bool:
    """Whether torch derives what is computed from the tensors, backwards or forwards, as it cannot through C."""
    # A dual number of forward mode does not require a gradient.
    backwards = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return backwards or forward_ad._current_level >= 0


def tensor_fields(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    """What the structures of attention say about its tensors: addresses, sizes and steps.

    Parameters
    ----------
    query, key, value : ``[B, H, Q, D]`` and ``[B, H or fewer, K, D]``.
    """
    batch, heads, queries, size = query.shape
    keys, value_size = value.shape[-2:]
    tensors = {"query": query, "key": key, "value": value}
    return {
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        **{f"{name}_steps": Steps(*tensor.stride()) for name, tensor in tensors.items()},
        "examples": batch,
        "heads": heads,
        "group": heads // key.shape[1],
        "queries": queries,
        "keys": keys,
        "size": size,
        "value_size": value_size,
    }


def run(
    name: Literal["count", "attend", "look_up", "attend_sparse", "describe_rows"],
    parameters: CountParameters | AttendParameters | LookUpParameters | SparseParameters | RowParameters,
) -> None:
    """Call a compiled function with its parameters on torch's threads, at most once on each.

    Inside of a parallel region of torch it is called once, by the thread that is there.
    """
    from . import _compiled

    parallel_for, function = _torch_library().torch_parallel_for, getattr(_compiled, name)
    if parallel_for(0, torch.get_num_threads(), 1, function, ctypes.addressof(parameters)):
        raise failed(name)


def failed(name: str) -> RuntimeError:
    """What to raise where torch could not run a compiled function."""
    reason = _torch_library().torch_exception_get_what_without_backtrace().decode(errors="replace")
    return RuntimeError(f"torch could not run the compiled function {name!r} on its threads: {reason}")


@functools.cache
def parallel_for_address() -> int:
    """Where torch's function is that runs another one on its threads."""
    address = ctypes.cast(_torch_library().torch_parallel_for, ctypes.c_void_p).value
    assert address is not None
    return address


@functools.cache
def _torch_library() -> ctypes.CDLL:
    """The functions of ``torch/csrc/stable/c/shim.h`` that are called here."""
    # A name is looked for in a library and in all those that it was linked with; libtorch_cpu is one of them.
    library = ctypes.CDLL(torch._C.__file__)
    library.torch_parallel_for.argtypes = [*[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p]
    library.torch_parallel_for.restype = ctypes.c_int32
    library.torch_exception_get_what_without_backtrace.argtypes = []
    library.torch_exception_get_what_without_backtrace.restype = ctypes.c_char_p
    return library
