"""The figures of a run: only those are drawn that are missing or changed, by processes that work beside this one.

Run as a module this is such a process: it reads charts from its input and says which figures are written.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from .. import __version__
from ..core.charts import Chart, dump, load
from ..core.progress import progress_bar
from ..errors import ParameterError
from ..runs.files import replace_file, storage

RECORD = "drawn.json"
"""Which chart each file of a folder shows, as a digest of its numbers."""
WORKERS, WORTH = 2, 6
"""Processes that draw, and the number of figures from which starting them pays."""


def save_all(
    charts: Iterable[Chart],
    folder: Path | str,
    formats: Sequence[str] = ("png", "svg"),
    *,
    redraw: bool = False,
    progress: bool = False,
) -> list[Path]:
    """Write charts to a folder, once for each format; returns the files, in the order of the charts.

    Files that are there and show the same chart stay as they are, unless ``redraw`` is set.
    """
    with Drawing(charts, folder, formats, redraw=redraw) as drawing:
        return drawing.finish(progress)


class Drawing:
    """Figures that are being drawn while other work goes on; :meth:`finish` waits for them.

    Examples
    --------
    >>> with Drawing(charts, "figures", ("png",)) as drawing:
    ...     tables = write_tables(...)
    ...     files = drawing.finish()
    """

    def __init__(
        self, charts: Iterable[Chart], folder: Path | str, formats: Sequence[str], *, redraw: bool = False
    ) -> None:
        self.charts, self.folder, self.formats = list(charts), Path(folder), tuple(formats)
        if unnamed := next((chart for chart in self.charts if not chart.name), None):
            raise ParameterError(f"A {type(unnamed).__name__} without a name cannot be written; give it one.")
        self._texts = {chart.name: json.dumps(dump(chart)) for chart in self.charts}
        self._digests = {
            self._file(name, suffix).name: hashlib.sha256(f"{__version__}\n{text}".encode()).hexdigest()
            for name, text in self._texts.items()
            for suffix in self.formats
        }
        record = self._record()
        self._due = {
            name: [
                suffix
                for suffix in self.formats
                if redraw
                or not (file := self._file(name, suffix)).is_file()
                or record.get(file.name) != self._digests[file.name]
            ]
            for name in self._texts
        }
        self._due = {name: suffixes for name, suffixes in self._due.items() if suffixes}
        self._workers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        # A figure that is being drawn is none of the record until it is whole.
        self._write_record({name: digest for name, digest in self._record().items() if not self._is_due(name)})
        if len(self._due) >= WORTH and sys.executable and (os.cpu_count() or 1) > 1:
            names = list(self._due)
            with suppress(OSError):  # no process can be started: the figures are drawn here
                for number in range(WORKERS):
                    self._workers.append(self._start(names[number::WORKERS]))
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def finish(self, progress: bool = False) -> list[Path]:
        """Wait until everything is drawn, and return the files.

        What a process did not draw, for whatever reason, is drawn here, so that an error is raised as anywhere else.
        """
        from .paper import save

        drawn: set[str] = set()
        try:
            with progress_bar(len(self._due), "drawing figures", progress and bool(self._due)) as bar:
                for worker in self._workers:
                    assert worker.stdout is not None
                    for line in worker.stdout:
                        drawn.add(line.rstrip("\n"))
                        bar.advance()
                for chart in self.charts:
                    if chart.name in self._due and chart.name not in drawn:
                        save(chart, self.folder, self._due[chart.name])
                        drawn.add(chart.name)
                        bar.advance()
        finally:
            whole = {name: digest for name, digest in self._digests.items() if Path(name).stem in drawn}
            if whole:
                self._write_record({**self._record(), **whole})
        return [self._file(chart.name, suffix) for chart in self.charts for suffix in self.formats]

    def _file(self, name: str, suffix: str) -> Path:
        return self.folder / f"{name}.{suffix}"

    def _is_due(self, file: str) -> bool:
        stem, _, suffix = file.rpartition(".")
        return suffix in self._due.get(stem, ())

    def _record(self) -> dict[str, str]:
        """What the files show; a record that cannot be read says nothing, and everything is drawn again."""
        try:
            found = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}

    def _write_record(self, record: dict[str, str]) -> None:
        if record != self._record():
            with storage(self.folder):
                replace_file(self.folder / RECORD, json.dumps(record, indent=1, sort_keys=True).encode())

    def _start(self, names: Sequence[str]) -> subprocess.Popen[str]:
        """A process that draws these charts and prints the name of each that is written."""
        # The path of this process, without the current folder: files there must not pass for modules.
        paths = os.pathsep.join(path for path in sys.path if path)
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "attrim.report.drawing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # it died: finish() draws what it leaves
            for name in names:
                line = f'{{"formats": {json.dumps(self._due[name])}, "chart": {self._texts[name]}}}\n'
                worker.stdin.write(line)
            worker.stdin.write(json.dumps({"folder": str(self.folder)}) + "\n")
            worker.stdin.close()
        return worker


def _work() -> None:
    """Draw the charts that stand on the lines of the input; the last line says where to."""
    from .paper import save

    *lines, last = sys.stdin
    folder = json.loads(last)["folder"]
    for line in lines:
        given = json.loads(line)
        chart = load(given["chart"])
        save(chart, folder, given["formats"])
        print(chart.name, flush=True)


if __name__ == "__main__":
    _work()
