"""Where stats come from: the model, the selection and a fingerprint of the data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import record
from ..core.site import Select
from ..errors import ArtefactError

_MODULUS = 1 << 128


@dataclass(frozen=True)
class Fingerprint:
    """Which examples were seen, whatever their order, their batches and their padding.

    The digests of single examples are added up, so that the fingerprint of two parts together is the sum of theirs.
    """

    examples: int = 0
    digest: str = f"{0:032x}"

    def __add__(self, other: Fingerprint) -> Fingerprint:
        total = (int(self.digest, 16) + int(other.digest, 16)) % _MODULUS
        return Fingerprint(self.examples + other.examples, f"{total:032x}")

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Fingerprint:
        """The fingerprint of one batch of tensors; padding, as the attention mask tells it, does not count."""
        tensors = {
            name: value.cpu() for name, value in sorted(batch.items()) if isinstance(value, Tensor) and value.ndim
        }
        mask = tensors.pop("attention_mask", None)
        size = min((len(tensor) for tensor in tensors.values()), default=0)
        total = cls()
        for example in range(size):
            digest = hashlib.blake2b(digest_size=16)
            for name, tensor in tensors.items():
                row = tensor[example]
                if mask is not None and mask.shape == tensor.shape:
                    row = row[mask[example].bool()]
                digest.update(f"{name} {tuple(row.shape)} {row.dtype}".encode())
                digest.update(row.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            total += cls(1, digest.hexdigest())
        return total


@dataclass(frozen=True)
class Origin:
    """What stats were measured on.

    Attributes
    ----------
    model, revision : the name and the commit of the model, where they are known.
    selection : which heads were watched.
    edits : descriptions of the edits that were active.
    data : what was seen.
    attention : a hash of the weights of each site's attention module, by the site's name.
    tokenizer : a hash of the tokenizer, where the measurement knew it.
    version : the attrim that measured.
    """

    model: str = ""
    revision: str = ""
    selection: Select = field(default_factory=Select)
    edits: tuple[str, ...] = ()
    data: Fingerprint = field(default_factory=Fingerprint)
    version: str = ""
    attention: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str = ""

    def __add__(self, other: Origin) -> Origin:
        """The origin of two parts together; refuses parts of different models or selections, and a part of itself."""
        for name in ("model", "revision", "selection", "edits"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ArtefactError(
                    f"Stats with {name} {mine!r} do not fit stats with {name} {theirs!r}; merge parts of one kind."
                )
        self.require_same_source(other.attention, other.tokenizer, "merge parts of one model")
        if self.data == other.data and self.data.examples:
            raise ArtefactError(
                f"Both stats were measured on the same {self.data.examples} examples; merge each part once."
            )
        return dataclasses.replace(self, data=self.data + other.data)

    def require_same_source(self, attention: Mapping[str, str], tokenizer: str, remedy: str) -> None:
        """Refuse another model that only has the same shape, and another tokenizer, by what is known of both."""
        model = f"a model ({self.model or 'without a name'})"
        for site, mine in self.attention.items():
            if attention.get(site, mine) != mine:
                raise ArtefactError(
                    f"The stats were measured on {model} whose weights at {site!r} are others; {remedy}."
                )
        if self.tokenizer and tokenizer and self.tokenizer != tokenizer:
            raise ArtefactError(f"The stats were measured on {model} with another tokenizer; {remedy}.")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**dataclasses.asdict(self), "selection": self.selection.to_json(), "edits": list(self.edits)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Origin:
        """The inverse of :meth:`to_json`."""
        codecs: record.Codecs = {Select: record.Codec(Select.to_json, Select.from_json)}
        origin: Origin = record.load(cls, fields, "origin of stats", codecs)
        return origin
