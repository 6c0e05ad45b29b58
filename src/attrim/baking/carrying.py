"""Edits that a model carries: their tensors are buffers, and they hold whenever the model runs.

Masks and the functions in the place of softmax change what a model was trained with, so they must not get lost between
training, saving and loading. They take no weights away; without gradients,
a CPU leaves removed cells out (:mod:`attrim.attention.dropping`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..attention.recorder import current_recorder
from ..core import record
from ..edits.base import Edit
from ..edits.saving import CARRIER, decode_edits, encode_edits
from .heads import mixed

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.bool, torch.float32, torch.float64)}

# What is switched on already, so that a pass within a generation does not switch it on again.
_carrying: ContextVar[tuple[nn.Module, ...]] = ContextVar("attrim_carrying", default=())


@dataclass(frozen=True)
class Burden:
    """What a model carries, without the tensors.

    Attributes
    ----------
    entries : the edits as :func:`attrim.edits.saving.encode_edits` writes them.
    tensors : the tensors that they name: the name of the buffer, its dtype and its shape.
    """

    entries: list[dict[str, Any]]
    tensors: dict[str, tuple[str, str, tuple[int, ...]]]

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> tuple[Burden, dict[str, Tensor]]:
        """The burden of some edits, and its tensors by the names of their buffers."""
        entries, tensors = encode_edits(edits)
        named = {
            key: (f"tensor_{number}", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for number, (key, tensor) in enumerate(tensors.items())
        }
        return cls(entries, named), {named[key][0]: tensor for key, tensor in tensors.items()}

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {"entries": self.entries, "tensors": {key: list(value) for key, value in self.tensors.items()}}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Burden:
        """The inverse of :meth:`to_json`; raises ArtefactError or ValueError on anything else."""
        burden: Burden = record.load(cls, fields, "edits of a baked model")
        if unknown := {dtype for _, dtype, _ in burden.tensors.values()} - DTYPES.keys():
            raise ValueError(f"{unknown.pop()} is not a dtype of edits")
        return burden


class Carrier(nn.Module):
    """The tensors of carried edits as buffers of a model's backbone."""

    def __init__(self, burden: Burden) -> None:
        super().__init__()
        self.burden = burden
        self._made: tuple[object, list[Edit]] | None = None
        # Stock from_pretrained, which knows nothing of this, then names something that it leaves out.
        self.register_buffer("marker", torch.ones(1))
        for name, dtype, shape in burden.tensors.values():
            self.register_buffer(name, torch.zeros(shape, dtype=DTYPES[dtype]))

    def __getstate__(self) -> dict[str, Any]:
        """Without the edits, which hold the tensors of this carrier and not those of its copy."""
        return {**self.__dict__, "_made": None}

    @classmethod
    def put(cls, model: Any, burden: Burden) -> Carrier:
        """Give the backbone of a model a carrier with blank tensors, and return it."""
        carrier, backbone = cls(burden), model.base_model
        setattr(backbone, CARRIER, carrier)
        if backbone is not model and not isinstance(backbone, Carrying):
            backbone.__class__ = mixed(Carrying, type(backbone))  # type: ignore[arg-type]
        return carrier

    def edits(self) -> list[Edit]:
        """The edits, with the tensors where they are now; the same objects for as long as these do not change."""
        tensors: dict[str, Tensor] = {key: getattr(self, name) for key, (name, _, _) in self.burden.tensors.items()}
        # Plans of what a kernel leaves out are made once for an edit, so new edits in every pass would cost far more.
        state = tuple((tensor.data_ptr(), tensor.device, tensor._version) for tensor in tensors.values())
        if self._made is None or self._made[0] != state:
            self._made = state, decode_edits(self.burden.entries, tensors)
        return self._made[1]


class Carrying:
    """Mixed into the class of a backbone, which then carries the edits where it is called without its head, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the backbone with the edits."""
        with carrying(self):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]


@contextlib.contextmanager
def carrying(model: Any) -> Iterator[None]:
    """Switch the carried edits of a model on, unless they are, or the model is only looked at (a dry run)."""
    active = _carrying.get()
    carrier: Carrier | None = getattr(model.base_model, CARRIER, None)
    if carrier is None or current_recorder() is not None or any(each is carrier for each in active):
        yield
        return
    # A step of a generation does not run the encoder again, so nothing may insist that every site fires.
    with attach(model, carrier.edits(), strict=False):
        token = _carrying.set((*active, carrier))
        try:
            yield
        finally:
            _carrying.reset(token)
