"""Settings for all tests: offline, seeded, and one thread for each test worker."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from attrim.core.processor import prepare_half_precision

# Before torch is imported: two workers with two spinning threads each would fight for two cores.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
# What the tests keep for later is not the user's; workers of pytest-xdist inherit the folder.
os.environ.setdefault("ATTRIM_CACHE", tempfile.mkdtemp(prefix="attrim-cache-"))

# Once for all workers: pytest-xdist starts them from the process that has read this file, and they inherit the answer.
prepare_half_precision()

# A shell that starts the tests in the background makes them, and the commands that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines are slow at times; a property must not fail for that.
settings.register_profile("attrim", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("attrim")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def shared_data() -> Path:
    """The folder with real data sets beside the repository; tests that need it are skipped without it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _unrendered() -> Iterator[tuple[Any, int]]:
    """Figures are made of their charts, and files are written, but nothing is rendered into them.

    That takes most of the time of commands and studies. Tests of figures ask for the fixture ``rendered``, and
    ``make test-all``, which sets ATTRIM_RENDER, renders all.
    """
    from matplotlib.figure import Figure

    from attrim.report import drawing

    def save(figure: Figure, path: Path, **_: Any) -> None:
        Path(path).write_bytes(b"a figure that is not rendered")

    before = Figure.savefig, drawing.WORTH
    if os.environ.get("ATTRIM_RENDER"):
        yield before
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        patch.setattr(drawing, "WORTH", 10**6)  # processes of their own would render
        yield before


@pytest.fixture
def rendered(_unrendered: tuple[Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are rendered, as they are for users."""
    from matplotlib.figure import Figure

    from attrim.report import drawing

    monkeypatch.setattr(Figure, "savefig", _unrendered[0])
    monkeypatch.setattr(drawing, "WORTH", _unrendered[1])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.manual_seed(0)
