"""GGUF files: one file with the weights, the configuration and the tokenizer of a model, mostly quantised.

transformers reads them and makes plain weights of them, so that the model can be edited, trained, baked and saved.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import transformers

from ..errors import ArtefactError
from .sources import first_line

PACKAGE = "gguf"


def gguf_options(path: Path, **changes: Any) -> dict[str, Any]:
    """What ``from_pretrained`` of a model is called with to make plain weights of a GGUF file."""
    # Weights that stay quantised could neither be saved nor baked.
    quantization = transformers.GgufConfig(dequantize=True)
    return {"gguf_file": str(path), "config": gguf_config(path, **changes), "quantization_config": quantization}


def gguf_config(path: Path, **changes: Any) -> Any:
    """The configuration in a GGUF file, with changes."""
    with readable(path):
        return transformers.AutoConfig.from_pretrained(path.parent, gguf_file=str(path), **changes)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever reading a GGUF file raises into one sentence.

    Raises
    ------
    ArtefactError
        When the package ``gguf`` is missing, or the file is damaged or of an architecture that is not known.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ArtefactError(f"Reading {path.name} needs the package gguf; run: pip install 'attrim[gguf]'")
    try:
        yield
    except Exception as error:  # the reader trusts the file, so a damaged one makes it raise anything
        raise ArtefactError(
            f"{path} could not be read as GGUF ({first_line(error)}); fetch it again, or use another file."
        ) from error


def without_bars() -> AbstractContextManager[Any]:
    """A context that hides the progress bar of dequantising, for which transformers has no switch."""
    return redirect_stderr(io.StringIO())
