"""The package's public names: light to import, right in any import order."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import attrim
import forks

FUNCTIONS = ("sites", "edit", "measure", "evaluate")


def run(code: str) -> str:
    """What code prints in a Python that has imported nothing yet."""
    return said(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False))


def said(finished: subprocess.CompletedProcess[str]) -> str:
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_import_is_light() -> None:
    code = """
import sys, time
start = time.perf_counter()
import attrim, attrim.cli
print(time.perf_counter() - start)
heavy = {"torch", "transformers", "numpy", "matplotlib", "numba", "scipy", "datasets"} & set(sys.modules)
assert not heavy, heavy
"""
    assert float(run(code)) < 1.0


def test_help_is_light() -> None:
    code = """
import sys
import attrim.cli
try:
    attrim.cli.main(["measure", "--help"])
except SystemExit as stop:
    assert stop.code == 0
assert "torch" not in sys.modules
"""
    assert "--stats" in run(code)


@pytest.mark.parametrize("order", [(), ("attention.discover", "measurement", "evaluation"), ("evaluation", "baking")])
def test_functions_are_callable_in_any_import_order(order: tuple[str, ...]) -> None:
    imports = "\n".join(f"import attrim.{name}" for name in order) or "import attrim"
    checks = "\n".join(f"assert callable(attrim.{name}), {name!r}" for name in FUNCTIONS)
    said(forks.run("-c", f"{imports}\n{checks}"))


def test_a_function_imported_from_its_module_is_a_plain_function() -> None:
    from attrim.measurement import measure

    assert inspect.isfunction(measure)
    assert inspect.signature(attrim.measure) == inspect.signature(measure)


def test_registered_classes_appear_without_being_listed() -> None:
    from attrim.core.registry import EDITS, STATS

    members = EDITS.by_class_name() | STATS.by_class_name()
    assert {"Threshold", "Gate", "Uniform", "Histogram", "Mean"} <= set(members)
    for name, member in members.items():
        assert getattr(attrim, name) is member
        assert name in dir(attrim)


def test_a_star_imports_every_public_name() -> None:
    code = "import attrim; before = {*globals()}; from attrim import *; print(*({*globals()} - before))"
    names = said(forks.run("-c", code)).split()
    assert {"Threshold", "Histogram", "Select", "Site", "measure", "edit", "bake", "load"} <= set(names)
    assert set(names) == {*attrim.__all__, "before"}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Treshold"):
        attrim.Treshold  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        attrim.nothing  # noqa: B018
