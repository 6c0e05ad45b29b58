"""Keep processors that announce AMX but cannot execute it from ending the process.

Some virtual machines announce the matrix instructions AMX, the kernel grants their use, and the first one executed
ends the process with an illegal instruction. torch uses them, through oneDNN, for matrix products in bfloat16 and
float16. One product in a process of its own shows whether they work; where they do not, oneDNN is told to do without.
"""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ParameterError

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

AMX = "ATTRIM_AMX"
"""Environment variable with the answer, inherited by child processes: one of ``ANSWERS``; set it to skip the probe."""
ANSWERS = ("absent", "works", "broken")
LIMIT, BELOW_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""Environment variable that limits oneDNN's instructions, and the highest limit for bfloat16 without AMX."""

CPUINFO = Path("/proc/cpuinfo")
SECONDS = 120
PRODUCTS = """
import torch
for dtype in (torch.bfloat16, torch.float16):
    ones = torch.ones(64, 64, dtype=dtype)
    assert (ones @ ones == 64).all()
"""


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The model of the processor, and a number for its instructions: virtual machines of one model may have others."""
    try:
        text = cpuinfo.read_text()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}".strip()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    model = fields.get("model name") or platform.machine()
    return f"{model} ({zlib.crc32(fields.get('flags', '').encode()):08x})"


def prepare_half_precision() -> None:
    """Make matrix products in bfloat16 and float16 safe in this process and in its children.

    Finds out once for the process tree whether AMX works, and does nothing where ``ONEDNN_MAX_CPU_ISA`` is set. Call it
    before the first matrix product, also of float32 numbers: oneDNN reads its limit once. When it is called too late,
    oneDNN is switched off for the process, which is slow but safe.

    Raises
    ------
    ParameterError
        When ``ATTRIM_AMX`` is set to something else than ``works``, ``broken`` or ``absent``.
    """
    if os.environ.get(LIMIT):
        return
    if (answer := os.environ.get(AMX)) is None:
        answer = os.environ[AMX] = find_amx()
    if answer not in ANSWERS:
        raise ParameterError(f"The environment variable {AMX} is {answer!r}; set it to works or broken, or unset it.")
    if answer == "broken":
        os.environ[LIMIT] = BELOW_AMX
        _switch_off_if_late()


def prepare_for(model: nn.Module) -> None:
    """:func:`prepare_half_precision` if the model computes in half precision on the processor."""
    import torch

    half = (torch.bfloat16, torch.float16)
    if torch.is_autocast_enabled("cpu") or any(
        parameter.dtype in half and parameter.device.type == "cpu" for parameter in model.parameters()
    ):
        prepare_half_precision()


def products_die() -> bool:
    """Tell whether half-precision matrix products fail, from a process of its own.

    Any failure counts, not the illegal instruction alone: without AMX, products are slower but right.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 0


def find_amx(cpuinfo: Path = CPUINFO, products_die: Callable[[], bool] = products_die) -> str:
    """Return one of ``ANSWERS``; products are tried only where the processor announces AMX."""
    try:
        text = cpuinfo.read_text()
    except OSError:  # not Linux
        return "absent"
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    if not any(flag.startswith("amx_") for flag in flags.split()):
        return "absent"
    if not products_die():
        return "works"
    log.warning(
        "This processor announces AMX but cannot execute it; products in half precision do without (%s=%s).",
        LIMIT,
        BELOW_AMX,
    )
    return "broken"


def _switch_off_if_late() -> None:
    """Switch oneDNN off if it has read its limit already, before it was set."""
    torch = sys.modules.get("torch")
    # AMX is above the float16 instructions in oneDNN's order, so whether it still has these shows its real limit.
    if torch is None or not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return
    torch.backends.mkldnn.enabled = False
    log.warning(
        "A matrix product ran before this processor's AMX was found broken; half precision is slow in this process "
        "(start Python with %s=%s to avoid it).",
        LIMIT,
        BELOW_AMX,
    )
