"""Average attention in the ``.npy`` files of Attention Pruning (https://arxiv.org/abs/2012.02030) and its follow-up.

The released code keeps one array for all layers, without counts, names or roles:

=================== ======================= =======================================================
layout              shape                   written by
=================== ======================= =======================================================
``transformer-xl``  ``[L, n, k, 1, H]``     the script for Transformer-XL; keys are memory and segment
``heads-first``     ``[L, 1, H, N, N]``     the scripts for fairseq and BERT; the masks of 2.5 too
``llama``           ``[L, H, N, N]``        the follow-up for Llama
=================== ======================= =======================================================

A site that is read from such a file is named ``ROLE/LAYER``, which edits take for the site of that role and layer.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..core.site import Site
from ..errors import ArtefactError, ParameterError, ShapeError
from ..runs.files import replace_file
from .integers import to_fixed
from .mean import Mean

NpyLayout = Literal["transformer-xl", "heads-first", "llama"]
ROLES = {"self-enc": "encoder", "self-dec": "decoder", "enc-dec": "cross"}
"""How the names of fairseq's files begin, and the roles that they are about."""


def is_npy(source: str | Path) -> bool:
    """Whether a text names a ``.npy`` file, with or without the role of its sites: ``FILE.npy:cross``."""
    return re.search(r"\.npy(:[^/\\:]+)?$", str(source)) is not None


def read_layers(source: str | Path, role: str | None = None, layout: NpyLayout | None = None) -> dict[str, Tensor]:
    """The array of each layer, float32 ``[H, N, M]``, by the name ``ROLE/LAYER``.

    Parameters
    ----------
    source : ``FILE.npy``, or ``FILE.npy:ROLE``.
    role : of the sites. Default: what the file's name begins with (``self-enc``, ``self-dec``, ``enc-dec``), else
        ``encoder`` for arrays with the heads first and ``decoder`` for the other two layouts.
    layout : default: what the shape says.

    Notes
    -----
    The rows of ``transformer-xl`` are the last ones of a square: row i is the query at position ``k - n + i``, so that
    queries and keys have the same positions as when the model's memory is full.
    """
    path, named = _split(source)
    array = _load(path)
    layout = _layout_of(array.shape, path) if layout is None else layout
    axes = {"transformer-xl": 5, "heads-first": 5, "llama": 4}
    if axes.get(layout) != array.ndim:
        raise ShapeError(f"{str(path)!r} has the shape {list(array.shape)}, which is not the layout {layout!r}.")
    role = role or named or _role_of(path, layout)
    layers = {}
    for number, values in enumerate(array):
        if layout == "transformer-xl":
            cells = np.moveaxis(values[:, :, 0], -1, 0)
            cells = np.concatenate(
                [
                    np.zeros_like(cells, shape=(len(cells), max(cells.shape[2] - cells.shape[1], 0), cells.shape[2])),
                    cells,
                ],
                1,
            )
        else:
            cells = values[0] if layout == "heads-first" else values
        tensor = torch.from_numpy(np.array(cells, dtype=np.float32))
        if not bool(torch.isfinite(tensor).all()) or bool((tensor < 0).any()):
            raise ArtefactError(
                f"Layer {number} of {str(path)!r} holds NaN, infinity or negative numbers; average again."
            )
        layers[f"{role}/{number}"] = tensor
    return layers


def read_averages(source: str | Path, role: str | None = None, layout: NpyLayout | None = None) -> Mean:
    """The averages of a ``.npy`` file as a ``Mean`` stat; parameters as in :func:`read_layers`.

    Notes
    -----
    The files have no counts. A cell that is zero in every layer and head was never counted (it lies in the future, or
    no text is long enough); every other one counts once.
    """
    layers = read_layers(source, role, layout)
    mean = Mean()
    seen = torch.stack([cells.ne(0).any(0) for cells in layers.values()]).any(0)
    if not bool(seen.any()):
        raise ArtefactError(f"The averages in {str(source)!r} are all zero, so nothing was measured; average again.")
    for number, (name, cells) in enumerate(layers.items()):
        site = Site(name, name.rpartition("/")[0], number, len(cells))
        record = mean.record(site, tuple(range(len(cells))))
        record.tensors["sums"] = to_fixed(cells)
        record.tensors["counts"] = seen[None].long()
        record.tensors["examples"] += 1
    return mean


def write_averages(
    mean: Mean, path: str | Path, layout: NpyLayout, *, role: str | None = None, half: bool = False
) -> Path:
    """Write the averages of one role as the released code reads them, and return the path.

    Parameters
    ----------
    role : which sites (default: the only role that was measured).
    half : as float16 in place of float32.
    """
    roles = list(dict.fromkeys(site.role for site in mean.sites))
    if role is None and len(roles) != 1:
        raise ParameterError(f"The averages are of the roles {', '.join(roles) or 'none'}; choose one with role=... .")
    sites = sorted((site for site in mean.sites if site.role == (role or roles[0])), key=lambda site: site.layer)
    if not sites:
        raise ParameterError(f"There are no averages of the role {role!r}, only of {', '.join(roles) or 'none'}.")
    first = 0
    if layout == "transformer-xl":  # leave out the rows of the memory, which asks nothing
        asking = torch.stack([mean.counts(site).amax(0).any(1) for site in _alike(mean, sites)]).any(0)
        first = int(asking.int().argmax())
    return write_layers([mean.matrix(site)[:, first:] for site in sites], path, layout, half=half)


def write_layers(layers: Sequence[Tensor], path: str | Path, layout: NpyLayout, *, half: bool = False) -> Path:
    """Write arrays ``[H, N, M]``, one for each layer, to a ``.npy`` file in a layout, and return the path.

    Layers of different sizes are filled up with zeros; bool tensors become 0 and 1.
    """
    if layout not in get_args(NpyLayout):
        raise ParameterError(f"layout must be one of {', '.join(get_args(NpyLayout))}, not {layout!r}.")
    if len({len(cells) for cells in layers}) != 1:
        raise ShapeError("The layers have different numbers of heads, which one array cannot hold; write them apart.")
    size = [max(cells.shape[axis] for cells in layers) for axis in (1, 2)]
    whole = np.zeros((len(layers), len(layers[0]), *size), dtype=np.float16 if half else np.float32)
    for number, cells in enumerate(layers):
        whole[number, :, : cells.shape[1], : cells.shape[2]] = cells.detach().cpu().numpy()
    if layout == "transformer-xl":
        whole = np.moveaxis(whole, 1, -1)[:, :, :, None]
    elif layout == "heads-first":
        whole = whole[:, None]
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(whole), allow_pickle=False)
    replace_file(Path(path), file.getvalue())
    return Path(path)


def _alike(mean: Mean, sites: Sequence[Site]) -> Sequence[Site]:
    """The sites with the most rows, whose counts can be stacked."""
    rows = {site: mean.sums(site).shape[1] for site in sites}
    return [site for site in sites if rows[site] == max(rows.values())]


def _split(source: str | Path) -> tuple[Path, str | None]:
    match = re.fullmatch(r"(.*\.npy):([^/\\:]+)", str(source))
    return (Path(match[1]), match[2]) if match else (Path(source), None)


def _load(path: Path) -> Any:
    try:
        array = np.load(path.expanduser(), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ArtefactError(f"There is no file {str(path)!r}; check the path.") from None
    except (OSError, ValueError, EOFError) as error:
        raise ArtefactError(f"{str(path)!r} is not an array of numbers ({error}); average again.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise ArtefactError(f"{str(path)!r} is not an array of numbers; give a .npy file of average attention.")
    if array.ndim not in (4, 5) or 0 in array.shape:
        raise ShapeError(
            f"{str(path)!r} has the shape {list(array.shape)}; average attention has [L, n, k, 1, H], "
            "[L, 1, H, N, N] or [L, H, N, N]."
        )
    return array


def _layout_of(shape: tuple[int, ...], path: Path) -> NpyLayout:
    if len(shape) == 4:
        return "llama"
    if (shape[1] == 1) == (shape[3] == 1):
        raise ShapeError(
            f"The shape {list(shape)} of {str(path)!r} may be [L, 1, H, N, N] or [L, n, k, 1, H], or neither; "
            "read it with attrim.stats.npy.read_averages(..., layout=...)."
        )
    return "heads-first" if shape[1] == 1 else "transformer-xl"


def _role_of(path: Path, layout: str) -> str:
    for begin, role in ROLES.items():
        if path.name.startswith(begin):
            return role
    return "encoder" if layout == "heads-first" else "decoder"
