"""AMX that is announced but cannot be executed: found out once, in another process, and then avoided."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

import attrim
from attrim.cli import main
from attrim.core import processor
from attrim.errors import ParameterError
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe

ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
WITH_AMX = "processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8\n"


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """Nothing is known yet, and what the test finds out is forgotten after it."""
    torch.ops.mkldnn._is_mkldnn_bf16_supported()  # oneDNN reads the limit of this process now, before it is taken away
    enabled = torch.backends.mkldnn.enabled
    for variable in (processor.AMX, processor.LIMIT):
        monkeypatch.setenv(variable, "")  # so that it is put back
        monkeypatch.delenv(variable)
    yield
    torch.backends.mkldnn.enabled = enabled


@pytest.fixture
def announced(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(WITH_AMX)
    return path


@pytest.fixture
def probes(monkeypatch):
    """The answers that the probe gave, on a machine whose AMX is broken."""
    asked = []

    def find_amx():
        asked.append("broken")
        return "broken"

    monkeypatch.setattr(processor, "find_amx", find_amx)
    return asked


def never():
    raise AssertionError("products must not be tried where there is no AMX")


def test_no_product_is_tried_without_amx(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("flags\t\t: fpu avx512f avx512_bf16\nmodel name\t: amx_tile\n")
    assert processor.find_amx(path, never) == "absent"
    assert processor.find_amx(tmp_path / "none", never) == "absent"


def test_products_in_another_process_decide(announced, monkeypatch, caplog):
    monkeypatch.setenv(processor.LIMIT, processor.BELOW_AMX)  # real products of torch, which so work on any machine
    assert processor.find_amx(announced) == "works"
    assert not caplog.records
    monkeypatch.setattr(processor, "PRODUCTS", ILLEGAL)
    done = subprocess.run([sys.executable, "-c", ILLEGAL], check=False)
    assert done.returncode == -signal.SIGILL
    assert processor.find_amx(announced) == "broken"
    assert "cannot execute it" in caplog.text


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_any_failure_counts_as_broken(announced, monkeypatch, code):
    monkeypatch.setattr(processor, "PRODUCTS", code)
    monkeypatch.setattr(processor, "SECONDS", 1)
    assert processor.find_amx(announced) == "broken"


def test_the_answer_is_found_once_and_inherited(probes):
    processor.prepare_half_precision()
    assert os.environ[processor.LIMIT] == processor.BELOW_AMX
    code = "import os; print(os.environ['ATTRIM_AMX'], os.environ['ONEDNN_MAX_CPU_ISA'])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["broken", processor.BELOW_AMX]
    processor.prepare_half_precision()
    del os.environ[processor.LIMIT]
    processor.prepare_half_precision()
    assert probes == ["broken"]


@pytest.mark.parametrize(("answer", "limit"), [("works", None), ("absent", None), ("broken", processor.BELOW_AMX)])
def test_the_user_can_say_it(probes, monkeypatch, answer, limit):
    monkeypatch.setenv(processor.AMX, answer)
    processor.prepare_half_precision()
    assert os.environ.get(processor.LIMIT) == limit
    assert not probes


def test_a_limit_of_the_user_stays(probes, monkeypatch):
    monkeypatch.setenv(processor.LIMIT, "AVX2")
    processor.prepare_half_precision()
    assert os.environ[processor.LIMIT] == "AVX2"
    assert not probes


def test_an_unknown_answer_is_refused(monkeypatch):
    monkeypatch.setenv(processor.AMX, "perhaps")
    with pytest.raises(ParameterError, match="ATTRIM_AMX is 'perhaps'; set it to works or broken"):
        processor.prepare_half_precision()


def test_too_late_switches_onednn_off(probes, monkeypatch, caplog):
    """oneDNN still has instructions that the limit excludes, so it has read its limit before."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: True)
    processor.prepare_half_precision()
    assert not torch.backends.mkldnn.enabled
    assert "start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in caplog.text


def test_float32_costs_nothing(probes):
    model = attrim.load_model("tiny-bert")
    attrim.sites(model)
    Loop(model, lambda epoch: [], Recipe(steps=1))
    assert main(["sites", "tiny-bert", "--quiet"]) == 0
    assert not probes


def _autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        attrim.sites(model)


def _edit(model):
    with attrim.edit(model.bfloat16(), attrim.Threshold(0.1), strict=False):
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda model: attrim.load_model("tiny-bert", dtype="bfloat16"),
        lambda model: attrim.load_model("tiny-bert", dtype="float16"),
        lambda model: main(["sites", "tiny-bert", "--dtype", "bfloat16"]),
        lambda model: attrim.sites(model.bfloat16()),
        _edit,
        _autocast,
        lambda model: Loop(model, lambda epoch: [], Recipe(steps=1, dtype="bfloat16")),
    ],
    ids=["load", "load-float16", "command", "sites", "edit", "autocast", "train"],
)
def test_half_precision_is_prepared(probes, use):
    model = attrim.load_model("tiny-bert")
    use(model)
    assert probes == ["broken"]


IN_TIME = """
import torch
import attrim
from attrim.core import processor

processor.find_amx = lambda: "broken"
processor.BELOW_AMX = "AVX2"  # a limit that shows on machines without AMX too: it leaves no products in bfloat16
attrim.load_model("tiny-bert", dtype="bfloat16")
assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""


def test_the_limit_reaches_onednn_after_the_import_of_torch():
    subprocess.run([sys.executable, "-c", IN_TIME], check=True)
