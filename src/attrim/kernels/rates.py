"""How many seconds attention takes on this machine in each way, measured and kept in attrim's cache folder.

A machine that is busy with other things may give wrong seconds. So each way is timed until its two fastest rounds
agree; where they never do, the seconds are used, but the next process measures again and keeps what agrees better.
Seconds are measured again after :data:`OLD` days, too, because other work may have slowed all rounds alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core import record
from ..core.paths import cache_folder
from ..core.processor import processor_name
from ..errors import ArtefactError
from ..runs.files import read_sealed, replace_sealed
from . import team
from .sparse import SIDE, SparsePlan, attend_sparse

log = logging.getLogger(__name__)

FILE = "attention-seconds.json"
LENGTHS = (128, 256, 512, 1024)
"""Lengths that are timed; others go by the next one, and longer ones by the last, since a cell costs no more there."""
CELLS = 1 << 20
"""As many heads are timed together as have so many cells, up to four, or one for each thread."""
ROUNDS, MOST_ROUNDS = 4, 16
STEADY = 0.1
"""The two fastest rounds agree where the second took at most this share longer."""
OLD = 30
"""Days after which seconds are measured again."""


@dataclass(frozen=True)
class Rates:
    """Seconds of attention at one length, for one size of a head and one dtype.

    Attributes
    ----------
    dense : a cell, by SDPA without a mask.
    causal : a cell of the square, by causal SDPA, which leaves out a part of it.
    masked : a cell, by SDPA with a mask that each head has for itself.
    formed : a cell of a mask that is made of what heads keep and of the padding of a text.
    computed : a cell that the sparse kernel computes.
    copied : a key, a value and a query that it copies.
    moved : a token of a head whose query, key, value and output go to another place, to split the heads of a call.
    """

    dense: float
    causal: float
    masked: float
    formed: float
    computed: float
    copied: float
    moved: float


@dataclass(frozen=True)
class Timing:
    """Rates, and how they were measured.

    Attributes
    ----------
    spread : by which share the second fastest round took longer than the fastest, in the way where that is largest.
    measured : when, in seconds since 1970.
    """

    rates: Rates
    spread: float
    measured: float

    @property
    def lasts(self) -> bool:
        """Whether nothing speaks for measuring again."""
        return self.spread <= STEADY and 0 <= time.time() - self.measured < OLD * 86400


def rates(dtype: torch.dtype, size: int, length: int) -> Rates:
    """The rates for a length, from the cache folder, or measured now, in a part of a second of CPU time.

    Parameters
    ----------
    size : numbers of a key of one head.
    length : tokens of the text; rounded to one of ``LENGTHS``.
    """
    timed = next((each for each in LENGTHS if each >= length), LENGTHS[-1])
    name = dtype, size, timed, torch.get_num_threads()
    if name not in _used:
        _used[name] = _kept(*name)
    return _used[name].rates


def source() -> str | None:
    """One sentence about where the rates that were asked for come from, and how to measure them again."""
    if not _used:
        return None
    worst = max(_used.values(), key=lambda timing: timing.spread)
    day = time.strftime("%-d %B %Y", time.localtime(worst.measured))
    sure = "" if worst.spread <= STEADY else " while it was busy, so another process will measure again"
    return (
        f"The seconds of attention were measured on this machine on {day}{sure} (two rounds within "
        f"{worst.spread:.0%}); delete {cache_folder() / FILE} to measure them now."
    )


_used: dict[tuple[torch.dtype, int, int, int], Timing] = {}  # those that this process knows


def _kept(dtype: torch.dtype, size: int, length: int, threads: int) -> Timing:
    """The rates of a length that is timed; other numbers of threads have others."""
    machine = f"{processor_name()}, {team.PATHS[team.path()]}, torch {torch.__version__}, {threads} threads"
    name = f"{str(dtype).removeprefix('torch.')} {size} {length}"
    path = cache_folder() / FILE
    known = _read(path).get(machine, {}).get(name)
    if known is not None and known.lasts:
        return known
    found = measure_rates(dtype, size, length)
    if known is not None and known.spread < found.spread and not found.lasts:
        return known  # the machine is busier now than it was then
    everything = _read(path)  # now, because another process may have written
    everything.setdefault(machine, {})[name] = found
    _write(path, everything)
    return found


def _read(path: Path) -> dict[str, dict[str, Timing]]:
    """What the file holds; nothing where it is missing, damaged or of another kind: all can be measured again."""
    try:
        values = read_sealed(path, "it is measured again")
        known: dict[str, dict[str, Timing]] = record.load(dict[str, dict[str, Timing]], values, "rates of attention")
    except (ArtefactError, OSError) as error:
        log.debug("%s", error)
        return {}
    return known


def _write(path: Path, known: dict[str, dict[str, Timing]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_sealed(path, record.dump(known))
    except OSError as error:
        log.debug("The seconds of attention are not kept, so every process measures them: %s", error)


def measure_rates(dtype: torch.dtype, size: int, length: int) -> Timing:
    """Time attention in each way, the best of rounds that take turns, until the two best agree.

    In a thread of its own, where no mode of the caller (a counter of operations, gradients) slows anything down.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_measure, dtype, size, length, torch.get_num_threads()).result()


@torch.inference_mode()
def _measure(dtype: torch.dtype, size: int, length: int, threads: int) -> Timing:
    torch.set_num_threads(threads)  # OpenMP has a number for each thread that starts others
    heads = max(min(4, CELLS // length**2), threads)
    shape = 1, length, heads, size
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(shape, generator=generator).to(dtype).transpose(1, 2) for _ in range(3))
    places = torch.arange(length)
    near = (places[:, None] - places).abs() < max(SIDE, length // 16)
    mask = additive(near.expand(1, heads, -1, -1), dtype)  # with less than four axes SDPA takes its slow form
    plans = {
        name: SparsePlan.of(cells.expand(heads, -1, -1), reorder=False)
        for name, cells in (("full", torch.ones_like(near)), ("band", near))
    }
    edges = torch.zeros(1, length, dtype=torch.int64), torch.full((1, length), length)
    dense = partial(functional.scaled_dot_product_attention, query, key, value)
    sparse = {name: partial(attend_sparse, query, key, value, size**-0.5, plan, *edges) for name, plan in plans.items()}
    ways: dict[str, Callable[[], object]] = {
        "dense": dense,
        "causal": partial(dense, is_causal=True),
        "masked": partial(dense, attn_mask=mask),
        "formed": partial(_form, near.expand(1, heads, -1, -1), near, dtype),
        "full": sparse["full"],
        "band": sparse["band"],
        "moved": partial(_move, query, key, value),
    }
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):  # the caller may have chosen the plain form alone
        seconds, spread = _timed(ways)
    every, tokens = heads * length**2, heads * length
    cells = {name: int(plan.computed().sum()) for name, plan in plans.items()}
    # Two patterns tell apart what a cell costs and what copying costs, which all patterns need.
    computed = max(seconds["full"] - seconds["band"], 0.0) / (cells["full"] - cells["band"])
    copied = max(seconds["full"] - computed * cells["full"], 0.0) / tokens
    whole = {name: seconds[name] / every for name in ("dense", "causal", "masked", "formed")}
    # A mask only adds work, so seconds that say that it saves some are noise, and would choose the slower way.
    whole["masked"] = max(whole["masked"], whole["dense"])
    found = Rates(**whole, computed=computed, copied=copied, moved=seconds["moved"] / tokens)
    return Timing(found, spread, time.time())


def _form(kept: Tensor, allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return additive(kept & allowed, dtype)


def additive(kept: Tensor, dtype: torch.dtype) -> Tensor:
    """Kept cells as a mask that is added to scores: SDPA would make this of them in every call."""
    return torch.zeros(kept.shape, dtype=dtype).masked_fill_(~kept, float("-inf"))


def _move(*tensors: Tensor) -> None:
    heads = torch.arange(tensors[0].shape[1])
    moved = [tensor.index_select(1, heads) for tensor in tensors]
    moved[0].transpose(1, 2)[:, :, heads] = tensors[0].transpose(1, 2)


def _timed(ways: dict[str, Callable[[], object]]) -> tuple[dict[str, float], float]:
    """The least seconds of each way, and the largest spread of their two fastest rounds.

    As CPU time over threads: other work on the machine adds less to that than to the time that passes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # the first round warms up
        way()
    spread = float("inf")
    while len(next(iter(seconds.values()))) < (ROUNDS if spread <= STEADY else MOST_ROUNDS):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            seconds[name].append(max(time.process_time() - begun, 1e-9))
        if len(next(iter(seconds.values()))) >= ROUNDS:
            fastest = [sorted(own)[:2] for own in seconds.values()]
            spread = max(second / first - 1 for first, second in fastest)
    return {name: min(own) / torch.get_num_threads() for name, own in seconds.items()}, spread
