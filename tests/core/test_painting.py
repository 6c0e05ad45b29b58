"""Numbers of regions and patches laid over an image."""

from __future__ import annotations

import numpy as np
import pytest

from attrim.core.painting import ends_of, patch_mask, region_mask, scaled
from attrim.errors import ParameterError

BOXES = [[0, 0, 2, 2], [1, 1, 3, 3]]


def test_where_boxes_overlap_the_larger_score_counts() -> None:
    mask = region_mask([1.0, 2.0], BOXES, (3, 4))
    np.testing.assert_allclose(mask, [[0.5, 0.5, 0, 0], [0.5, 1, 1, 0], [0, 1, 1, 0]])
    np.testing.assert_allclose(region_mask([2.0, 1.0], BOXES, (3, 4))[1], [1, 1, 0.5, 0])


def test_scores_can_be_scaled_before_they_are_painted() -> None:
    """Then the smallest score is as dark as the ground without a region."""
    mask = region_mask([1.0, 2.0], BOXES, (3, 4), "scores")
    np.testing.assert_allclose(mask, [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("normalise", ["scores", "mask"])
def test_a_map_of_zeros_is_dark(normalise: str) -> None:
    assert not region_mask([0.0, 0.0], BOXES, (3, 4), normalise).any()  # type: ignore[arg-type]


def test_the_scale_may_be_that_of_several_maps() -> None:
    ends = ends_of([[1.0, 2.0], [0.5, 4.0]], floor=0.0)
    assert ends == (0.0, 4.0)
    assert region_mask([1.0, 2.0], BOXES, (3, 4), "mask", ends).max() == 0.5
    assert region_mask([1.0, 2.0], BOXES, (3, 4), "scores", ends).max() == 0.5


def test_boxes_beyond_the_image_are_cut_and_broken_ones_refused() -> None:
    mask = region_mask([1.0], [[-5, -5, 1.2, 9]], (2, 3))
    np.testing.assert_allclose(mask, [[1, 1, 0], [1, 1, 0]])
    with pytest.raises(ParameterError, match=r"boxes \[2, 4\], not \[1, 4\]"):
        region_mask([1.0, 2.0], BOXES[:1], (3, 4))


def test_scores_are_not_changed() -> None:
    scores = np.array([1.0, np.nan])
    assert region_mask(scores, BOXES, (3, 4))[2, 2] == 0
    np.testing.assert_equal(scores, [1.0, np.nan])


def test_patches_are_smooth_between_their_middles() -> None:
    mask = patch_mask([0.0, 1.0, 0.0, 1.0], (2, 2), (4, 4))
    np.testing.assert_allclose(mask, [[0, 0.25, 0.75, 1]] * 4)
    torch = pytest.importorskip("torch")
    scores = np.random.default_rng(0).random(6)
    wanted = torch.nn.functional.interpolate(
        torch.tensor(scores).reshape(1, 1, 2, 3), size=(7, 10), mode="bilinear", align_corners=False
    )[0, 0].numpy()
    np.testing.assert_allclose(patch_mask(scores, (2, 3), (7, 10)), scaled(wanted, ends_of([scores])), atol=1e-12)
    with pytest.raises(ParameterError, match="needs 4 scores"):
        patch_mask([1.0], (2, 2), (4, 4))
