"""A baked model as a class: stock code, cut heads, and a sidecar that says which when it is saved."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..attention import interface
from ..attention.session import active_sessions
from ..core import record
from ..edits.saving import BAKED, CARRIED
from ..errors import ArtefactError, SiteError
from ..runs.artefact import UNFIT
from ..runs.files import file_digest, fill_folder, storage
from .carrying import Burden, Carrier, carrying, carrying_forward
from .classes import make_class
from .heads import Baked
from .planning import Layer
from .surgery import operate, switch
from .window_cache import WindowCache
from .windows import find_windows

STORE = BAKED
SIDECAR = STORE.index
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
"""Where the weights of a model may be; those of an earlier one in the same folder are removed."""
COMPANIONS = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model"),
    *("chat_template.jinja", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
)
"""What else a model is saved with: its tokenizer, and how it generates."""


class BakedModel:
    """Mixed into a model's class: built from its configuration it cuts itself, saved it leaves a sidecar."""

    attrim_layers: ClassVar[tuple[Layer, ...]]
    attrim_stock: ClassVar[type]
    attrim_absent: ClassVar[tuple[str, ...]]
    attrim_burden: ClassVar[Burden | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.attrim_absent:
            if isinstance(getattr(self, name, None), nn.Module):
                setattr(self, name, None)
        operate(self, self.attrim_layers)
        if self.attrim_burden is not None:
            Carrier.put(self, self.attrim_burden, self.attrim_layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the edits that it carries."""
        cache = next((given for given in (*args, *kwargs.values()) if isinstance(given, WindowCache)), None)
        with carrying(self):
            if cache is None:  # not a nullcontext, of which torch.compile takes only one
                return super().__call__(*args, **kwargs)  # type: ignore[misc]
            with cache.serving(self):
                return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """Save as any model, all files or none, with a sidecar that ``attrim.load`` reads."""
        save: Any = super().save_pretrained  # type: ignore[misc]
        if not kwargs.get("is_main_process", True):
            save(save_directory, *args, **kwargs)
            return
        folder = Path(save_directory)
        if kwargs.get("push_to_hub"):
            kwargs.setdefault("repo_id", folder.name)

        def write(part: Path) -> None:
            save(part, *args, **kwargs)
            STORE.save(part, self._sidecar(part), tensors={})

        with storage(folder):
            fill_folder(folder, write, last=SIDECAR, stale=WEIGHTS)

    def _sidecar(self, folder: Path) -> dict[str, Any]:
        """All that is needed to build the class of this model again, and digests of the files in a folder."""
        stock = self.attrim_stock
        return {
            "module": stock.__module__,
            "class": stock.__name__,
            "layers": [layer.to_json() for layer in self.attrim_layers],
            CARRIED: None if self.attrim_burden is None else self.attrim_burden.to_json(),
            # Parts that an argument of the constructor left out (a pooler) are in no configuration.
            "absent": [name for name, value in vars(self).items() if value is None and not name.startswith("_")],
            "files": {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.is_file()},
        }

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Choose ``sdpa`` or ``eager`` for the heads that attend as before."""
        if any(getattr(module, "attrim_baked", None) is not None for module in self.modules()):  # type: ignore[attr-defined]
            for config in interface.switchable(self):  # type: ignore[arg-type]
                switch(config, attn_implementation)
        else:
            super().set_attn_implementation(attn_implementation, *args, **kwargs)  # type: ignore[misc]


def baked_class(stock: type, layers: Iterable[Layer], absent: Iterable[str] = (), burden: Burden | None = None) -> type:
    """The class of a model that is cut to the given heads, lacks some parts and carries edits, under the stock name."""
    layers, absent = tuple(layers), tuple(absent)
    fields: dict[str, Any] = {"attrim_layers": layers, "attrim_stock": stock, "attrim_absent": absent}
    fields["attrim_burden"] = burden
    if burden is not None:
        fields["forward"] = carrying_forward(stock)
    if hasattr(stock, "generate"):
        fields["_prepare_cache_for_generation"] = _prepare_cache
        if burden is not None:
            fields["generate"] = _generate
    made: type = make_class(BakedModel, stock, (baked_class, (stock, layers, absent, burden)), **fields)
    return made


def _generate(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Generate with the edits that the model carries: a cache is set up for the attention that they need."""
    with carrying(self, whole=False):
        return self.attrim_stock.generate(self, *args, **kwargs)


def _prepare_cache(self: Any, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, *sizes: Any) -> Any:
    """Generate with a cache that drops what no window sees, unless another one is asked for."""
    asked = model_kwargs.get("past_key_values") is not None or generation_config.cache_implementation is not None
    # Assisted generation takes tokens back, and what watches attention needs all keys.
    rewinds = "assisted" in str(getattr(mode, "value", mode)) or getattr(generation_config, "is_assistant", False)
    if "static" in str(generation_config.cache_implementation):
        _refuse_static(self)
    carries = self.attrim_burden is not None and len(active_sessions()) == 1
    if carries and not asked and generation_config.use_cache and not rewinds:
        windows = find_windows(self)
        if windows is not None and any(windows):
            model_kwargs["past_key_values"] = WindowCache(windows)
            return None
    return self.attrim_stock._prepare_cache_for_generation(self, generation_config, model_kwargs, mode, *sizes)


def _refuse_static(model: Any) -> None:
    """Refuse a static cache where constant heads need values of heads that have no keys."""
    for module in model.modules():
        baked = module._modules.get("attrim_baked")
        if isinstance(baked, Baked) and baked.calls and baked.value_heads != max(baked.keys, default=0) + 1:
            raise SiteError(
                f"{baked.layer.sites[0].name} has constant heads, whose values a static cache has no room for; leave "
                "cache_implementation out."
            )


def is_baked(folder: str | Path) -> bool:
    """Whether a folder holds a baked model."""
    return (Path(folder) / STORE.index).is_file()


def holds_model(folder: str | Path) -> bool:
    """Whether a folder holds a model, baked or not, or a part of one, such as its weights or its tokenizer."""
    return any(True for name in ("config.json", SIDECAR, *WEIGHTS, *COMPANIONS) for _ in Path(folder).glob(name))


def read_sidecar(folder: str | Path) -> tuple[type, tuple[Layer, ...], tuple[str, ...], Burden | None]:
    """The stock class of the baked model in a folder, its layers, the parts that it lacks, and the edits it carries.

    Refuses a folder whose files have changed since the model was saved.
    """
    index = STORE.read_index(folder)
    try:
        layers = tuple(map(Layer.from_json, record.load(list[dict[str, Any]], index["layers"], "layers")))
        module, name = (record.load(str, index[key], key) for key in ("module", "class"))
        absent = record.load(tuple[str, ...], index["absent"], "absent parts")
        files = record.load(dict[str, str], index["files"], "files")
        burden = None if index.get(CARRIED) is None else Burden.from_json(index[CARRIED])
    except UNFIT as error:
        raise STORE.damaged(folder, f"{type(error).__name__}: {error}") from error
    stock = _stock(folder, module, name)
    _check_files(Path(folder), files)
    return stock, layers, absent, burden


def _check_files(folder: Path, files: dict[str, str]) -> None:
    """Refuse files that are not those that the sidecar was saved with."""
    for name, digest in files.items():
        try:
            same = Path(name).name == name and file_digest(folder / name) == digest
        except OSError as error:
            raise _unlike(folder, f"{name} cannot be read ({error.strerror or error})") from error
        if not same:
            raise _unlike(folder, f"{name} has changed since it was saved")
    for name in {"config.json", "model.safetensors", "model.safetensors.index.json"} - set(files):
        if (folder / name).exists():  # transformers would read it in place of what was saved
            raise _unlike(folder, f"{name} is not part of what was saved")


def _unlike(folder: Path, cause: str) -> ArtefactError:
    return ArtefactError(f"The baked model in {str(folder)!r} could not be loaded: {cause}; {STORE.remedy}.")


def _stock(folder: str | Path, module: str, name: str) -> type:
    """A model class by name; only transformers' own are looked up, so that a sidecar cannot run other code."""
    import transformers

    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or kind.__module__ != module or not issubclass(kind, transformers.PreTrainedModel):
        loaded = getattr(sys.modules.get(module), name, None)  # a class of the user's, if it is imported already
        if not (isinstance(loaded, type) and issubclass(loaded, transformers.PreTrainedModel)):
            raise ArtefactError(
                f"The baked model in {str(folder)!r} is a {module}.{name}, which this transformers does not have; "
                "use the version that it was saved with, or import the class first."
            )
        kind = loaded
    return kind


def loadable(folder: str | Path, automatic: Any) -> Any:
    """What to call ``from_pretrained`` of: ``automatic``, or the baked class of that kind if the folder holds one.

    Parameters
    ----------
    automatic : an ``AutoModel...`` class of transformers.
    """
    if not is_baked(folder):
        return automatic
    from transformers import AutoConfig
    from transformers.models.auto.auto_factory import _get_model_class

    stock, layers, absent, burden = read_sidecar(folder)
    config = AutoConfig.from_pretrained(folder)
    if type(config) not in automatic._model_mapping:
        raise ValueError("transformers has no such head for its architecture, so choose another kind of model")
    wanted = _get_model_class(config, automatic._model_mapping)
    return baked_class(wanted, layers, absent if wanted is stock else (), burden)
