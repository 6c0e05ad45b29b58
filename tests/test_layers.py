"""Imports point one way, and no two modules share a name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import attrim

ORDER = [
    "errors", "core", "runs", "kernels", "stats", "codebooks", "edits", "attention", "baking", "models", "measurement",
    "tasks", "evaluation", "training", "probing", "scores", "maps", "studies", "report", "web", "export",
    "commands", "cli",
]  # fmt: skip
ROOT = Path(attrim.__file__).parent
MODULES = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py"))]


def imports(module: Path) -> Iterator[str]:
    """The packages and root modules of attrim that a module imports, inside of functions too.

    Imports for the type checker alone are left out: the registries in core say in their types what is registered, but
    importing core imports none of it.
    """
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in node.body
    }
    package = ".".join(("attrim", *module.parent.parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in typing_only:
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and id(node) not in typing_only:
            origin = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("attrim."))


def test_imports_point_one_way() -> None:
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for place in [Path(module.parts[0]).stem]
        if place not in ("__init__", "__main__")
        for name in imports(module)
        if name != "__version__" and ORDER.index(name) > ORDER.index(place)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_share_a_name() -> None:
    """Commands are named after their verb, and every study's folder has the same parts."""
    free = [module for module in MODULES if module.parts[0] != "commands" and module.parent.parent.name != "studies"]
    named = [module for module in free if module.stem not in ("__init__", "base")]
    shared = {name for name, times in Counter(module.stem for module in named).items() if times > 1}
    assert not shared, sorted(str(module) for module in named if module.stem in shared)
