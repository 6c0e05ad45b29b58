"""No compiled function reads or writes out of bounds, or does what C leaves undefined, on any path and shape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attrim.kernels import team
from built import COMPILER, EMULATED, ROOT, build, emulates, run

PROGRAM = ROOT / "tests" / "sanitised.py"
SANITISERS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


@pytest.fixture(scope="module")
def runtime() -> str:
    """The library of gcc's address sanitiser, to be loaded before everything else."""
    if COMPILER is None:
        pytest.skip("there is no gcc here, whose sanitisers are used")
    found = [run(COMPILER, f"-print-file-name={name}").stdout.strip() for name in ("libasan.so", "libubsan.so")]
    if not all(Path(name).is_absolute() for name in found):
        pytest.skip("gcc has no sanitisers here")
    return ":".join(found)


@pytest.fixture(scope="module")
def library(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled functions with sanitisers."""
    del runtime
    return build(tmp_path_factory.mktemp("sanitised"), *SANITISERS, *(EMULATED if emulates() else ()))


def sanitised(library: Path, runtime: str, what: str) -> subprocess.CompletedProcess[str]:
    # What torch and Python leave behind is not our leak.
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "LD_PRELOAD": runtime}
    return run(sys.executable, PROGRAM, library, what, *(["emulated"] if emulates() else []), **options)


@pytest.mark.slow
def test_nothing_is_read_or_written_out_of_bounds(library: Path, runtime: str) -> None:
    done = sanitised(library, runtime, "grid")
    assert done.returncode == 0, done.stderr[-5000:]
    paths = [line.split()[0] for line in done.stdout.splitlines()]
    assert paths
    assert paths == list(team.PATHS[1 : len(paths) + 1])


@pytest.mark.slow
def test_a_mistake_would_be_found(library: Path, runtime: str) -> None:
    done = sanitised(library, runtime, "overrun")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
