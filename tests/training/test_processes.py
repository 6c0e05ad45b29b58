"""Training in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nets import Net

TWO_PROCESSES = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from nets import Net, epochs, loss
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe
model = Net()
model.norm, model.dropout.p = torch.nn.Identity(), 0.0  # batch statistics and dropout differ between processes
accumulation = int(sys.argv[3])
loop = Loop(model, epochs, Recipe(steps=6, learning_rate=1e-2, accumulation=accumulation), loss=loss)
loop.run()
if loop.is_main:
    from safetensors.torch import save_file
    save_file(dict(model.named_parameters()), sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_do_what_two_batches_a_step_do(tmp_path):
    from safetensors.torch import load_file

    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ACCELERATE_USE_CPU": "true"}
    here = str(Path(__file__).resolve().parents[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29511"]
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    subprocess.run([sys.executable, str(script), str(one), here, "2"], env=environment, check=True, timeout=120)
    subprocess.run([*launch, str(script), str(two), here, "1"], env=environment, check=True, timeout=120)
    first, second = load_file(one), load_file(two)
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)
    assert not torch.equal(first["first.weight"], dict(Net().named_parameters())["first.weight"])
