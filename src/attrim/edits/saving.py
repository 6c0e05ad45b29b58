"""Save and load edits: one JSON file that names everything, one safetensors file with the tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.documents import MissingFile
from ..core.registry import EDITS
from ..core.site import Select
from ..runs.artefact import UNFIT, Artefact, content
from ..runs.files import file_digest
from .base import Edit
from .bits import Packed, PackedCells

STORE = Artefact("edits", source="a folder of save_edits", remedy="save them again")
INDEX = STORE.index
BAKED = Artefact(
    "baked",
    called="baked layers",
    source="the folder that a baked model's save_pretrained wrote",
    remedy="bake and save it again",
)
"""How a baked model says what it is."""
CARRIED = "edits"
"""The entry of its index for the edits that it carries."""
CARRIER = "attrim_carried"
"""The name of the module that holds their tensors as buffers."""
BITS = "bits"
"""What takes the place of a dtype where a buffer is a boolean tensor as bits."""
WORDS = {"float32 words": (torch.float32, torch.int32), "float64 words": (torch.float64, torch.int64)}
"""The same where it has the bits of floats as integers, which a model in half precision does not round."""
Tensors = Mapping[str, Tensor | Packed]
"""The tensors of edits by the names that their entries have for them."""


def save_edits(edits: Edit | Iterable[Edit], folder: str | Path) -> Path:
    """Write edits to ``folder`` and return it; what was saved there before stays whole until the last moment."""
    edits = [edits] if isinstance(edits, Edit) else list(edits)
    entries, tensors = encode_edits(edits)
    return STORE.save(folder, {"edits": entries}, tensors)


def load_edits(folder: str | Path) -> list[Edit]:
    """The edits that :func:`save_edits` wrote to ``folder``."""
    index = STORE.read_index(folder)
    if not isinstance(index.get("edits"), list):
        raise STORE.damaged(folder, f"{INDEX} does not list edits")
    index, tensors = STORE.read(folder)
    try:
        return decode_edits(index["edits"], tensors)
    except UNFIT as error:
        raise STORE.damaged(folder, str(error)) from error


def holds_edits(folder: str | Path) -> bool:
    """Whether a folder holds edits that :func:`save_edits` wrote."""
    return (Path(folder) / INDEX).is_file()


def read_carried(folder: str | Path) -> list[Edit] | None:
    """The edits that the baked model in ``folder`` carries in its buffers; None where there is no baked model."""
    try:
        index = BAKED.read_index(folder)
    except MissingFile:
        return None
    carried = index.get(CARRIED)
    tensors: dict[str, Tensor | Packed] = {}
    try:
        about = {} if carried is None else carried["tensors"]
        wanted = {buffer: key for key, (buffer, _, _) in about.items()}
        saved = {name: digest for name, digest in index["files"].items() if name.endswith(".safetensors")}
        for name, digest in saved.items() if wanted else ():
            path = Path(folder) / Path(name).name
            if file_digest(path) != digest:
                raise ValueError(f"{name} has changed since it was saved")
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (a file, not a mapping)
                    if name.rpartition(f"{CARRIER}.")[1] and name.rpartition(".")[2] in wanted:
                        key = wanted[name.rpartition(".")[2]]
                        tensors[key] = as_saved(file.get_tensor(name), *about[key][1:])
        return decode_edits([] if carried is None else carried["entries"], tensors)
    except OSError as error:
        raise BAKED.damaged(folder, f"{error.filename}: {error.strerror}" if error.strerror else str(error)) from error
    except (*UNFIT, SafetensorError) as error:
        raise BAKED.damaged(folder, str(error)) from error


def as_saved(buffer: Tensor, dtype: str, shape: Sequence[int]) -> Tensor | Packed:
    """What a buffer of a baked model holds, by the dtype and shape that are written of it."""
    if dtype in WORDS:
        kind = WORDS[dtype][0]
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            # A trace cannot have a view of another dtype, so that the floats are constants of it.
            floats = buffer.cpu().numpy().view(str(kind).removeprefix("torch."))
            return torch.from_numpy(floats).to(buffer.device)
        return buffer.view(kind)
    return Packed(buffer, shape[-1]) if dtype == BITS else buffer


def as_buffer(tensor: Tensor) -> tuple[Tensor, str]:
    """The buffer of a baked model that holds a tensor, and what takes the place of its dtype."""
    if tensor.dtype == torch.bool:
        return Packed.of(tensor).bits, BITS
    for name, (kind, words) in WORDS.items():
        if tensor.dtype == kind:
            return tensor.contiguous().view(words), name
    return tensor, str(tensor.dtype).removeprefix("torch.")


def fingerprint(edits: Iterable[Edit]) -> str:
    """A hash of edits, the tensors that they hold included: equal edits have equal ones."""
    entries, tensors = encode_edits(edits)
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def holds_tensors(edits: Iterable[Edit]) -> bool:
    """Whether any of the edits holds tensors, which its text only names."""
    return bool(encode_edits(edits)[1])


def encode_edits(edits: Iterable[Edit]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Edits as JSON values, and the tensors that these name."""
    tensors: dict[str, Tensor] = {}
    return [_entry(edit.to_save(), f"{number}", tensors) for number, edit in enumerate(edits)], tensors


def decode_edits(entries: Iterable[dict[str, Any]], tensors: Tensors) -> list[Edit]:
    """The inverse of :func:`encode_edits`."""
    return [_edit(entry, tensors) for entry in entries]


def _entry(edit: Edit, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    fields = {item.name: getattr(edit, item.name) for item in dataclasses.fields(edit) if item.name != "select"}
    return {
        "name": edit.registered_name,
        "fields": {name: _encode(value, f"{prefix}.{name}", tensors) for name, value in fields.items()},
        "select": edit.select.to_json(),
    }


def _edit(entry: dict[str, Any], tensors: Tensors) -> Edit:
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


def _decode(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            found = tensors[value["tensor"]]
            return found.unpack() if isinstance(found, Packed) else found
        named = value["mapping"]
        held = {
            name: tensors[item["tensor"]] for name, item in named.items() if isinstance(item, dict) and "tensor" in item
        }
        packed = {name: item for name, item in held.items() if isinstance(item, Packed)}
        if packed and len(packed) == len(named):
            return PackedCells(packed)
        return {name: _decode(item, tensors) for name, item in named.items()}
    if isinstance(value, list):
        return tuple(_decode(item, tensors) for item in value)
    return value
