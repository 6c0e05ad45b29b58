"""Save and load edits: one JSON file that names everything, one safetensors file with the tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..atomic import replace_file, replace_tensors
from ..errors import ArtefactError, AttrimError
from ..select import Select
from .base import EDITS, Edit

FORMAT = 1
INDEX = "edits.json"


def save_edits(edits: Edit | Iterable[Edit], folder: str | Path) -> Path:
    """Write edits to ``folder`` and return it; what was saved there before stays whole until the last moment.

    Notes
    -----
    The file of tensors is named after its content. The JSON file, which points to it, is renamed into place last: a
    reader sees the old pair or the new pair, never a mixture.
    """
    edits = [edits] if isinstance(edits, Edit) else list(edits)
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    entries = [_entry(edit, f"{number}", tensors) for number, edit in enumerate(edits)]
    index: dict[str, Any] = {"format": FORMAT, "edits": entries, "tensors": None, "digest": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if tensors:
            index["digest"], index["tensors"] = _write_tensors(tensors, folder)
        replace_file(folder / INDEX, json.dumps(index, indent=1, allow_nan=False).encode())
        for stale in folder.glob("edits-*.safetensors"):
            if stale.name != index["tensors"]:
                stale.unlink()
    except OSError as error:
        raise ArtefactError(
            f"The edits cannot be written to {str(folder)!r}: {error.strerror}; choose another folder."
        ) from error
    return folder


def load_edits(folder: str | Path) -> list[Edit]:
    """The edits that :func:`save_edits` wrote to ``folder``."""
    folder = Path(folder)
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        raise ArtefactError(
            f"There are no saved edits in {str(folder)!r}: {INDEX} is missing; give a folder of save_edits."
        ) from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    if not isinstance(index, dict) or not isinstance(index.get("edits"), list):
        raise _damaged(folder, f"{INDEX} does not list edits")
    if index.get("format") != FORMAT:
        found = index.get("format")
        raise ArtefactError(f"The edits in {str(folder)!r} have format {found!r}, not {FORMAT}; use another attrim.")
    tensors = _read_tensors(folder, index)
    try:
        return [_edit(entry, tensors) for entry in index["edits"]]
    except (AttrimError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder, str(error).rstrip(".")) from error


def _damaged(folder: Path, cause: str) -> ArtefactError:
    return ArtefactError(f"The edits in {str(folder)!r} cannot be read ({cause}); save them again.")


def _entry(edit: Edit, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    fields = {item.name: getattr(edit, item.name) for item in dataclasses.fields(edit) if item.name != "select"}
    return {
        "name": edit.registered_name,
        "fields": {name: _encode(value, f"{prefix}.{name}", tensors) for name, value in fields.items()},
        "select": edit.select.to_json(),
    }


def _edit(entry: dict[str, Any], tensors: Mapping[str, Tensor]) -> Edit:
    kind = EDITS[entry["name"]]
    fields = {name: _decode(value, tensors) for name, value in entry["fields"].items()}
    return kind(**fields, select=Select.from_json(entry["select"]))


def _encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """A field's value as JSON; tensors go to ``tensors`` and leave their key behind."""
    if isinstance(value, Tensor):
        # A copy of its own: safetensors refuses tensors that share memory.
        tensors[key] = value.detach().clone()
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"mapping": {name: _encode(item, f"{key}.{name}", tensors) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{key}.{number}", tensors) for number, item in enumerate(value)]
    return value


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {name: _decode(item, tensors) for name, item in value["mapping"].items()}
    if isinstance(value, list):
        return tuple(_decode(item, tensors) for item in value)
    return value


def _write_tensors(tensors: dict[str, Tensor], folder: Path) -> tuple[str, str]:
    """Write the tensors and return the file's digest and name."""
    part = folder / "edits-new.safetensors"
    replace_tensors(part, tensors)
    digest = _digest(part)
    return digest, part.replace(folder / f"edits-{digest[:16]}.safetensors").name


def _read_tensors(folder: Path, index: dict[str, Any]) -> dict[str, Tensor]:
    name = index.get("tensors")
    if name is None:
        return {}
    if not isinstance(name, str) or Path(name).name != name:
        raise _damaged(folder, f"{name!r} is not a file of this folder")
    try:
        if _digest(folder / name) != index.get("digest"):
            raise _damaged(folder, f"{name} has changed since it was saved")
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, str(error)) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
