"""Save and load edits: one JSON file that names everything, one safetensors file with the tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.registry import EDITS
from ..core.site import Select
from ..runs.artefact import UNFIT, Artefact, content
from .base import Edit

STORE = Artefact("edits", source="a folder of save_edits", remedy="save them again")
INDEX = STORE.index


def save_edits(edits: Edit | Iterable[Edit], folder: str | Path) -> Path:
    """Write edits to ``folder`` and return it; what was saved there before stays whole until the last moment."""
    edits = [edits] if isinstance(edits, Edit) else list(edits)
    tensors: dict[str, Tensor] = {}
    entries = [_entry(edit, f"{number}", tensors) for number, edit in enumerate(edits)]
    return STORE.save(folder, {"edits": entries}, tensors)


def load_edits(folder: str | Path) -> list[Edit]:
    """The edits that :func:`save_edits` wrote to ``folder``."""
    index = STORE.read_index(folder)
    if not isinstance(index.get("edits"), list):
        raise STORE.damaged(folder, f"{INDEX} does not list edits")
    index, tensors = STORE.read(folder)
    try:
        return [_edit(entry, tensors) for entry in index["edits"]]
    except UNFIT as error:
        raise STORE.damaged(folder, str(error)) from error


def fingerprint(edits: Iterable[Edit]) -> str:
    """A hash of edits, the tensors that they hold included: equal edits have equal ones."""
    tensors: dict[str, Tensor] = {}
    entries = [_entry(edit, f"{number}", tensors) for number, edit in enumerate(edits)]
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def holds_tensors(edits: Iterable[Edit]) -> bool:
    """Whether any of the edits holds tensors, which its text only names."""
    tensors: dict[str, Tensor] = {}
    for number, edit in enumerate(edits):
        _entry(edit, f"{number}", tensors)
    return bool(tensors)


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
        tensors[key] = value
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
