"""Inputs without some of their tokens, regions or patches, to see what an answer loses with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from ..errors import DataError, ParameterError
from .parts import MapPart

REMOVABLE = ("tokens", "source", "regions", "patches")
"""Parts that can be taken out of an input; what the decoder was given is not the input."""


def removable(batch: Mapping[str, Tensor], part: str, real: Tensor, special: Collection[int] = ()) -> Tensor:
    """What of a part can be removed, bool ``[B, L]``: everything real but special tokens, which are not of the text.

    Parameters
    ----------
    real : bool ``[B, L]``, what is not padding.
    special : numbers of special tokens.
    """
    if part not in ("tokens", "source") or not special:
        return real
    return real & ~torch.isin(batch["input_ids"].cpu(), torch.tensor(sorted(special)))


def without(
    batch: Mapping[str, Tensor], name: str, part: MapPart, removed: Tensor, blank: int | None = None
) -> dict[str, Tensor]:
    """The batch without what is True in ``removed [B, L]``.

    Tokens become ``blank``, a token that says nothing, so that the others keep their places. Regions become zeros that
    nothing attends to. The pixels of patches become the mean colour of their image.
    """
    changed = dict(batch)
    if name in ("tokens", "source"):
        if blank is None:
            raise ParameterError("Removing tokens needs a token that says nothing; give blank=tokenizer.mask_token_id.")
        changed["input_ids"] = batch["input_ids"].masked_fill(removed.to(batch["input_ids"].device), blank)
    elif name == "regions":
        features = "visual_feats" if "visual_feats" in batch else "visual_embeds"
        gone = removed.to(batch[features].device)
        changed[features] = batch[features].masked_fill(gone[..., None], 0)
        known = batch.get("visual_attention_mask")
        whole = torch.ones_like(gone, dtype=torch.long) if known is None else known
        changed["visual_attention_mask"] = whole.masked_fill(gone, 0)
    elif name == "patches":
        pixels = batch["pixel_values"]
        rows, columns = part.grid
        high, wide = pixels.shape[-2] // rows, pixels.shape[-1] // columns
        gone = removed.to(pixels.device).unflatten(1, part.grid)
        gone = gone.repeat_interleave(high, 1).repeat_interleave(wide, 2)[:, None]
        # A margin that is no whole patch is not seen by the model.
        margins = 0, pixels.shape[-1] - gone.shape[-1], 0, pixels.shape[-2] - gone.shape[-2]
        gone = nn.functional.pad(gone, margins)
        changed["pixel_values"] = torch.where(gone, pixels.mean((-2, -1), keepdim=True), pixels)
    else:
        raise DataError(f"The part {name!r} cannot be removed from an input; choose one of {', '.join(REMOVABLE)}.")
    return changed
