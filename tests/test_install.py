"""attrim installs where there is no C compiler, says that the compiled passes are missing, and works without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attrim.errors import ParameterError
from attrim.kernels import team

ROOT = Path(__file__).resolve().parents[1]
USE = """
import sys, torch, attrim
from attrim.cli import main
from attrim.kernels import team

assert attrim.__file__.startswith(sys.argv[1]), attrim.__file__
assert not team.available() and team.PATHS[team.path()] == "torch"
model = attrim.load_model("tiny-bert")
batch = {"input_ids": torch.arange(5, 45).view(2, 20)}
found = attrim.measure(model, [batch], [attrim.Mean(), attrim.Histogram()])
eager = attrim.load_model("tiny-bert")
eager.set_attn_implementation("eager")
with torch.no_grad():
    weights = eager(**batch, output_attentions=True).attentions[1].double()
torch.testing.assert_close(found[attrim.Mean].matrix(found[attrim.Mean].sites[1]), weights.mean(0), atol=1e-6, rtol=0)
words = ["bake", "tiny-bert", "--edit", "window:4,first=1 then gate:0,heads=0/1", "--length", "40", "--rounds", "1"]
assert main([*words, "--output", "baked"]) == 0
gate = attrim.Gate(0, select=attrim.Select(heads=[(0, 1)]))
with torch.no_grad(), attrim.edit(model, attrim.Window(4, first=1), gate):
    expected = model(**batch).last_hidden_state
with torch.no_grad():
    torch.testing.assert_close(attrim.load("baked")(**batch).last_hidden_state, expected, atol=1e-5, rtol=1e-4)
"""


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=built)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    words = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    pip = [sys.executable, "-m", "pip", *words, str(source)]
    done = subprocess.run(pip, env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(target.rglob("*.so"))
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("ATTRIM_KERNEL", None)
    command = [sys.executable, "-c", USE, str(target)]
    used = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert used.returncode == 0, used.stderr
    assert "No kernel leaves anything out here" in " ".join(used.stdout.split())


def test_without_the_compiled_passes_there_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "available", lambda: False)
    path = team.path.__wrapped__  # without what was found out before
    monkeypatch.delenv("ATTRIM_KERNEL", raising=False)
    assert team.PATHS[path()] == "torch"
    monkeypatch.setenv("ATTRIM_KERNEL", "avx2")
    with pytest.raises(ParameterError, match="it has torch, or leave it unset"):
        path()
