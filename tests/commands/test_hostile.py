"""Command lines that no reasonable person writes are refused in one sentence, at once, and without a traceback."""

from __future__ import annotations

import os
import signal
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from huggingface_hub import constants

from attrim.cli import main
from attrim.commands.base import Outcome
from attrim.commands.ls import Ls
from fuzz.trial import deadline, judge

MANY_DIGITS = "9" * 5000
HUGE = "99999999999999999999"
NOT_TEXT = os.fsdecode(b"\xff\xfe")  # what Python makes of bytes in an argument that are not UTF-8
EVALUATE = ("evaluate", "tiny-bert", "--task", "retrieval", "--data", "built-in", "--option", "paragraphs=4")
EVALUATE += ("--limit", "4")
MEASURE = ("measure", "tiny-bert", "--text", "some words")
CONSTANT = ("constant", "tiny-bert", "--task", "glue/sst2", "--data", "built-in")
SPARSITY = ("sparsity", "tiny-bert", "--task", "retrieval", "--data", "built-in")
TRAIN = ("train", "tiny-bert", "--task", "glue/sst2", "--data", "built-in")
BAKE = ("bake", "tiny-bert", "--edit", "gate:0,heads=0/1", "--rounds", "0", "--output")
EXPORT = ("export", "tiny-bert", "--text", "words", "--select-layers", "0", "--select-heads", "0", "--output")

HOSTILE: list[tuple[str, ...]] = [
    # bytes that are not text
    (NOT_TEXT,),
    ("sites", NOT_TEXT),
    ("sites", f"owner/{NOT_TEXT}"),
    ("sites", "tiny-bert", f"--{NOT_TEXT}"),
    ("sites", "tiny-bert", "--device", NOT_TEXT),
    ("sites", "tiny-bert", "--select-names", NOT_TEXT),
    ("sites", "tiny-bert", NOT_TEXT),
    ("ls", NOT_TEXT),
    ("show", NOT_TEXT),
    ("sites", "tiny-bert", "--config", NOT_TEXT),
    (*MEASURE[:3], NOT_TEXT),
    (*MEASURE, "--stats", NOT_TEXT),
    (*MEASURE, "--edit", f"threshold:{NOT_TEXT}"),
    (*EVALUATE, "--option", f"split={NOT_TEXT}"),
    ("evaluate", "tiny-bert", "--task", NOT_TEXT),
    ("evaluate", "tiny-bert", "--task", "retrieval", "--data", NOT_TEXT),
    # numbers beyond all bounds
    (*EVALUATE, "--limit", MANY_DIGITS),
    (*EVALUATE, "--seed", MANY_DIGITS),
    (*EVALUATE, "--seed", f"-{MANY_DIGITS}"),
    (*EVALUATE, "--seed", str(-(2**63))),
    (*EVALUATE, "--batch-size", HUGE),
    (*EVALUATE, "--batch-size", "0"),
    (*EVALUATE, "--batch-size", "-1"),
    (*EVALUATE, "--max-length", "0"),
    (*EVALUATE, "--max-length", "-5"),
    (*EVALUATE, "--limit", "0"),
    (*EVALUATE, "--option", f"paragraphs={MANY_DIGITS}"),
    (*EVALUATE, "--option", f"paragraphs={2**62}"),
    (*EVALUATE, "--edit", f"threshold:{MANY_DIGITS}"),
    (*EVALUATE, "--edit", "threshold:1e999"),
    (*EVALUATE, "--edit", "threshold:nan"),
    (*EVALUATE, "--edit", f"threshold:top={HUGE}"),
    (*EVALUATE, "--edit", f"random-drop:0.5,seed={HUGE}"),
    (*EVALUATE, "--edit", f"quantize:linear,bits={HUGE}"),
    (*EVALUATE, "--edit", f"quantize:uniform-midval,bits={2**62}"),
    (*EVALUATE, "--edit", "quantize:linear-midval,bits=60"),
    (*EVALUATE, "--edit", f"gate:1,heads={MANY_DIGITS}"),
    (*EVALUATE, "--edit", f"gate:1,layers=0-{HUGE}"),
    (*EVALUATE, "--edit", "gate:1,layers=0-99999999"),
    (*EVALUATE, "--edit", "gate:1,heads=" + "+".join(["0-9999"] * 500)),
    (*EVALUATE, "--select-layers", HUGE),
    (*EVALUATE, "--select-layers", str(2**63 - 1)),
    (*EVALUATE, "--select-heads", "0-99999999"),
    (*CONSTANT, "--max-length", "0"),
    (*CONSTANT, "--max-length", "-1"),
    (*CONSTANT, "--max-length", "99999999999"),
    (*CONSTANT, "--budgets", "99999999999999999999"),
    (*CONSTANT, "--budgets", "1/0"),
    (*CONSTANT, "--budgets", MANY_DIGITS),
    (*CONSTANT, "--budgets", f"1/{MANY_DIGITS}"),
    (*CONSTANT, "--budgets", "nan"),
    (*CONSTANT, "--epochs", "nan"),
    (*CONSTANT, "--epochs", "1e308"),
    (*CONSTANT, "--seeds", str(2**63 - 1)),
    (*CONSTANT, "--seeds", "-1"),
    (*CONSTANT, "--lambda-rate", "nan"),
    (*TRAIN, "--epochs", "nan"),
    (*TRAIN, "--epochs", "0"),
    (*TRAIN, "--seed", str(2**63 - 1)),
    (*TRAIN, "--batch-size", str(2**63 - 1)),
    (*TRAIN, "--learning-rate", "nan"),
    (*TRAIN, "--accumulation", str(2**63 - 1)),
    (*SPARSITY, "--bars", "nan"),
    (*SPARSITY, "--bars", "inf"),
    (*SPARSITY, "--row-bar", "nan"),
    (*SPARSITY, "--target", "nan"),
    (*SPARSITY, "--bits", HUGE),
    (*SPARSITY, "--bits", "62"),
    # stats whose histogram would not fit anywhere
    (*MEASURE, "--stats", "values:low=-inf"),
    (*MEASURE, "--stats", "values:high=inf"),
    (*MEASURE, "--stats", "values:low=nan"),
    (*MEASURE, "--stats", "values:low=-1e308,high=1e308"),
    (*MEASURE, "--stats", "values:low=1e300,high=1e301"),
    (*MEASURE, "--stats", "values:low=0,high=5e-324"),
    (*MEASURE, "--stats", f"values:bins={2**62}"),
    (*MEASURE, "--stats", "values:bins=100000000000"),
    (*MEASURE, "--stats", "values:bins=-1"),
    (*MEASURE, "--stats", "sample:count=-1"),
    (*MEASURE, "--stats", "token-sparsity:bars=nan"),
    (*MEASURE, "--stats", "token-sparsity:bars=[]"),
    # devices that torch knows and this build cannot use
    *((("sites", "tiny-bert", "--device", name)) for name in ("hpu", "xpu", "mps", "privateuseone", "meta", "cuda:99")),
    ("sites", "tiny-bert", "--device", "cpu:99999999999999999999"),
    ("sites", "tiny-bert", "--device", ""),
    ("sites", "tiny-bert", "--device", "x" * 3000),
    # names and paths
    (*MEASURE, "--output", "o" * 300),
    (*EVALUATE, "--output", "o" * 300),
    (*BAKE, "o" * 300),
    (*EXPORT, "o" * 300),
    (*MEASURE, "--output", "a/" * 3000),
    (*MEASURE, "--output", "~no-such-user/x/y"),
    (*EVALUATE, "--output", "/dev/null/x"),
    (*BAKE, "/dev/null"),
    ("sites", "~no-such-user/x"),
    ("sites", "tiny-bert\0"),
    ("sites", "~/\0"),
    ("sites", "m" * 100_000),
    ("sites", "\n\n\n"),
    ("sites", ""),
    ("sites", "."),
    ("sites", "/"),
    ("sites", "../" * 50),
    ("sites", "owner/" + "x" * 300),
    ("sites", "tiny-bert", "--gguf", "\0"),
    ("sites", "tiny-bert", "--revision", "\0"),
    ("sites", "tiny-bert", "--config", "\0"),
    ("sites", "tiny-bert", "--config", "c" * 300),
    ("sites", "tiny-bert", "--config", "~no-such-user/x"),
    ("sites", "tiny-bert", "--config", "/"),
    ("show", "\0"),
    ("show", "r" * 300),
    ("show", "~no-such-user/x"),
    ("show", "/"),
    (*MEASURE, "--output", "\0"),
    (*EVALUATE, "--output", "\0"),
    (*EXPORT, "\0"),
    (*BAKE, "\0"),
    ("evaluate", "tiny-bert", "--task", "retrieval", "--data", "\0"),
    ("evaluate", "tiny-bert", "--task", "retrieval", "--data", "d" * 300),
    ("evaluate", "tiny-bert", "--task", "retrieval", "--data", "~no-such-user/x"),
    ("evaluate", "tiny-bert", "--task", "glue/sst2", "--data", "\0"),
    ("measure", "tiny-bert", "--task", "text", "--data", "\0"),
    ("measure", "tiny-bert", "--task", "text", "--data", "d" * 300),
    (*EVALUATE, "--edit", "constant:\0"),
    (*EVALUATE, "--edit", f"constant:{'c' * 300}"),
    (*EVALUATE, "--edit", "constant:~no-such-user/x"),
    ("export", "--tensor", "\0:x", "--output", "out"),
    ("export", "--tensor", f"{'t' * 300}:x", "--output", "out"),
    # long and strange texts
    ("x" * 100_000,),
    ("sites", "tiny-bert", "--" + "x" * 100_000),
    ("sites", "tiny-bert", *["surplus"] * 5000),
    (*MEASURE, "--stats", "x" * 100_000),
    (*MEASURE, "--edit", " then ".join(["thresholds:0.1"] * 5000)),
    (*MEASURE, "--edit", "threshold:" + "[" * 5000),
    (*MEASURE, "--edit", "threshold:" + '"\\' * 5000),
    (*MEASURE, "--edit", "threshold:" + ",".join(["0.1"] * 5000)),
    (*EVALUATE, "--option", "x" * 100_000),
    (*EVALUATE, "--option", "label_order=" + "[" * 5000),
    ("sites", "tiny-bert", "--select-names", "[" * 5000),
    ("sites", "tiny-bert", "--select-roles", "r" * 5000),
    ("sites", "tiny-bert", "--kind", "k" * 5000),
    ("sites", "tiny-bert", "--dtype", "d" * 5000),
]


def shown(words: tuple[str, ...]) -> str:
    text = " ".join(words).encode(errors="backslashreplace").decode().replace("\0", "NUL")
    return text if len(text) < 90 else f"{text[:80]}...{len(text)}"


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=lambda number: shown(HOSTILE[number]))
def test_a_hostile_command_line_is_refused_in_one_sentence(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with deadline(60):
        code = main(HOSTILE[number])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, ""), printed.err
    assert judge(code, printed.err) == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "a refused command wrote something"


@pytest.mark.parametrize(
    "words",
    [
        (*EVALUATE, "--limit", str(2**63 - 1)),
        (*EVALUATE, "--seed", str(2**63 - 1)),
        (*EVALUATE, "--batch-size", str(2**63 - 1)),
        (*EVALUATE, "--max-length", str(2**63 - 1)),
        (*EVALUATE, "--edit", f"random-drop:0.5,seed={2**63 - 1}"),
        (*MEASURE, "--stats", f"sample:count={2**63 - 1}"),
        ("sites", "tiny-bert", "--select-names", "*" * 5000),
    ],
)
def test_large_numbers_that_mean_something_work(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with deadline(60):
        assert main(words) == 0
    assert capsys.readouterr().err == ""


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    "content",
    [
        b'device: "\\0"', b'output: "a\\0b"', b"device: \0", b"\xff\xfe", b"\x80", b'device: "\\ud800"',
        f"limit: {MANY_DIGITS}".encode(), f"batch-size: {HUGE}".encode(), b"limit: .inf", b"limit: .nan",
        b"[" * 100_000, b"a: " * 10_000, b"? " * 10_000, b"- " * 100_000, b"{" * 100_000, b"device: &a [*a]",
        BOMB.encode(), BOMB.encode() + b"edit: *i\n", b"edit: !!python/object/apply:os.system [x]", b"*x", b"&x",
        b"!<tag:yaml.org,2002:str> x", b"--- 1\n--- 2\n", b"device: 1\ndevice: 2\n", b"'" * 5000, b"\t\t\t",
        b"%YAML 9.9\n---\n",
        b"device: " + b"x" * 2**21, b"? [a, b]\n: c\n", b"? {a: b}\n: c\n", b"output: ~no-such-user/x",
    ],
    ids=lambda content: content[:30].decode(errors="backslashreplace").replace("\0", "NUL"),
)  # fmt: skip
def test_hostile_yaml_is_refused_in_one_sentence(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with deadline(20):
        code = main([*EVALUATE, "--config", "c.yaml"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, ""), printed.err[:2000]
    assert judge(code, printed.err) == ""


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(self: Ls) -> None:
        raise error

    monkeypatch.setattr(Ls, "run", run)


def test_what_nobody_foresaw_is_one_sentence_and_a_file_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken(monkeypatch, ValueError("two\nlines \0 " + "x" * 1000))
    assert main(["ls", "edits"]) == 70
    printed = capsys.readouterr()
    assert printed.out == ""
    [path] = tmp_path.iterdir()
    assert printed.err.startswith("attrim: An unforeseen error ended the command (ValueError: two lines")
    assert str(path) in printed.err
    assert printed.err.count("\n") == 1
    report = path.read_text()
    assert report.startswith("attrim ls edits\nPython ")
    assert "Traceback" in report
    assert "in run" in report


def test_without_room_for_the_file_the_traceback_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    broken(monkeypatch, ValueError("no"))
    assert main(["ls"]) == 70
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.splitlines()[-1].endswith("please report it with the traceback above.")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "memory"),
        (OSError(28, "No space left on device", "/some/file"), "/some/file cannot be read or written (No space left"),
        (OSError(36, "File name too long", "x" * 300), "File name too long"),
    ],
)
def test_limits_of_the_machine_are_no_bugs(
    error: Exception, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, error)
    assert main(["ls"]) == 2
    errors = capsys.readouterr().err
    assert judge(2, errors) == ""
    assert named in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_program_says_what_ctrl_c_says(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Ls) -> None:
        signal.raise_signal(number)
        pytest.fail("nothing happened")

    monkeypatch.setattr(Ls, "run", run)
    outside = signal.signal(number, signal.default_int_handler)  # the tests themselves may run under nohup
    try:
        assert main(["ls"]) == 128 + number
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, outside)
    said = "attrim: stopped; what was written so far is complete and the same command goes on.\n"
    assert capsys.readouterr().err == said


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``nohup`` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(Ls, "run", lambda self: signal.raise_signal(signal.SIGHUP) or Outcome({}))
    try:
        assert main(["ls"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("text", ["threshold:nan", "random-drop:nan", "gate:nan", "threshold:inf", "mix:nan"])
def test_a_bar_is_never_nan(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVALUATE, "--edit", text]) == 2
    assert judge(2, capsys.readouterr().err) == ""
