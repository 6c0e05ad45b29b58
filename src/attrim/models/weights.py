"""Which files hold a model's weights, and whether they may be read.

safetensors files come first, and an index may only name such files beside it. Older models have only
``pytorch_model.bin``, a pickle: it is read with torch's restricted unpickler, which makes tensors and calls nothing
else, and a file that asks for more is refused.
"""

from __future__ import annotations

import functools
import logging
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor

from ..core import record
from ..core.documents import Unreadable, parse_json, read_bytes, read_json
from ..errors import ArtefactError, shorten

log = logging.getLogger(__name__)

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"


def uses_safetensors(source: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a model's weights are safetensors files (True) or pickles (False), which are checked.

    Parameters
    ----------
    source : a local folder, or a hub name, whose files are fetched.
    options : ``revision``, ``cache_dir`` and ``local_files_only`` of a hub model.

    Raises
    ------
    ArtefactError
        When there are no weights, an index names other files than weights, or a pickle asks for more than tensors.
    """
    _check_named(source, options)
    if _files(source, SAFE, options):
        return True
    if files := _files(source, PICKLED, options):
        for file in files:
            check_pickle(file)
        _say_once(
            f"The weights of {source!r} are read from {PICKLED}, a pickle, with torch's restricted unpickler, which "
            "runs no code from it."
        )
        return False
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
        found = f" (but {', '.join(other)})" if other else ""
        raise ArtefactError(
            f"{source} holds neither {SAFE} nor {PICKLED}{found}; save the model with save_pretrained, or name a GGUF "
            "file with gguf."
        )
    return True  # under a name that the configuration gives, or nowhere: transformers says which


def fetch(source: str, name: str, options: Mapping[str, Any]) -> Path | None:
    """The path of a model's file, from a local folder or the hub; None when the model does not have it."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    where = {key: options[key] for key in ("revision", "cache_dir", "local_files_only")}
    try:
        return Path(hf_hub_download(source, name, **where))
    except EntryNotFoundError:
        return None


def check_pickle(path: Path) -> None:
    """Refuse a pickle that holds or asks for anything but a table of tensors; the tensors themselves are not read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats; what matters is raised
            content = torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        asks = f"asks to call {wanted[1]}" if wanted else "is not a plain pickle of tensors"
        raise ArtefactError(
            f"{path} {asks}, which could run any code, so it is refused; use a safetensors version of the model."
        ) from error
    except Exception as error:  # whatever a damaged file makes the unpickler raise
        raise ArtefactError(f"{path} is damaged ({type(error).__name__} while reading it); fetch it again.") from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ArtefactError(f"{path} is not a table of weights but a {type(content).__name__} of other things.")


def _files(source: str, name: str, options: Mapping[str, Any]) -> list[Path]:
    """The one file ``name``, or those that its index names; empty when the model has neither."""
    index = fetch(source, name + INDEX, options)
    shards = [] if index is None else _shards(index, Path(name).suffix)
    if (single := fetch(source, name, options)) is not None:
        return [single]
    files = {shard: fetch(source, shard, options) for shard in shards}
    if missing := [shard for shard, path in files.items() if path is None]:
        raise ArtefactError(f"{index} names {missing[0]!r}, which is missing; fetch the model again.")
    return [path for path in files.values() if path is not None]


def _check_named(source: str, options: Mapping[str, Any]) -> None:
    """Refuse a configuration that names a file of weights other than a safetensors file, or an index of such, of the
    model.
    """
    path = fetch(source, "config.json", options)
    config = None if path is None else read_json(path, "fetch the model again")
    name = config.get("transformers_weights") if isinstance(config, dict) else None
    if name is None:
        return
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.safetensors(\.index\.json)?", name):
        raise ArtefactError(f"{path} names the weights {shorten(name)}, which is not a safetensors file beside it.")
    if name.endswith(INDEX):
        _files(source, name.removesuffix(INDEX), options)


def _shards(index: Path, suffix: str) -> list[str]:
    """The files that an index names; they must be weights beside it, such as ``pytorch_model-00001-of-00002.bin``."""
    try:
        known = record.load(dict[str, Any], parse_json(read_bytes(index)), "index")
        shards = sorted({str(name) for name in record.load(dict[str, Any], known.get("weight_map"), "map").values()})
    except (OSError, Unreadable, ArtefactError) as error:
        cause = str(error).rstrip(".")
        raise ArtefactError(f"{index} is not an index of weights ({cause}); fetch it again.") from error
    for shard in shards:
        if not re.fullmatch(rf"[\w.-]+\{suffix}", shard):
            raise ArtefactError(f"{index} names {shard!r}, which is not a {suffix} file beside it, so it is refused.")
    return shards


@functools.cache
def _say_once(sentence: str) -> None:
    log.warning(sentence)
