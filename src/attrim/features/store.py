"""Features in a folder: a mapped file with the hidden states, a JSON index and a file with everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..artefacts import Artefact
from ..atomic import remove_folder, storage
from ..errors import ArtefactError
from .features import Features
from .rows import mapped

STORE = Artefact("features", source="a folder of extract", remedy="remove the folder to compute them again")
_COLUMNS = ("slots", "starts", "index", "labels")


def states_file(folder: Path, key: str) -> Path:
    """The file with the hidden states of a key; named after it, so that an index never finds the states of another."""
    return folder / f"states-{key[:16]}.safetensors"


def save_columns(features: Features, folder: Path) -> None:
    """Write all but the hidden states, which are there already; those of another key are removed."""
    tensors = {name: getattr(features, name) for name in _COLUMNS}
    for group in ("targets", "token_targets"):
        tensors |= {f"{group}/{name}": column for name, column in getattr(features, group).items()}
    entries = {"key": features.key, "zero_share": features.zero_share, "seconds": features.seconds}
    STORE.save(folder, entries, tensors)
    with storage(folder):
        for stale in {*folder.glob("states-*.safetensors")} - {states_file(folder, features.key)}:
            stale.unlink()


def load_features(folder: Path, key: str) -> Features | None:
    """The features in a folder, if they are those of the key; None when there are none, others, or half of some."""
    try:
        if STORE.read_index(folder)["key"] != key:
            return None
        index, tensors = STORE.read(folder)
        states = mapped(states_file(folder, key))
    except (ArtefactError, OSError, SafetensorError, KeyError):
        return None  # what is not whole is computed again
    if len(states) != int(tensors["starts"][-1]):
        return None
    fields: dict[str, Any] = {name: tensors[name] for name in _COLUMNS}
    for group in ("targets", "token_targets"):
        prefix = f"{group}/"
        fields[group] = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
    return Features((states,), **fields, key=key, zero_share=index["zero_share"], seconds=index["seconds"])


def remove_features(folder: str | Path) -> None:
    """Remove the folder of features, if it is there."""
    folder = Path(folder)
    with storage(folder):
        if folder.exists():
            remove_folder(folder)
