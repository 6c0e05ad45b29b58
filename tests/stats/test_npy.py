"""The arrays of the released code: read, written, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attrim.core.site import Site
from attrim.errors import ArtefactError, ParameterError, ShapeError
from attrim.stats.mean import Mean
from attrim.stats.npy import is_npy, read_averages, read_layers, write_averages, write_layers

LAYERS, HEADS, LENGTH = 2, 3, 5


def measured(role: str = "decoder", memory: int = 0) -> Mean:
    """Causal averages of segments of five tokens after some memory."""
    mean = Mean()
    generator = torch.Generator().manual_seed(0)
    size = memory + LENGTH
    for layer in range(LAYERS):
        weights = torch.rand(1, HEADS, size, size, generator=generator)
        allowed = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
        allowed[:, :, :memory] = False
        site = Site(f"layers.{layer}", role, layer, HEADS)
        mean.update(weights * allowed, allowed, site)
    return mean


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-7), (True, 1e-3)])
@pytest.mark.parametrize(
    ("layout", "shape", "role"),
    [
        ("transformer-xl", (LAYERS, LENGTH, LENGTH, 1, HEADS), "decoder"),
        ("heads-first", (LAYERS, 1, HEADS, LENGTH, LENGTH), "encoder"),
        ("llama", (LAYERS, HEADS, LENGTH, LENGTH), "decoder"),
    ],
)
def test_written_and_read_again(
    layout: Any, shape: tuple[int, ...], role: str, half: bool, tolerance: float, tmp_path: Path
) -> None:
    mean = measured()
    path = write_averages(mean, tmp_path / "averages.npy", layout, half=half)
    array = np.load(path, allow_pickle=False)
    assert array.shape == shape
    assert array.dtype == (np.float16 if half else np.float32)
    again = read_averages(path)
    assert [(site.name, site.role, site.layer, site.heads) for site in again.sites] == [
        (f"{role}/{layer}", role, layer, HEADS) for layer in range(LAYERS)
    ]
    for site, other in zip(mean.sites, again.sites, strict=True):
        torch.testing.assert_close(again.matrix(other), mean.matrix(site), rtol=0, atol=tolerance)
        assert torch.equal(again.counts(other) > 0, mean.counts(site) > 0)  # the future is not counted


def test_the_rows_of_transformer_xl_are_the_last_of_the_square(tmp_path: Path) -> None:
    """Row i of the file is the query after a full memory, whose position in the store is ``k - n + i``."""
    mean = measured(memory=2)
    path = write_averages(mean, tmp_path / "scores.npy", "transformer-xl")
    assert np.load(path).shape == (LAYERS, LENGTH, LENGTH + 2, 1, HEADS)
    again = read_averages(path)
    torch.testing.assert_close(again.matrix("decoder/1"), mean.matrix("layers.1"), rtol=0, atol=1e-7)
    assert torch.equal(again.counts("decoder/0")[0], mean.counts("layers.0")[0])


def test_roles(tmp_path: Path) -> None:
    """From the names of fairseq's files, from the text, from the argument."""
    array = np.random.default_rng(0).random((2, 1, 3, 4, 4), dtype=np.float32)
    for begin, role in (("self-enc", "encoder"), ("self-dec", "decoder"), ("enc-dec", "cross"), ("other", "encoder")):
        path = tmp_path / f"{begin}_reverse_data_attn_probs_half-False_entmax-False.npy"
        np.save(path, array)
        assert read_averages(path).sites[0].role == role
        assert read_averages(f"{path}:language>vision").sites[1].name == "language>vision/1"
        assert read_averages(path, role="cross").sites[1].role == "cross"
    assert is_npy("a/b.npy:cross")
    assert is_npy("b.npy")
    assert not is_npy("folder.npy/averages")


def test_one_role_of_several_is_written(tmp_path: Path) -> None:
    mean = measured()
    mean.update(torch.rand(1, HEADS, 4, 6), site=Site("cross.0", "cross", 0, HEADS))
    with pytest.raises(ParameterError, match="choose one"):
        write_averages(mean, tmp_path / "a.npy", "llama")
    assert np.load(write_averages(mean, tmp_path / "a.npy", "llama", role="cross")).shape == (1, HEADS, 4, 6)
    with pytest.raises(ParameterError, match="no averages of the role 'encoder'"):
        write_averages(mean, tmp_path / "a.npy", "llama", role="encoder")


def test_masks_are_written_as_ones_and_zeros(tmp_path: Path) -> None:
    kept = torch.rand(2, 3, 4, 4) > 0.5
    path = write_layers(list(kept), tmp_path / "fine.npy", "heads-first")
    layers = read_layers(path)
    assert torch.equal(torch.stack(list(layers.values())), kept.float())


def save(path: Path, array: Any) -> str:
    np.save(path, array, allow_pickle=True)
    return str(path)


def test_what_is_no_average_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no file"):
        read_averages(tmp_path / "missing.npy")
    with pytest.raises(ArtefactError, match="not an array"):
        read_averages(save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object)))
    (tmp_path / "text.npy").write_text("this is a text")
    with pytest.raises(ArtefactError, match="not an array"):
        read_averages(tmp_path / "text.npy")
    with pytest.raises(ShapeError, match=r"\[L, H, N, N\]"):
        read_averages(save(tmp_path / "flat.npy", np.ones((4, 4))))
    with pytest.raises(ShapeError, match="or neither"):
        read_averages(save(tmp_path / "odd.npy", np.ones((2, 3, 4, 5, 6))))
    with pytest.raises(ArtefactError, match="all zero"):
        read_averages(save(tmp_path / "zero.npy", np.zeros((1, 2, 3, 3))))
    with pytest.raises(ArtefactError, match="NaN"):
        read_averages(save(tmp_path / "nan.npy", np.full((1, 2, 3, 3), np.nan)))
    with pytest.raises(ShapeError, match="which is not the layout"):
        read_averages(save(tmp_path / "four.npy", np.ones((1, 2, 3, 3))), layout="transformer-xl")
