"""Clang, the compiler of macOS, builds the compiled functions, too, and they pass the same tests."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from built import build, run

CLANG = shutil.which("clang")
FILES = ("test_fused.py", "test_operations.py", "test_sparse.py", "test_described.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CLANG is None:
        pytest.skip("there is no clang here")
    return build(tmp_path_factory.mktemp("clang"), compiler=CLANG)


def test_what_clang_builds_has_all_paths(library: Path) -> None:
    load = "import built, sys; built.load(sys.argv[1], emulated=False)"
    tell = f"{load}; from attrim.kernels import team; print(team.path())"
    from attrim.kernels import _compiled

    done = run(sys.executable, "-c", tell, str(library), ATTRIM_KERNEL="")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == _compiled.BEST_PATH


@pytest.mark.slow
def test_what_clang_builds_passes_the_tests_of_kernels(library: Path) -> None:
    files = [str(Path(__file__).parent / name) for name in FILES]
    words = ["-m", "pytest", "-q", "-p", "other_build", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    done = run(sys.executable, *words, *files, LIBRARY=str(library))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > len(FILES)
