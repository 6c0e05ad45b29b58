"""What CONTRIBUTING promises: a file and a decorator are all that a new edit, stat, score, task or study takes.

The examples of that page are made into a package of somebody else, which attrim finds by its entry points.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forks
from attrim.core import registry

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
EXAMPLES = {"edits": "power", "stats": "peak", "scores": "entropy", "tasks": "vowels", "studies": "sharpen"}
RUN = """
import json, sys
from attrim.cli import main
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]))
"""


def install(folder: Path, modules: dict[str, dict[str, str]]) -> Path:
    """Lay out an installed package: kind to files and their code, the first of which registers the member."""
    package = folder / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    metadata = folder / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    names = {kind: Path(next(iter(files))).parts[0].removesuffix(".py") for kind, files in modules.items()}
    entries = [f"[attrim.{kind}]\n{name} = mine.{name}\n" for kind, name in names.items()]
    (metadata / "entry_points.txt").write_text("\n".join(entries))
    for files in modules.values():
        write(package, files)
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    """Write code to files of a folder."""
    for name, code in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)


def run(site: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands of the command line, one after the other, where a package is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    words = json.dumps([command.split() for command in commands])
    return forks.run("-c", RUN, words, env=environment, cwd=site)


def examples(*kinds: str) -> dict[str, dict[str, str]]:
    """The complete examples of the page by kind: files, as the page names them, and their code."""
    found = {}
    for kind in kinds:
        pattern = rf"`src/attrim/{kind}/({EXAMPLES[kind]}[\w/]*\.py)`:\n\n```python\n(.*?)```"
        found[kind] = dict(re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL))
        assert found[kind], f"CONTRIBUTING has no example of {kind}"
    return found


def test_edit_stat_score_and_task_of_another_package(tmp_path: Path) -> None:
    site = install(tmp_path, examples("edits", "stats", "scores", "tasks"))
    finished = run(
        site,
        "evaluate tiny-bert --task vowels --edit power:2,layers=0 --option words=[egg,ham,ant]",
        "measure tiny-bert --text one --stats peak",
        "ls scores",
        "ls edits",
        "ls tasks",
        "ls stats",
    )
    assert finished.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 0]", finished.stderr
    assert "power:2,layers=0" in finished.stdout
    assert "3 examples" in finished.stdout
    assert "largest" in finished.stdout
    for name in ("entropy", "power", "vowels", "peak"):
        assert re.search(rf"^│ {name} +│", finished.stdout, re.MULTILINE), name
    assert "exponent" in finished.stdout


def test_a_study_of_another_package_has_its_command(tmp_path: Path) -> None:
    site = install(tmp_path, examples("edits", "tasks", "studies"))
    finished = run(
        site,
        "sharpen tiny-bert --task vowels --exponents 2 4 --formats png --output runs",
        "ls studies",
    )
    assert finished.stdout.splitlines()[-1] == "[0, 0]", finished.stderr
    assert "power:4" in finished.stdout
    assert "--exponents 0.5 2.0" in finished.stdout
    (folder,) = (site / "runs").iterdir()
    assert (folder / "findings.json").exists()
    again = run(site, f"show {folder} --formats png")
    assert "power:4" in again.stdout, again.stderr


def test_the_files_are_found_where_the_page_puts_them(tmp_path: Path) -> None:
    """Inside attrim: more folders of its packages stand for files that were put there."""
    for kind, files in examples(*EXAMPLES).items():
        write(tmp_path / kind, files)
    begin = f"""
import importlib, sys
def add(kind):
    importlib.import_module(f"attrim.{{kind}}").__path__.append(f"{tmp_path}/{{kind}}")
add("studies")
from attrim.commands import commands
assert commands()["sharpen"].study.__name__ == "Sharpen"
"""
    light = f"{begin}assert 'torch' not in sys.modules, 'reading the fields of a study imports torch'"
    code = f"""{begin}
for kind in {sorted(EXAMPLES.keys() - {"studies"})}:
    add(kind)
import attrim
print(attrim.Power(2.0).exponent, attrim.Peak.facts, attrim.Entropy().registered_name, attrim.Sharpen().exponents)
from attrim.cli import main
sys.exit(main("sharpen tiny-bert --task vowels --exponents 2 --formats png --output {tmp_path}/runs".split()))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", light], check=True, env=environment)
    finished = forks.run("-c", code, env=environment)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("2.0 ('largest',) entropy (0.5, 2.0)")
    assert "power:2" in finished.stdout


def test_a_score_of_another_package_is_called_like_any_other(tmp_path: Path) -> None:
    site = install(tmp_path, examples("scores"))
    code = """
import attrim, torch
model = attrim.load_model("tiny-bert")
scores = attrim.Entropy()(model, [{"input_ids": torch.arange(5, 17).view(2, 6)}])
print(scores.name, len(scores.order()), scores.large_is_important)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    finished = forks.run("-c", code, env=environment)
    assert finished.stdout.split() == ["entropy", "8", "False"], finished.stderr


def test_a_broken_plugin_is_named_in_one_sentence(tmp_path: Path) -> None:
    site = install(tmp_path, {"edits": {"broken.py": "import a_package_that_is_missing\n"}})
    finished = run(site, "ls edits", "ls edits", "ls models")
    assert finished.stdout.splitlines()[-1] == "[2, 2, 0]"
    first, second = finished.stderr.splitlines()
    assert first == second
    assert first.startswith("attrim: The plugin 'broken' of the package mine (mine.broken) could not be imported (")
    assert "a_package_that_is_missing" in first
    assert first.endswith("repair or uninstall it.")


def test_a_name_that_is_taken_is_refused() -> None:
    class Threshold:
        """Not the one of attrim."""

    with pytest.raises(registry.ParameterError, match=r"named 'threshold', attrim\.edits\.threshold\.Threshold and "):
        registry.EDITS.register("threshold")(Threshold)
    assert registry.EDITS["threshold"].__module__ == "attrim.edits.threshold"


def test_a_cell_that_is_run_again_replaces_what_it_registered() -> None:
    kinds = registry.Registry("kind", "attrim.edits", "kinds")
    try:
        for _ in range(2):

            class Mine:
                """Defined anew each time."""

            kinds.register("mine")(Mine)
        assert kinds["mine"] is Mine
    finally:
        del registry.REGISTRIES["kinds"]
