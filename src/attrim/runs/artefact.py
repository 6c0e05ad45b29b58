"""A folder with a JSON index and the safetensors file it points to: the old pair or the new one, never a mixture.

The index holds digests of itself and of the tensors, so that nothing is believed that changed after it was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..core.documents import MissingFile, Unreadable, parse_json, read_bytes
from ..errors import SENTENCE, ArtefactError, AttrimError, shorten
from .files import file_digest, is_sealed, replace_file, sealed, write_tensors
from .locks import in_turn

UNFIT = (AttrimError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
"""What making an object of an artefact's entries can raise when they do not fit it."""
FORMAT = 2
"""Of every index; the first one had no digest of the index itself."""


def in_words(error: Exception) -> str:
    """What went wrong, without the number and the path that Python puts around it."""
    return getattr(error, "strerror", None) or str(error)


@dataclass(frozen=True)
class Artefact:
    """How one kind of artefact is stored.

    Parameters
    ----------
    noun : what it is, in the plural; the files are named after it.
    source : what a folder that holds one is, for the sentence that says it does not.
    remedy : what to do about a damaged one.
    called : what errors call it, in the plural, where that is not the noun.
    """

    noun: str
    source: str
    remedy: str
    called: str = ""

    @property
    def said(self) -> str:
        """What errors call it."""
        return self.called or self.noun

    @property
    def index(self) -> str:
        """The name of the JSON file."""
        return f"{self.noun}.json"

    def save(self, folder: str | Path, entries: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        """Write entries and tensors to ``folder`` and return it.

        The file of tensors is named after its content, and the index, which a reader follows, is renamed into place
        last.
        """
        folder = Path(folder)
        index: dict[str, Any] = {"format": FORMAT, **entries, "tensors": None, "tensors_digest": None}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with in_turn(folder):  # or another process would remove the file that this one is about to point to
                if tensors:
                    # Copies, because safetensors refuses tensors that share memory.
                    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
                    path, index["tensors_digest"] = write_tensors(folder, self.noun, copies)
                    index["tensors"] = path.name
                replace_file(folder / self.index, sealed(index))
                for stale in folder.glob(f"{self.noun}-*.safetensors"):
                    if stale.name != index["tensors"]:
                        stale.unlink()
        except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
            raise ArtefactError(
                f"The {self.said} cannot be written to {str(folder)!r}: {in_words(error)}; choose another folder."
            ) from error
        return folder

    def read(self, folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The index and the tensors that :meth:`save` wrote to ``folder``."""
        index = self.read_index(folder)
        return index, self._read_tensors(Path(folder), index)

    def read_index(self, folder: str | Path) -> dict[str, Any]:
        """The index alone."""
        path = Path(folder) / self.index
        try:
            index = parse_json(read_bytes(path))
        except FileNotFoundError:
            missing = f"{self.index} is missing" if Path(folder).is_dir() else "there is no such folder"
            raise MissingFile(
                f"There are no saved {self.said} in {str(folder)!r}: {missing}; give {self.source}."
            ) from None
        except (OSError, Unreadable) as error:
            raise self.damaged(folder, in_words(error)) from error
        if not isinstance(index, dict):
            raise self.damaged(folder, f"{self.index} holds no {self.said}")
        if index.get("format") != FORMAT:
            found = shorten(index.get("format"))
            raise ArtefactError(
                f"The {self.said} in {str(folder)!r} have format {found}, not {FORMAT}, so another attrim wrote them; "
                f"{self.remedy}."
            )
        if not is_sealed(index):
            raise self.damaged(folder, f"{self.index} has changed since it was saved")
        return index

    def damaged(self, folder: str | Path, cause: str) -> ArtefactError:
        """The error for an artefact that cannot be read."""
        said, rest = f"The {self.said} in ", f" cannot be read ({cause.rstrip('.')}); {self.remedy}."
        # A longer sentence loses its middle, which is the cause, so a long path gives way to it.
        room = max(SENTENCE // 6, SENTENCE - len(said) - len(rest))
        return ArtefactError(f"{said}{shorten(str(folder), most=room)}{rest}")

    def _read_tensors(self, folder: Path, index: Mapping[str, Any]) -> dict[str, Tensor]:
        name = index.get("tensors")
        if name is None:
            return {}
        if not isinstance(name, str) or Path(name).name != name:
            raise self.damaged(folder, f"{shorten(name)} is not a file of this folder")
        try:
            if file_digest(folder / name) != index.get("tensors_digest"):
                raise self.damaged(folder, f"{name} has changed since it was saved")
            return load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise self.damaged(folder, in_words(error)) from error


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is on the CPU and contiguous; for hashing and writing."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
