"""No compiled function reads or writes out of bounds, or does what C leaves undefined, on any path and shape."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from attrim.kernels import team

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "sanitised.py"
SANITISERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
COMPILER = shutil.which("gcc")  # the runtime of clang's sanitisers is not one library that can be preloaded


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command, and what it printed."""
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


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
    """The compiled functions with sanitisers, built from the sources and with the flags of pyproject.toml."""
    (module,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    into = tmp_path_factory.mktemp("sanitised") / f"_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-shared", "-fPIC", "-w", *module["extra-compile-args"], "-O1", *SANITISERS]
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        pytest.skip("the headers of Python are not here")
    assert COMPILER is not None
    done = run(COMPILER, *flags, f"-I{include}", *(ROOT / source for source in module["sources"]), "-o", into)
    assert done.returncode == 0, done.stderr
    return into


def sanitised(library: Path, runtime: str, what: str) -> subprocess.CompletedProcess[str]:
    # What torch and Python leave behind is not our leak.
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "LD_PRELOAD": runtime}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return run(sys.executable, PROGRAM, library, what, PYTHONPATH=paths, **options)


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
