"""The compiled functions built in other ways than on installation: with sanitisers, AVX-512 emulated, or by clang."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILER = shutil.which("gcc")  # the runtime of clang's sanitisers is not one library that can be preloaded
EMULATED = ("-mavx2", "-mfma", "-DAVX512_TARGET=", "-include", str(ROOT / "tests" / "kernels" / "emulated_avx512.h"))
"""Flags that build the AVX-512 path from loops, for machines that have AVX2 only."""


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command, and what it printed; Python finds attrim and the tests."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    given = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(words, capture_output=True, text=True, env=given, cwd=ROOT, check=False)


def build(folder: Path, *flags: str, compiler: str | None = COMPILER) -> Path:
    """Build them from the sources and with the flags of pyproject.toml and some more; skips without a compiler."""
    (module,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    into = folder / f"_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    if compiler is None:
        pytest.skip("there is no gcc here")
    if not (Path(include) / "Python.h").exists():
        pytest.skip("the headers of Python are not here")
    common = ["-shared", "-fPIC", "-w", *module["extra-compile-args"]]
    sources = [ROOT / source for source in module["sources"]]
    done = run(compiler, *common, *flags, f"-I{include}", *sources, "-o", into)
    assert done.returncode == 0, done.stderr
    return into


def emulates() -> bool:
    """Whether this machine can run the AVX-512 path only if it is emulated."""
    from attrim.kernels import team

    if platform.machine() != "x86_64" or not team.available():
        return False
    from attrim.kernels import _compiled

    return team.PATHS[_compiled.BEST_PATH] == "avx2"


def load(library: str, *, emulated: bool) -> None:
    """Make ``attrim.kernels._compiled`` the given file, whatever was built on installation."""
    spec = importlib.util.spec_from_file_location("attrim.kernels._compiled", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["attrim.kernels._compiled"] = module
    import attrim.kernels

    attrim.kernels._compiled = module  # type: ignore[attr-defined]
    from attrim.kernels import team

    assert team.available(), "the library does not fit team.py"
    if emulated:
        module.BEST_PATH = team.PATHS.index("avx512")
