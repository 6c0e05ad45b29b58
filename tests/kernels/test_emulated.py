"""The AVX-512 path means what the others mean, tested on machines that have no such processor, too."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from built import EMULATED, build, emulates, run

FILES = ("test_fused.py", "test_operations.py", "test_sparse.py")


@pytest.mark.slow
@pytest.mark.skipif(not emulates(), reason="this machine has AVX-512 itself, or no AVX2 to emulate it with")
def test_the_avx512_path_passes_the_tests_of_kernels(tmp_path: Path) -> None:
    library = build(tmp_path, *EMULATED)
    files = [str(Path(__file__).parent / name) for name in FILES]
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "other_build",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow or not slow",
        "-k",
        "avx512",
    ]
    done = run(sys.executable, *words, *files, LIBRARY=str(library), EMULATED="1")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > len(FILES)
