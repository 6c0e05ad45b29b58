"""Edits that a model carries: their tensors are buffers, and they hold whenever the model runs.

Masks and the functions in the place of softmax change what a model was trained with, so they must not get lost between
training, saving and loading. They take no weights away; without gradients,
a CPU leaves removed cells out (:mod:`attrim.attention.dropping`).

They are kept as the user gave them, for the heads of the model before it was baked. Where some of these are gone or
constant, the others have new numbers, and :func:`renumbered` says the same of those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..attention.context import attached, prepare
from ..attention.discover import find_sites, is_mapped, knows_map, map_of, root_of
from ..attention.install import switch, switch_back
from ..attention.recorder import current_recorder
from ..attention.session import Attachment, Session, changed_heads
from ..core import record
from ..core.site import Select, Site
from ..core.tracing import is_symbolic
from ..edits.base import Edit
from ..edits.persite import at_site
from ..edits.saving import BITS, CARRIER, WORDS, as_buffer, as_saved, decode_edits, encode_edits
from ..errors import ParameterError, SiteError
from .classes import make_class
from .planning import Layer

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.bool, torch.float32, torch.float64)}
DTYPES |= {BITS: torch.bool} | {name: dtype for name, (dtype, _) in WORDS.items()}

# What is switched on already, so that a pass within a generation does not switch it on again.
_carrying: ContextVar[tuple[tuple[nn.Module, Session], ...]] = ContextVar("attrim_carrying", default=())


@dataclass(frozen=True)
class Burden:
    """What a model carries, without the tensors.

    Attributes
    ----------
    entries : the edits as :func:`attrim.edits.saving.encode_edits` writes them.
    tensors : the tensors that they name: the name of the buffer, the dtype of the tensor and its shape. Boolean ones
        are buffers of bits, because the cells of a mask in bytes would need more than long texts do, and floats are
        buffers of integers, because a model that is moved to another dtype would round them.
    """

    entries: list[dict[str, Any]]
    tensors: dict[str, tuple[str, str, tuple[int, ...]]]

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> tuple[Burden, dict[str, Tensor]]:
        """The burden of some edits, and its buffers by their names."""
        entries, tensors = encode_edits(edits)
        named, buffers = {}, {}
        for number, (key, tensor) in enumerate(tensors.items()):
            buffer, dtype = as_buffer(tensor)
            named[key] = (f"tensor_{number}", dtype, tuple(tensor.shape))
            buffers[named[key][0]] = buffer
        return cls(entries, named), buffers

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {"entries": self.entries, "tensors": {key: list(value) for key, value in self.tensors.items()}}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Burden:
        """The inverse of :meth:`to_json`; raises one of ``UNFIT`` on anything else."""
        burden: Burden = record.load(cls, fields, "edits of a baked model")
        if unknown := {dtype for _, dtype, _ in burden.tensors.values()} - DTYPES.keys():
            raise ValueError(f"{unknown.pop()} is not a dtype of edits")
        # With blank tensors: what cannot be an edit is found now, and not when the model first runs.
        blank = {key: torch.zeros(shape, dtype=DTYPES[dtype]) for key, (_, dtype, shape) in burden.tensors.items()}
        decode_edits(burden.entries, blank)
        return burden


class Carrier(nn.Module):
    """The tensors of carried edits as buffers of a model's backbone.

    Parameters
    ----------
    layers : how the heads of the model were baked, if any were.
    """

    def __init__(self, burden: Burden, layers: Sequence[Layer] = ()) -> None:
        super().__init__()
        self.burden, self.layers = burden, tuple(layers)
        self._made: tuple[object, list[Edit]] | None = None
        self._numbered: tuple[list[Edit], list[Site], list[Edit]] | None = None
        self._heads: dict[str, Site] = {}
        self._attached: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], Attachment]] = WeakKeyDictionary()
        # Stock from_pretrained, which knows nothing of this, then names something that it leaves out.
        self.register_buffer("marker", torch.ones(1))
        for name, dtype, shape in burden.tensors.values():
            blank = torch.zeros(shape, dtype=DTYPES[dtype])
            # Folders of before have floats as they are.
            self.register_buffer(name, as_buffer(blank)[0] if dtype in (BITS, *WORDS) else blank)

    def __getstate__(self) -> dict[str, Any]:
        """Without the edits, which hold the tensors of this carrier and not those of its copy."""
        return {**self.__dict__, "_made": None, "_numbered": None, "_attached": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_attached": WeakKeyDictionary()})

    @classmethod
    def put(cls, model: Any, burden: Burden, layers: Sequence[Layer] = ()) -> Carrier:
        """Give the backbone of a model a carrier with blank tensors, and return it."""
        carrier, backbone = cls(burden, layers), model.base_model
        setattr(backbone, CARRIER, carrier)
        if backbone is not model:
            backbone.attrim_layers = carrier.layers  # so that layers keep their numbers where it is called alone
            if not isinstance(backbone, Carrying):
                backbone.__class__ = _carrying_class(Carrying, type(backbone))  # type: ignore[arg-type]
        for part in _parts(backbone):
            part.attrim_backbone = (backbone,)  # in a tuple, since a module would become a child
            if not isinstance(part, CarryingPart):
                part.__class__ = _carrying_class(CarryingPart, type(part))  # type: ignore[arg-type]
        return carrier

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As any module, but floats that are buffers (as in folders of before) stay exact, as their words would."""
        words = dict(WORDS.values())
        floats = {name: buffer for name, buffer in self._buffers.items() if name != "marker" and buffer is not None}
        floats = {name: buffer for name, buffer in floats.items() if buffer.dtype in words}
        self._buffers.update({name: buffer.view(words[buffer.dtype]) for name, buffer in floats.items()})
        try:
            return super()._apply(fn, recurse)
        finally:
            for name, buffer in floats.items():
                self._buffers[name] = self._buffers[name].view(buffer.dtype)  # type: ignore[union-attr]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As any module, but floats may be floats (as in folders of before) or the words that hold their bits."""
        errors: list[str] = rest[-1]
        for name, dtype, _ in self.burden.tensors.values():
            own, given = self._buffers[name], state_dict.get(prefix + name)
            pair = next((pair for pair in WORDS.values() if DTYPES[dtype] in pair), None)
            if own is None or given is None:
                continue
            # Bits that were cast to another number type are still what they were, unless that has two values.
            cast = given.dtype == torch.bool != own.dtype
            if pair is not None:
                # Words that were cast to floats are whole numbers, large ones among them; floats as they are never are.
                whole = given.dtype == pair[0] and bool((given == given.round()).all())
                cast = given.dtype not in pair or (whole and bool((given.abs() >= 1 << 23).any()))
            if cast:
                errors.append(
                    f"{prefix}{name} was cast to {str(given.dtype).removeprefix('torch.')}, but it holds numbers of "
                    "edits, which must stay exact; cast the model in place of its state dict."
                )
            elif pair is not None and given.dtype != own.dtype:
                state_dict[prefix + name] = given.view(own.dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def edits(self) -> list[Edit]:
        """The edits as they were given, with the tensors where they are now; the same objects until these change."""
        if is_symbolic():
            return self._decoded()
        # Plans of what a kernel leaves out are made once for an edit, so new edits in every pass would cost far more.
        # Without more calls than needed, because this is asked in every pass; the devices are those of the addresses.
        state = [
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for tensor in self._buffers.values()
            if tensor is not None
        ]
        if self._made is None or self._made[0] != state:
            self._made = state, self._decoded()
        return self._made[1]

    # Edits may be asked for in a pass of inference first, and serve later passes that have gradients.

    @torch.inference_mode(False)
    def _decoded(self) -> list[Edit]:
        saved = {
            key: as_saved(getattr(self, name), dtype, shape)
            for key, (name, dtype, shape) in self.burden.tensors.items()
        }
        return decode_edits(self.burden.entries, saved)

    def attachment(self, model: nn.Module) -> Attachment:
        """What a pass of a model (or its backbone) with the edits needs; the same object until something changes."""
        derived = is_symbolic() and not torch.compiler.is_compiling() and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        if (torch.compiler.is_exporting() or derived) and not is_mapped(model):
            raise SiteError(
                f"The attention of this {type(model).__name__} is not known yet, and it cannot be looked for in "
                "tensors without numbers; run the model once, on any input, before torch.export or torch.func."
            )
        if is_symbolic():
            return prepare(map_of(model), self.edits_for(model), (), Select())
        edits = self.edits()
        # What map_of asks of every parameter: whether there are numbers, and whether they are of half precision.
        state = self.marker.dtype, self.marker.device, torch.is_autocast_enabled("cpu")
        known = self._attached.get(model)
        if known is not None:
            (numbered, then), attachment = known[0], known[1]
            root = model if attachment.map.root is model else root_of(model)
            if numbered is edits and then == state and knows_map(root, attachment.map):
                return attachment
        self._require_same_heads(find_sites(model))
        attachment = prepare(map_of(model), self.edits_for(model), (), Select())
        self._attached[model] = (edits, state), attachment
        return attachment

    def _require_same_heads(self, sites: Sequence[Site]) -> None:
        """Refuse a model whose user has cut heads since its first pass: nothing says which heads are left."""
        for site in sites:
            before = self._heads.setdefault(min(site.aliases, key=len), site)
            if before.heads != site.heads:
                raise changed_heads(before, site.heads)

    def edits_for(self, model: nn.Module) -> list[Edit]:
        """The edits for the heads that are left in a model (or its backbone); the same objects until they change."""
        given = self.edits()
        if not self.layers:
            return given
        sites = find_sites(model)
        if is_symbolic():
            return renumbered(given, sites, self.layers)
        if self._numbered is None or self._numbered[0] is not given or self._numbered[1] != sites:
            with torch.inference_mode(False):
                self._numbered = given, sites, renumbered(given, sites, self.layers)
        return self._numbered[2]


def renumbered(edits: Iterable[Edit], sites: Sequence[Site], layers: Iterable[Layer]) -> list[Edit]:
    """Edits of a model's heads before it was baked, as edits of the heads that are left.

    Parameters
    ----------
    sites : of the baked model.
    layers : how its heads were baked. Those that are kept have new numbers, in the same order.
    """
    known = {name: site for site in sites for name in site.aliases}
    before, kept = dict(zip(sites, sites, strict=True)), {site: tuple(range(site.heads)) for site in sites}
    gone = []
    for layer in layers:
        for site in layer.sites:
            now = next((known[name] for name in site.aliases if name in known), None)
            if now is None:
                gone.append(site)
            else:
                before[now], kept[now] = dataclasses.replace(now, heads=layer.heads), layer.kept
    return [_renumbered(edit, before, kept, gone) for edit in edits]


def _renumbered(
    edit: Edit, before: Mapping[Site, Site], kept: Mapping[Site, tuple[int, ...]], gone: Sequence[Site]
) -> Edit:
    """One edit for the heads that are left: the sites before by the sites now, the old numbers of the heads there."""
    chosen = edit.select.resolve([*before.values(), *gone])
    left = {
        now: [number for number, head in enumerate(kept[now]) if head in set(chosen.get(site, ()))]
        for now, site in before.items()
    }
    left = {now: numbers for now, numbers in left.items() if numbers}
    if not left:
        raise ParameterError(
            f"{type(edit).__name__} is only about heads that other edits remove or make constant, so it would change "
            "nothing; choose other heads, or leave it out."
        )
    everything = all(len(left.get(now, ())) == now.heads for now in before)
    select = Select() if everything else Select(heads=[(now.name, number) for now in left for number in left[now]])
    fields = {field.name: getattr(edit, field.name) for field in dataclasses.fields(edit) if field.init}
    tensors = {
        name: {now.name: _of_heads(at_site(value, before[now], name), before[now], kept[now]) for now in left}
        for name, value in fields.items()
        if isinstance(value, Tensor) or (isinstance(value, Mapping) and any(map(_is_tensor, value.values())))
    }
    return dataclasses.replace(edit, select=select, **tensors)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _of_heads(tensor: Tensor, site: Site, heads: tuple[int, ...]) -> Tensor:
    """The entries of some heads of a tensor ``[H|1, ...]`` for the heads of a site; itself where these are all."""
    if len(tensor) != site.heads or len(heads) == site.heads:
        return tensor
    return tensor[list(heads)]


class Carrying:
    """Mixed into the class of a backbone, which then carries the edits where it is called without its head, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the backbone with the edits."""
        with carrying(self):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]


class CarryingPart:
    """Mixed into the class of an encoder or decoder, which users and ``get_text_features`` call alone.

    Its forward runs with the edits of the model that it is a part of.
    """

    attrim_backbone: tuple[Any]


@functools.cache
def _carrying_class(mixin: type, stock: Any) -> Any:
    """The class of a backbone or a part of it with the edits, whether it is called or its forward is."""
    made = _carrying_class, (mixin, stock)
    return make_class(mixin, stock, made, forward=carrying_forward(stock))


def carrying_forward(stock: Any) -> Callable[..., Any]:
    """The forward of a class with the edits: some code calls it and not the model (PEFT does)."""

    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = self.attrim_backbone[0] if isinstance(self, CarryingPart) else self
        with carrying(model, whole=False):
            return stock.forward(self, *args, **kwargs)

    return forward


def _parts(backbone: Any) -> list[Any]:
    """The modules of a backbone that may be called alone: the encoder and decoder, or those of text and images.

    Most of them are models themselves. Those of some translators (FSMT) are plain modules, which the backbone gives
    away; so are the layers of an encoder such as BERT, which nobody calls alone.
    """
    from transformers import PreTrainedModel

    given = (
        (backbone.get_encoder(), backbone.get_decoder())
        if getattr(backbone.config, "is_encoder_decoder", False)
        else ()
    )
    return [
        part
        for part in backbone.modules()
        if part is not backbone and (isinstance(part, PreTrainedModel) or any(part is one for one in given))
    ]


class _CarriedEdits(AbstractContextManager[None]):
    """The carried edits of a model whose attention all comes to our function, switched on.

    As :func:`attached`, but no forward is wrapped, since the model's ``__call__`` says itself when a pass begins.
    """

    def __init__(self, carrier: Carrier, attachment: Attachment, whole: bool) -> None:
        self.carrier, self.session, self.whole = carrier, Session(attachment), whole

    def __enter__(self) -> None:
        switch(self.session.map.configs)
        self.session.enter()
        if self.whole:
            self.session.start_pass()
        self.token = _carrying.set((*_carrying.get(), (self.carrier, self.session)))

    def __exit__(self, *error: object) -> None:
        _carrying.reset(self.token)
        self.session.leave()
        switch_back(self.session.map.configs)


class _NextPass(AbstractContextManager[None]):
    """Another pass of a model whose carried edits are switched on, such as a step of a generation."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> None:
        self.session.start_pass()

    def __exit__(self, *error: object) -> None:
        self.session.end_pass()


@contextlib.contextmanager
def _attached(carrier: Carrier, attachment: Attachment) -> Iterator[None]:
    """The carried edits of any model, switched on."""
    # A step of a generation does not run the encoder again, so nothing may insist that every site fires.
    with attached(attachment) as session:
        token = _carrying.set((*_carrying.get(), (carrier, session)))
        try:
            yield
        finally:
            _carrying.reset(token)


def carrying(model: Any, *, whole: bool = True) -> AbstractContextManager[None]:
    """Switch the carried edits of a model on, unless they are, or the model is only looked at (a dry run).

    Parameters
    ----------
    whole : a pass of the whole model is what runs inside; otherwise a part of it, or many passes.
    """
    carrier: Carrier | None = model._modules.get(CARRIER)
    if carrier is None:
        carrier = getattr(model.base_model, CARRIER, None)
    if carrier is None or current_recorder() is not None:
        return _NOTHING
    for other, session in _carrying.get():
        if other is carrier:
            next_pass = whole and session.attachment.only_root and session.map.root is model
            return _NextPass(session) if next_pass else _NOTHING
    attachment = carrier.attachment(model)
    # Gradient checkpoints run parts of the model later on, so they are wrapped, too.
    if attachment.only_root and not (model.training and torch.is_grad_enabled()):
        return _CarriedEdits(carrier, attachment, whole)
    return _attached(carrier, attachment)


_NOTHING = contextlib.nullcontext()
