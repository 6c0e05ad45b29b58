"""The surgery on one attention module: the weights of some heads leave, its code stays stock code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention import interface
from ..attention.architectures import Facts, facts
from ..core.site import Site
from ..errors import ArtefactError, SiteError
from .classes import mixed
from .heads import Baked, Beside, Running, WithBias, WithConstants, register
from .planning import Layer, SitePlan, crossed_streams, matrices_of
from .projections import Projections, row_of
from .tensors import (
    Padded,
    Zeros,
    as_linear,
    checked,
    count_rows,
    rows_of,
    scale_columns,
    take_columns,
    take_entries,
    take_rows,
)


class Cut:
    """The surgery on one attention module."""

    def __init__(self, model: Any, module: nn.Module, row: Projections, layer: Layer) -> None:
        self.module, self.row, self.layer = module, row, layer
        self.output = output_of(model, module, row)
        heads = layer.heads
        if row.fused:
            rows = count_rows(self._projection(row.fused))
            self.size, self.key_heads = rows // (3 * heads), heads
        elif row.query:
            self.size = count_rows(self._projection(row.query[0])) // heads
            self.key_heads = count_rows(self._projection(row.key[0])) // self.size
        else:
            self.size, self.key_heads = 1, heads

    def on_interface(self, known: Facts, running: Running, feeds_stream: bool) -> bool:
        """Cut a module that calls an attention function; whether it needs a special one."""
        kept, constant = self.layer.kept, self.layer.constant
        group = self.layer.heads // self.key_heads
        key_heads = sorted({head // group for head in kept})
        if group == 1:
            value_heads = [*kept, *constant]
            kept_values, constant_values = range(len(kept)), range(len(kept), len(value_heads))
            regular, keys = True, list(range(len(kept)))
        else:
            value_heads = sorted({head // group for head in (*kept, *constant)})
            regular = len(kept) == group * len(key_heads)
            shared = key_heads if regular else [head // group for head in kept]
            keys = [key_heads.index(head) for head in shared]
            kept_values = [value_heads.index(head) for head in shared]  # type: ignore[assignment]
            constant_values = [value_heads.index(head // group) for head in constant]  # type: ignore[assignment]
            if not regular:
                setattr(self.module, "num_key_value_groups", 1)  # keys and values come repeated  # noqa: B010
        self._cut_rows(list(kept), list(kept) if group == 1 else key_heads, value_heads)
        self._cut_vectors(kept)
        if kept or constant or isinstance(self.output, nn.Linear):
            take_columns(self.output, rows_of([*kept, *constant], self.size))
        else:  # Conv1D cannot do without inputs
            setattr(self.module, self.row.output, as_linear(self.output.weight.t()[:, :0], self.output.bias))
        special = bool(constant) or not kept or not regular or self.row.indexed or feeds_stream
        if special:
            self.module.attrim_baked = Baked(
                self.layer, keys, tuple(kept_values), tuple(constant_values), known, running, feeds_stream
            )
        return special

    def in_private(self, known: Facts, running: Running) -> None:
        """Cut a module that has its softmax in its own code."""
        kept, constant = list(self.layer.kept), self.layer.constant
        if constant and not self.row.states:
            raise SiteError(
                f"Constant heads of {self.layer.path} ({type(self.module).__name__}) cannot be baked: its softmax and "
                "its output projection are in one piece of code; bake Gate(0) there, or edit without baking."
            )
        columns = [*kept, *constant]
        if not columns:
            # The code cannot do without any head; one whose output counts for nothing stays.
            kept = columns = [0]
        beside = self._values(list(constant)) if constant else None
        self._cut_rows(kept, kept, kept)
        self._cut_vectors(kept)
        self._count(len(kept))
        if isinstance(self.output, nn.Module):
            take_columns(self.output, rows_of(columns, self.size))
            if not self.layer.kept and not constant:
                scale_columns(self.output, torch.zeros(self.size))
        elif not self.layer.kept:
            nn.init.zeros_(getattr(self.module, self.row.output))
        if beside is not None:
            self.module.attrim_baked = Beside(self.layer, beside, self.row, known, running)
            self.module.__class__ = mixed(WithConstants, type(self.module))  # type: ignore[arg-type]
        elif self.row.bias:
            self.module.attrim_bias = self.row.bias, self.layer.heads, tuple(kept)  # type: ignore[assignment]
            self.module.__class__ = mixed(WithBias, type(self.module))  # type: ignore[arg-type]

    def _projection(self, name: str) -> Any:
        weights = getattr(self.module, name)
        return weights if isinstance(weights, Tensor) else checked(weights, f"{self.layer.path}.{name}")

    def _named(self, names: Iterable[str]) -> list[str]:
        return [name.removesuffix("?") for name in names if hasattr(self.module, name.removesuffix("?"))]

    def _fused_rows(self, part: int, heads: list[int]) -> Tensor:
        """Rows of the fused projection: queries (part 0), keys (1) or values (2) of some heads."""
        if self.row.layout == "heads":
            return rows_of(heads, self.size, part * self.size, 3 * self.size)
        return rows_of(heads, self.size, part * self.layer.heads * self.size)

    def _cut_rows(self, query: list[int], key: list[int], value: list[int]) -> None:
        for names, heads in ((self.row.query, query), (self.row.key, key), (self.row.value, value)):
            for name in self._named(names):
                weights, rows = self._projection(name), rows_of(heads, self.size)
                if isinstance(weights, Tensor):
                    take_entries(self.module, name, rows, 0)
                elif len(rows) == 0 and names is not self.row.value:
                    setattr(self.module, name, Zeros(weights, self.size if names is self.row.key else 0))
                else:
                    take_rows(weights, rows)
        if self.row.fused:
            self._cut_fused(query, key, value)

    def _cut_fused(self, query: list[int], key: list[int], value: list[int]) -> None:
        fused = self._projection(self.row.fused)
        if self.row.layout == "heads":
            parts = [rows_of(query, 3 * self.size)]
        else:
            key = key or [0]  # what holds a cache counts its tokens by its keys
            parts = [self._fused_rows(part, heads) for part, heads in enumerate((query, key, value))]
        take_rows(fused, torch.cat(parts))
        sizes = [len(part) for part in parts]
        if self.row.split:
            setattr(self.module, self.row.split, sizes)
        elif len(set(sizes)) > 1:
            setattr(self.module, self.row.fused, Padded(fused, sizes))

    def _cut_vectors(self, heads: Iterable[int]) -> None:
        entries = torch.tensor(list(heads), dtype=torch.int64, device="cpu")
        for name, axis in self.row.vectors:
            if hasattr(self.module, name.removesuffix("?")):
                take_entries(self.module, name.removesuffix("?"), entries, axis)

    def _count(self, heads: int) -> None:
        for name in self._named(self.row.counts):
            setattr(self.module, name, heads)
        for name in self._named(self.row.sizes):
            setattr(self.module, name, heads * self.size)

    def _values(self, heads: list[int]) -> nn.Linear:
        """The projection to the values of some heads, as one of its own."""
        rows = rows_of(heads, self.size)
        if not self.row.fused:
            value = self._projection(self.row.value[0])
            rows = rows.to(value.weight.device)
            return as_linear(value.weight[rows], None if value.bias is None else value.bias[rows])
        fused = self._projection(self.row.fused)
        bias = getattr(self.module, self.row.value[0])
        return as_linear(fused.weight[self._fused_rows(2, heads).to(fused.weight.device)], bias[rows.to(bias.device)])


def output_of(model: Any, module: nn.Module, row: Projections) -> Any:
    """The projection whose columns are heads (a parameter in some families)."""
    if not row.output.startswith("../"):
        return getattr(module, row.output)
    path = next(name for name, other in model.named_modules() if other is module)
    wanted = f"{path.rpartition('.')[0]}.{row.output.removeprefix('../')}"
    try:
        return model.get_submodule(wanted)
    except AttributeError as error:
        raise SiteError(
            f"There is no output projection of {path} ({type(module).__name__}) at {wanted}, where it should be by "
            "its names; use attrim.edit instead, and please report the architecture."
        ) from error


class BeginPass:
    """Lets a module of several sites count its calls from the beginning of a pass, also after one that failed.

    It is a hook of the part of the backbone, such as its encoder, that runs the module once for each of these sites.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *_: Any) -> None:
        """The part begins to run."""
        self.module.attrim_baked.own.count = 0


def operate(model: Any, layers: Iterable[Layer]) -> None:
    """Cut a stock model to the given heads, in place; matrices are left blank and weights are not scaled."""
    layers = list(layers)
    known = facts(getattr(model.config, "model_type", None))
    running = Running()
    crossed = crossed_streams(layers)
    special = False
    for layer in layers:
        module = find(model, layer.path)
        row = row_of(module, layer.sites[0])
        if row.route == "interface":
            feeds_stream = any(site.streams[0] == site.streams[1] in crossed for site in layer.sites)
            special |= Cut(model, module, row, layer).on_interface(known, running, feeds_stream)
        else:
            Cut(model, module, row, layer).in_private(known, running)
        if len(layer.sites) > 1 and layer.constant:
            part = next(part for part in model.base_model.children() if any(own is module for own in part.modules()))
            part.register_forward_pre_hook(BeginPass(module))
    if special:
        register()
        for config in interface.switchable(model):
            switch(config, config._attn_implementation_internal)


def switch(config: Any, underneath: str | None) -> None:
    """Let a configuration choose the attention of baked models, with SDPA or eager attention underneath."""
    names: dict[str | None, str] = {None: "eager"} | {ours: base for base, ours in interface.BAKED.items()}
    name = names.get(underneath, underneath)
    if name not in interface.BAKED:
        raise SiteError(
            f"A baked model runs on sdpa or eager attention, not on {underneath!r}; call "
            "model.set_attn_implementation('sdpa') first."
        )
    config._attn_implementation_internal = interface.BAKED[name]


def find(model: Any, path: str) -> nn.Module:
    """The module at a path, which may have been written for the same model with or without a head."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    for name in (path, path.removeprefix(prefix), prefix + path):
        try:
            return model.get_submodule(name)
        except AttributeError:
            continue
    raise ArtefactError(
        f"{type(model).__name__} has no attention module {path!r}; the baked model is of another class."
    )


def fill(model: Any, layers: Iterable[Layer], plans: Mapping[Site, SitePlan]) -> None:
    """Put the matrices into a model that was cut."""
    for layer in layers:
        if layer.constant:
            for constants, site in zip(find(model, layer.path).attrim_baked.calls, layer.sites, strict=True):  # type: ignore[arg-type, union-attr]
                device = next(model.parameters()).device
                constants.matrix = matrices_of(plans[site], layer.constant).to(device, model.dtype)


def fold(model: Any, layers: Iterable[Layer], plans: Mapping[Site, SitePlan]) -> None:
    """Put the factors of heads into the output projections of a model that is not cut yet."""
    for layer in layers:
        module = find(model, layer.path)
        factors = {tuple(plans[site].factors.tolist()) for site in layer.sites}
        values = torch.tensor(next(iter(factors)), dtype=torch.float64)
        if len(factors) > 1:
            raise SiteError(f"The sites of {layer.path} are one module, so their heads need the same factors.")
        if bool(((values == 0) | (values == 1)).all()):
            continue
        output = output_of(model, module, row_of(module, layer.sites[0]))
        if isinstance(output, (nn.Linear, Conv1D)):
            columns = output.weight.shape[0 if isinstance(output, Conv1D) else 1]
            scale_columns(output, values.repeat_interleave(columns // layer.heads))
        else:
            output.data.mul_(values.to(output.device, output.dtype)[None, :, None])
