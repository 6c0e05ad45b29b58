"""Run a compiled function on torch's own OpenMP threads.

Numba brings threads of its own, and two pools that spin while they wait fight for the cores: on two cores that costs
more than it gains. torch's wheels bundle their OpenMP library, whose entry point is a stable C function, so the
compiled function can run on the very threads that computed the attention.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Job = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


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


def run(address: int, parameters: int) -> None:
    """Call the C function at ``address`` with the pointer ``parameters`` once on each of torch's threads."""
    parallel: Callable[..., None] | None = _parallel()
    threads = torch.get_num_threads()
    if parallel is None or threads == 1:
        Job(address)(parameters)
    else:
        parallel(address, parameters, threads, 0)
