"""Plans as FlexAttention takes them: what they mean, without its compiler, which needs a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from attrim.attention import dropping
from attrim.kernels.flex import TILE, attend_flex, block_mask
from attrim.kernels.sparse import SparsePlan
from stock_attention import dense


def draw(
    batch: int, heads: int, queries: int, keys: int, longer: int, density: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cells to keep of longer texts, and the keys that each query may see."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(heads, queries + longer, keys + longer, generator=generator) < density
    start = torch.randint(0, keys + 1, (batch, queries), generator=generator)
    stop = torch.minimum(start + torch.randint(0, keys + 1, (batch, queries), generator=generator), torch.tensor(keys))
    return kept, start, stop


def tiles(cells: Tensor) -> Tensor:
    """The tiles with any of the cells ``[..., Q, K]``."""
    padded = functional.pad(cells.float(), (0, -cells.shape[-1] % TILE, 0, -cells.shape[-2] % TILE))
    return functional.max_pool2d(padded, TILE) > 0


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.integers(1, 40) | st.integers(120, 290),
    keys=st.integers(1, 40) | st.integers(120, 290),
    longer=st.integers(0, 30),
    density=st.sampled_from([0.0, 0.0003, 0.3, 1.0]),
    reorder=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_a_mask_has_the_cells_of_its_plan(
    batch: int, heads: int, queries: int, keys: int, longer: int, density: float, reorder: bool, seed: int
) -> None:
    kept, start, stop = draw(batch, heads, queries, keys, longer, density, seed)
    mask = block_mask(SparsePlan.of(kept, reorder=reorder), start, stop, keys)
    cells, columns = kept[:, :queries, :keys], torch.arange(keys)
    wanted = cells[None] & ((columns >= start[:, :, None]) & (columns < stop[:, :, None]))[:, None]
    axes = [torch.arange(size) for size in (batch, heads, queries, keys)]
    index = [axis.view([-1 if place == own else 1 for place in range(4)]) for own, axis in enumerate(axes)]
    assert torch.equal(mask.mask_mod(*index), wanted)
    computed = mask.to_dense().bool()
    assert bool((computed | ~tiles(wanted)).all()), "a tile with a cell is left out"
    rows, across = computed.shape[-2:]
    assert bool((~computed | tiles(kept)[None, :, :rows, :across]).all()), "a tile without cells is computed"


@pytest.mark.slow  # torch traces it even where it does not compile it
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("groups", "shared"), [(2, 1), (1, 2)])
def test_equals_dense_attention_with_a_mask(groups: int, shared: int) -> None:
    """Padding, queries that see nothing, groups; few shapes, since each is compiled anew."""
    kept, start, stop = draw(2, groups * shared, 150, 140, 9, 0.2, 0)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, groups * shared, 150, 16, generator=generator)
    key, value = (torch.randn(2, groups, 140, 16, generator=generator) for _ in range(2))
    with torch.no_grad():
        found = attend_flex(query, key, value, 0.25, SparsePlan.of(kept), start, stop)
    assert torch.allclose(found.double(), dense(query, key, value, kept[:, :150, :140], start, stop), atol=1e-5)


def test_causal_attention_skips_tiles_of_the_future() -> None:
    length = 3 * TILE
    plan = SparsePlan.of(torch.ones(1, length, length, dtype=torch.bool), reorder=False)
    stop = torch.arange(1, length + 1)[None]
    mask = block_mask(plan, torch.zeros_like(stop), stop, length)
    assert mask.to_dense()[0, 0].tolist() == torch.ones(3, 3).tril().tolist()


@pytest.mark.parametrize(("size", "length", "used"), [(64, 40, True), (80, 40, False), (64, 4, False)])
def test_is_what_a_gpu_gets(size: int, length: int, used: bool) -> None:
    """Tensors without numbers stand for those of a GPU."""

    class OnGpu:
        device, dtype, shape = torch.device("cuda"), torch.float16, (1, 2, length, size)

    tensor = OnGpu()
    assert dropping._leaves_out(tensor, tensor) == used  # type: ignore[arg-type]
