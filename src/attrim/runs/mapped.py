"""Many rows of numbers that arrive part by part: in memory up to a budget, beyond it in a mapped safetensors file."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import DataError
from .artefact import content
from .files import storage

NAME = "states"
_CODES = {torch.float32: "F32", torch.float16: "F16"}
# The size of the header is only known at the end, so that room is left for it; safetensors allows blanks after it.
_HEADER = 4096


class Writer:
    """Collects parts ``[T, ...]``; use it in a ``with`` statement, which removes what was not finished.

    Parameters
    ----------
    budget : bytes to keep in memory; with more of them, all go to ``path``.
    path : the file; None refuses what is above the budget.
    """

    def __init__(self, budget: int, path: Path | None) -> None:
        self.budget = budget
        self.path = path
        self.rows = 0
        self._bytes = 0
        self._kept: list[Tensor] = []
        self._sample: Tensor | None = None
        self._part: Path | None = None
        self._file: IO[bytes] | None = None

    def append(self, part: Tensor) -> None:
        """Add a part; it is copied, so that it does not hold on to what it was cut from."""
        self._sample = part[:0].cpu() if self._sample is None else self._sample
        self.rows += len(part)
        self._bytes += part.nbytes
        with torch.inference_mode(False):  # a tensor of inference mode could not be trained on
            self._kept.append(part.cpu().clone(memory_format=torch.contiguous_format))
        if self._file is None and self._bytes > self.budget:
            self._file = self._open()
        if self._file is not None:
            with storage(self.path.parent):  # type: ignore[union-attr]
                for kept in self._kept:
                    self._file.write(content(kept))
            self._kept.clear()

    @property
    def in_file(self) -> bool:
        """Whether the parts are in the file, and not in memory."""
        return self._file is not None

    def finish(self) -> tuple[Tensor, ...]:
        """All parts in order: as they came, or as one tensor that is mapped from the file and read when it is used."""
        if self._file is None or self._part is None or self._sample is None or self.path is None:
            return tuple(self._kept)
        shape = [self.rows, *self._sample.shape[1:]]
        entry = {"dtype": _CODES[self._sample.dtype], "shape": shape, "data_offsets": [0, self._bytes]}
        header = json.dumps({NAME: entry}).encode().ljust(_HEADER - 8)
        with storage(self.path.parent):
            self._file.seek(0)
            self._file.write((_HEADER - 8).to_bytes(8, "little") + header)
            self._file.close()
            self._part.replace(self.path)
        self._part = None
        return (mapped(self.path),)

    def _open(self) -> IO[bytes]:
        if self.path is None:
            raise DataError(
                f"The hidden states take more than {self.budget / 2**20:.0f} MiB; give a folder to keep them in, a "
                "larger budget, or fewer examples."
            )
        with storage(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._part = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
            file = self._part.open("wb")
            file.seek(_HEADER)
        return file

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._part is not None:
            with suppress(OSError):
                self._part.unlink()


def mapped(path: Path) -> Tensor:
    """The rows of a finished file, mapped into memory."""
    return load_file(path)[NAME]
