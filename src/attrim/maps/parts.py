"""What the tokens of a sequence are: words, regions of an image, or the patches that it is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import SiteError


@dataclass(frozen=True)
class MapPart:
    """Neighbouring tokens of one sequence that are of one kind.

    Attributes
    ----------
    stream : name of the sequence.
    kind : what they are.
    first, last : the first token, and the one after the last.
    grid : of patches, how many there are down and across.
    """

    stream: str
    kind: Literal["text", "regions", "patches"]
    first: int
    last: int
    grid: tuple[int, int] = (0, 0)

    def cut(self, values: Tensor) -> Tensor:
        """The part ``[..., length]`` of values ``[..., L]`` of the whole sequence."""
        return values[..., self.first : self.last]


def parts_of(model: nn.Module, batch: Mapping[str, Tensor], lengths: Mapping[str, int]) -> dict[str, MapPart]:
    """The parts of a model's sequences by name: ``tokens``, ``regions``, ``patches``, ``source`` and ``target``.

    Parameters
    ----------
    lengths : number of tokens of each sequence that has relevance.
    """
    found: dict[str, MapPart] = {}
    for stream, length in lengths.items():
        regions = batch["visual_embeds"].shape[1] if "visual_embeds" in batch else 0
        if "pixel_values" in batch and (len(lengths) == 1 or stream == "vision"):
            found["patches"] = _patches(model, batch["pixel_values"], stream, length)
        elif "visual_feats" in batch and stream == "vision":
            found["regions"] = MapPart(stream, "regions", 0, length)
        elif regions:
            found["tokens"] = MapPart(stream, "text", 0, length - regions)
            found["regions"] = MapPart(stream, "regions", length - regions, length)
        else:
            pair = {"encoder", "decoder"} <= set(lengths)
            name = {"encoder": "source", "decoder": "target"}[stream] if pair else "tokens"
            found[name] = MapPart(stream, "text", 0, length)
    return found


def _patches(model: nn.Module, pixels: Tensor, stream: str, length: int) -> MapPart:
    """The patches of an image; tokens before them stand for the whole image."""
    config: Any = getattr(model, "config", None)
    config = getattr(config, "vision_config", config)
    size = getattr(config, "patch_size", None)
    if not isinstance(size, int):
        raise SiteError(
            f"{type(model).__name__} does not say into which patches it cuts an image (patch_size), so relevance "
            "cannot be laid over it."
        )
    rows, columns = pixels.shape[-2] // size, pixels.shape[-1] // size
    if rows * columns > length:
        raise SiteError(
            f"{type(model).__name__} has {length} tokens for {rows} x {columns} patches, so relevance cannot be laid "
            "over the image."
        )
    return MapPart(stream, "patches", length - rows * columns, length, (rows, columns))
