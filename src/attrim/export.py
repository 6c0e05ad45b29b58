"""Tensors as hexadecimal words, the form in which hardware test benches read numbers: those of one head, or any."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .attention.context import attach
from .attention.discover import find_sites
from .codebooks.codebook import Codebook
from .core.call import Call
from .core.site import Select, Site
from .edits.base import Edit
from .edits.quantize import Quantize
from .errors import DataError, ParameterError, SelectionError, UnknownName
from .runs.files import replace_file, replace_tensors, storage
from .stats.base import Stat


@dataclass(frozen=True)
class Format:
    """How a number becomes a word: IEEE float32, or signed fixed point (two's complement, saturated).

    Parameters
    ----------
    integer, fraction : bits of a fixed-point number, the sign being one of the integer bits; None for float32.
    """

    integer: int | None = None
    fraction: int = 0

    @classmethod
    def parse(cls, text: str) -> Format:
        """``float32``, or ``q8.8`` for 8 integer bits (with the sign) and 8 fraction bits."""
        if text == "float32":
            return cls()
        match = re.fullmatch(r"[qQ](\d+)\.(\d+)", text)
        if match is None or not int(match[1]) >= 1 or not int(match[1]) + int(match[2]) <= 32:
            raise ParameterError(
                f"{text!r} is not a format of words; write float32, or q8.8 for fixed point of up to 32 bits."
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def digits(self) -> int:
        """Hexadecimal digits of a word."""
        return 8 if self.integer is None else -(-(self.integer + self.fraction) // 4)

    def words(self, numbers: Tensor) -> list[str]:
        """The words of all numbers, row by row."""
        flat = numbers.detach().flatten().to(torch.float32 if self.integer is None else torch.float64).cpu()
        if not bool(torch.isfinite(flat).all()):
            raise DataError(
                "NaN and infinity have no word in a test vector; check where the numbers come from (of a model: its "
                "dtype and inputs)."
            )
        if self.integer is None:
            codes = flat.numpy().view(numpy.uint32).astype(numpy.int64)
        else:
            bits = self.integer + self.fraction
            # Towards zero, as the fixed-point library of the paper's exporter rounds.
            whole = torch.trunc(flat * 2.0**self.fraction).clamp(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
            codes = whole.to(torch.int64).numpy() & ((1 << bits) - 1)
        return [f"{int(code):0{self.digits}x}" for code in codes]


def to_lines(tensor: Tensor, form: Format) -> str:
    """A matrix (or anything with a last axis) as comma-separated words, a line for each row."""
    if not tensor.numel():
        raise DataError(f"A tensor of shape {list(tensor.shape)} has no numbers to write; choose another one.")
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    words, width = form.words(rows), rows.shape[1]
    return "".join(",".join(words[start : start + width]) + "\n" for start in range(0, len(words), width))


PIPELINE = ("query", "key", "value", "scores", "weights", "output")


class _Probe(Stat):
    """Keeps one moment of one head for the first example, real tokens only."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.tensor: Tensor | None = None

    def watch(self, tensor: Tensor, call: Call) -> None:
        if self.tensor is not None:
            raise DataError("The model attended more than once at this site; export one forward pass at a time.")
        queries, keys = call.queries[0], call.keys[0]
        rows = tensor[0, 0][queries]
        self.tensor = rows[:, keys] if self.moment in ("scores", "weights") else rows


@dataclass(frozen=True, kw_only=True, eq=False)
class _Before(Edit):
    """Shows the weights to a probe before the next edit, and leaves them as they are."""

    probe: _Probe

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        self.probe.watch(weights, call)
        return weights


def export_head(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    select: Select,
    folder: str | Path,
    form: str = "float32",
    edits: Iterable[Edit] = (),
) -> dict[str, Tensor]:
    """Write query, key, value, scores, weights and output of one head for one example.

    Parameters
    ----------
    inputs : arguments of one forward pass; the first example is exported.
    select : must choose exactly one head.
    folder : gets one ``NAME.hex`` a tensor (a line a row, comma-separated words), ``tensors.safetensors`` with the same
        numbers and ``export.json`` with site, head, shapes and format.
    form : ``float32``, or fixed point such as ``q8.8``.
    edits : change the attention first. After a :class:`Quantize` whose codebook all weights share, the codebook and the
        codes of the weights that it got are exported as well.

    Returns
    -------
    the tensors by name: ``[n, D]``, and ``[n, m]`` for scores (minus infinity on forbidden cells is written as the
    most negative number), weights and codes.
    """
    sites, edits = find_sites(model, dict(inputs)), list(edits)
    site, head = _one_head(select, sites)
    probes, before = [_Probe(moment) for moment in PIPELINE], _Probe("weights")
    chosen = Select(names=site.name, heads=head)
    book = None
    # The last one decides which values the weights have.
    for place, edit in reversed(list(enumerate(edits))):
        if isinstance(edit, Quantize) and edit.codebook and head in edit.select.resolve(sites).get(site, ()):
            book = edit.codebook
            edits.insert(place, _Before(probe=before))
            break
    with torch.inference_mode(), attach(model, edits, probes, chosen):
        model(**inputs)
    tensors = {probe.moment: probe.tensor for probe in probes if probe.tensor is not None}
    tensors["scores"] = tensors["scores"].clamp(min=torch.finfo(torch.float32).min)
    about = {"site": site.name, "role": site.role, "layer": site.layer, "head": head}
    return write_words(tensors, folder, form, about, book, before.tensor)


def export_tensor(
    tensor: Tensor,
    folder: str | Path,
    form: str = "float32",
    edits: Iterable[Edit] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Write one tensor of any shape, and the codebook of a :class:`Quantize` with the codes of the tensor's numbers.

    Parameters
    ----------
    edits : at most one, which has a codebook that all numbers share; the tensor itself is written as it is.
    """
    edits = list(edits)
    books = [edit.codebook for edit in edits if isinstance(edit, Quantize) and not edit.renormalize]
    book = books[0] if books else None
    if len(edits) > 1 or (edits and book is None):
        raise ParameterError(
            "A tensor is exported with the codes of one quantize edit whose codebook all numbers share, such as "
            "quantize:linear-slog-clamped-midval,bits=3; leave out other edits."
        )
    return write_words({"tensor": tensor}, folder, form, about, book, tensor)


def read_tensor(source: str) -> tuple[Tensor, dict[str, str]]:
    """The tensor that ``FILE.safetensors:NAME`` says, and where it is from; a file with one tensor needs no name."""
    path, _, name = (source, "", "") if Path(source).exists() else source.rpartition(":")
    path = path or source
    try:
        with safe_open(path, "pt") as file:
            known = list(file.keys())
            if not name and len(known) != 1:
                some = ", ".join(known[:4]) + (", ..." if len(known) > 4 else "")
                raise ParameterError(f"{path} holds {len(known)} tensors ({some}); write {path}:NAME to choose one.")
            name = name or known[0]
            if name not in known:
                raise UnknownName(f"tensor in {path}", name, known)
            tensor: Tensor = file.get_tensor(name)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check the path.") from error
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file ({error}); write FILE.safetensors:NAME.") from error
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"The tensor {name} in {path} is {kind}, but words are of real numbers; choose a float tensor.")
    return tensor, {"file": path, "tensor": name}


def write_words(
    tensors: Mapping[str, Tensor],
    folder: str | Path,
    form: str = "float32",
    about: Mapping[str, Any] | None = None,
    book: Codebook | None = None,
    coded: Tensor | None = None,
) -> dict[str, Tensor]:
    """Write tensors of any shape as words and return them; see :func:`export_head` for the files.

    Parameters
    ----------
    about : what else ``export.json`` says.
    book : a codebook that all weights share; its edges and values are written as well.
    coded : weights whose codes in the book are written, too, as whole numbers.
    """
    tensors, about, folder = dict(tensors), dict(about or {}), Path(folder)
    words, codes = Format.parse(form), Format()
    if book is not None and coded is not None:
        # Words hold no more than float32, so the codes are those of the number that a word holds.
        coded = coded.float() if coded.dtype == torch.float64 else coded
        edges, values = book.rounded(coded.dtype)
        tensors |= {"codebook-edges": edges, "codebook-values": values, "codes": book.codes(coded)}
        # A bit more than the largest code needs, for the sign that fixed point has.
        codes = Format(edges.shape[-1].bit_length() + 1)
        about["codebook"] = {"name": book.name, "bits": book.bits, "tie": book.tie}
    texts = {name: to_lines(tensor, codes if name == "codes" else words) for name, tensor in tensors.items()}
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_file(folder / f"{name}.hex", text.encode())
        stored = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        replace_tensors(folder / "tensors.safetensors", stored)
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        replace_file(folder / "export.json", json.dumps({**about, "format": form, "shapes": shapes}, indent=2).encode())
    return tensors


def _one_head(select: Select, sites: list[Site]) -> tuple[Site, int]:
    chosen = [(site, head) for site, heads in select.resolve(sites).items() for head in heads]
    if len(chosen) != 1:
        raise SelectionError(
            f"{len(chosen)} heads are chosen, but one is exported at a time; choose a layer and a head, as in "
            "--select-layers 2 --select-heads 0 (and a role where a model has several)."
        )
    return chosen[0]
