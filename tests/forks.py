"""Python in a process of its own, within milliseconds instead of the seconds that it takes to import torch and others.

One server for each worker of pytest imports what attrim needs from others, and forks. Nothing of attrim is imported
before the fork, so that it starts as it does for users: its registries, its settings, the order of its imports. Tests
of what comes before that (the import of torch, of huggingface_hub with other settings, the end of the interpreter)
start Python with ``subprocess``.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO, Any

OTHERS = (
    "torch", "transformers.modeling_utils", "transformers.generation", "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2",
    "transformers.tokenization_utils_tokenizers", "accelerate", "matplotlib.figure", "rich.console", "rich.progress",
    "safetensors.torch", "scipy.optimize", "scipy.stats", "tyro", "uvicorn", "fastapi",
)  # fmt: skip
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(list(OTHERS))


class Process:
    """A program in a process of its own, with as much of ``subprocess.Popen`` as tests need.

    ``words`` are what Python would be given: ``-c``, code and arguments, or ``-m``, a module and arguments. Streams are
    text. What is printed goes where this process prints to, unless ``stdout`` or ``stderr`` is PIPE or a file.
    """

    def __init__(
        self,
        *words: str,
        stdin: int | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        theirs = [os.open(os.devnull, os.O_RDONLY), os.dup(1), os.dup(2)]
        if stdin is not None:
            theirs[0] = self._pipe("stdin", theirs[0], to_them=True)
        for number, (name, given) in enumerate((("stdout", stdout), ("stderr", stderr)), start=1):
            if given == subprocess.PIPE:
                theirs[number] = self._pipe(name, theirs[number], to_them=False)
            elif given is not None:
                os.dup2(given if isinstance(given, int) else given.fileno(), theirs[number])
        ends = [Connection(end) for end in theirs]
        environment = dict(os.environ if env is None else env)
        self._process = SERVER.Process(target=_become, args=(words, environment, str(cwd or Path.cwd()), ends))
        self._process.start()
        for end in ends:
            end.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def _pipe(self, name: str, instead: int, *, to_them: bool) -> int:
        os.close(instead)
        reading, writing = os.pipe()
        ours, theirs = (writing, reading) if to_them else (reading, writing)
        setattr(self, name, os.fdopen(ours, "w" if to_them else "r", encoding="utf-8"))
        return theirs

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with suppress(BrokenPipeError):  # it has ended before it read all
                    stream.close()
        self.wait()

    @property
    def returncode(self) -> int | None:
        """The code that it ended with, less than zero after a signal, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same, under the name that it has in ``subprocess``."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end, and return what is left to read: at most what a pipe holds, 64 KiB."""
        self.wait(timeout)
        out, errors = ("" if stream is None else stream.read() for stream in (self.stdout, self.stderr))
        return out, errors

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its code and what it printed."""
    with ExitStack() as files:
        out, errors = (files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2))
        process = Process(*words, stdout=out, stderr=errors, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), errors.read())


def _become(words: tuple[str, ...], environment: dict[str, str], folder: str, ends: list[Connection]) -> None:
    """Be what ``python WORDS`` is: its streams, environment, folder, path, arguments and ``__main__``."""
    assert not any(name.partition(".")[0] == "attrim" for name in sys.modules), "attrim was imported before the fork"
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # Each would compile attrim again where Python is told to keep no bytecode.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(environment["ATTRIM_CACHE"]) / "bytecode")
    first = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = dict.fromkeys([*first, *sys.path])
    kind, what, *arguments = words
    if kind == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
