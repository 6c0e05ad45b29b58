"""Runs: a folder with a configuration, versions, results in SQLite and arrays in safetensors, all written atomically.

A run is known by the hash of its full configuration: asking for a finished one again repeats nothing, and one that was
killed goes on with the settings that it does not have yet.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from .atomic import replace_file, replace_tensors, storage
from .errors import ArtefactError
from .tables import Tables

_PACKAGES = ("attrim", "torch", "transformers", "datasets", "numpy", "safetensors")


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash a configuration of JSON values; the order of keys does not matter."""
    return hashlib.sha256(_dump(config).encode()).hexdigest()


class Run(Tables):
    """One run folder: ``config.json``, ``versions.json``, ``results.sqlite`` and ``arrays/*.safetensors``.

    Use :meth:`open` (or :meth:`read` for looking only), best in a ``with`` statement.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        super().__init__(folder)
        self.config = config
        self.key = config_hash(config)

    @classmethod
    def open(cls, where: str | Path, config: Mapping[str, Any], name: str = "run") -> Run:
        """Open the run of a configuration, or begin it.

        Parameters
        ----------
        where : a folder of runs, in which the run gets the folder ``NAME-HASH``, or the folder of this very run.
        config : JSON values, everything that the results depend on: model, task, settings, seed.
        name : begins the folder's name; not part of the hash.
        """
        try:
            plain = json.loads(_dump(config))
        except (TypeError, ValueError) as error:
            raise ArtefactError(f"A run's configuration must be JSON values: {error}.") from error
        where = Path(where).expanduser()
        if (where / "config.json").exists():
            run = cls.read(where)
            if run.key != config_hash(plain):
                run.close()
                raise ArtefactError(
                    f"{where} holds a run with another configuration (it differs in {_difference(run.config, plain)}); "
                    "give another folder, or a folder of runs."
                )
        else:
            folder = where / f"{_tidy(name)}-{config_hash(plain)[:12]}"
            if (folder / "config.json").exists():
                run = cls.read(folder)
            else:
                with storage(folder):
                    (folder / "arrays").mkdir(parents=True, exist_ok=True)
                    run = cls(folder, plain)
                    replace_file(folder / "config.json", json.dumps(plain, indent=2).encode())
        run._note_versions()
        return run

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Open an existing run by its folder alone."""
        folder = Path(folder).expanduser()
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ArtefactError(f"{folder} holds no run (there is no config.json); check the path.") from error
        except ValueError as error:
            raise ArtefactError(
                f"{folder / 'config.json'} is damaged ({error}); restore it or move the folder away."
            ) from error
        return cls(folder, config)

    def save_arrays(self, name: str, tensors: Mapping[str, Any]) -> Path:
        """Write named tensors to ``arrays/NAME.safetensors``."""
        path = self._array_path(name)
        with storage(self.folder):
            path.parent.mkdir(exist_ok=True)
            replace_tensors(path, tensors)
        return path

    def load_arrays(self, name: str) -> dict[str, Any]:
        """The inverse of :meth:`save_arrays`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._array_path(name)
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtefactError(
                f"{path} is missing or damaged ({error}); remove the run's folder to repeat it."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _array_path(self, name: str) -> Path:
        # A tidy name alone could be the same for two settings.
        return self.folder / "arrays" / f"{_tidy(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.safetensors"

    def _note_versions(self) -> None:
        """Remember with which versions the run was worked on, once for each set of them."""
        path = self.folder / "versions.json"
        versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
        with storage(self.folder):
            seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
            if versions not in seen:
                replace_file(path, json.dumps([*seen, versions], indent=2).encode())


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _tidy(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "run"


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    keys = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    return ", ".join(keys)
