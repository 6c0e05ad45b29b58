"""Models and tokenizers by hub name, local folder or built-in name; everything that can go wrong in one sentence."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

from ..baking.model import SIDECAR, baked_class, loadable, read_sidecar
from ..core.paths import home_path, require_text
from ..core.processor import prepare_half_precision
from ..edits.saving import CARRIER
from ..errors import ArtefactError, DataError, ParameterError, UnknownName, shorten
from . import recurrent, shape_models, sources, tiny, transformer_xl
from .gguf import gguf_config, gguf_options, readable, without_bars
from .sources import first_line, one_sentence
from .weights import uses_safetensors


class AutoModelForImageRegions(_BaseAutoModelClass):
    """Answers questions about the regions of an image; no automatic class of ``transformers`` has VisualBERT's."""

    _model_mapping = _LazyAutoMapping(  # type: ignore[assignment]
        CONFIG_MAPPING_NAMES,
        OrderedDict(lxmert="LxmertForQuestionAnswering", visual_bert="VisualBertForQuestionAnswering"),
    )


KINDS = {
    "auto": "AutoModel",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "visual-question-answering": "AutoModelForImageRegions",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
}
"""Kinds of model to the class, of ``transformers`` or of this module, that loads them."""

TOKENIZERS = {
    "unc-nlp/lxmert-vqa-uncased": "unc-nlp/lxmert-base-uncased",
    "unc-nlp/lxmert-gqa-uncased": "unc-nlp/lxmert-base-uncased",
    "uclanlp/visualbert-vqa": "google-bert/bert-base-uncased",
    "uclanlp/visualbert-vqa-coco-pre": "google-bert/bert-base-uncased",
}
"""Hub models that come without a tokenizer, and the one that they were trained with."""

recurrent.register()
transformer_xl.register()

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    name: str | Path,
    kind: str = "auto",
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    new_head: bool = False,
    num_labels: int | None = None,
    gguf: str | None = None,
) -> Any:
    """Load a model in evaluation mode.

    Weights come from safetensors files, or else from ``pytorch_model.bin`` through torch's restricted unpickler, or
    from a GGUF file, whose weights are dequantised.

    Parameters
    ----------
    name : hub name, local folder, GGUF file, or one of ``sources.BUILT_IN``.
    kind : one of ``KINDS``, which head the model has.
    dtype : ``float32``, ``bfloat16`` or ``float16``.
    new_head : allow a head that the checkpoint does not have, with random weights (to train it).
    num_labels : number of classes of a new head (1 means regression).
    gguf : a GGUF file in the folder or hub repository; the same as the name ``name/file.gguf``.
    """
    name = _packed(name, gguf)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnknownName("model kind", kind, KINDS)
    model_class = automatic_class(kind)
    place, number_type = _device(device), _dtype(dtype)
    if dtype != "float32":
        prepare_half_precision()
    labels = {} if num_labels is None else {"num_labels": num_labels}
    with one_sentence(f"The model {shorten(name)} could not be loaded as {kind}"), quiet():
        if name in tiny.TINY:
            model = tiny.tiny_model(name, model_class, **labels)
        elif name in shape_models.SHAPE_MODELS:
            # Whoever trains a model from scratch has chosen the random numbers, as for a new head.
            model = shape_models.shapes_model(name, model_class, **({"seed": None} if new_head else {}))
        else:
            source, options = sources.find(name, revision, cache_dir, local_files_only, trust_remote_code)
            # A service of the hub converts .bin files on request; weights come from the revision that was asked for.
            os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
            if file := options.get("gguf_file"):
                options |= gguf_options(Path(file), **labels)
            else:
                model_class = loadable(source, model_class)
                if num_labels is not None and kind == "visual-question-answering":
                    config = transformers.AutoConfig.from_pretrained(source, **options)
                    labels |= {"num_qa_labels": num_labels} if hasattr(config, "num_qa_labels") else {}
                options |= {"use_safetensors": uses_safetensors(source, options), **labels}
            with without_bars() if file else nullcontext():
                model, report = model_class.from_pretrained(
                    source, output_loading_info=True, dtype=number_type, weights_only=True, **options
                )
            _check_report(name, kind, model, report, new_head)
        return model.to(place, number_type).eval()


def automatic_class(kind: str) -> Any:
    """The class that loads models of a kind."""
    return globals().get(KINDS[kind]) or getattr(transformers, KINDS[kind])


def load(folder: str | Path, *, device: str = "cpu", dtype: Any = "auto") -> Any:
    """Load a baked model that ``save_pretrained`` wrote, in evaluation mode.

    Parameters
    ----------
    dtype : number type of the weights; ``auto`` is the one that they were saved with.
    """
    folder = home_path(folder, "folder of a baked model")
    parts = read_sidecar(folder)
    uses_safetensors(str(folder), {})
    with one_sentence(f"The baked model in {str(folder)!r} could not be loaded"), quiet():
        model, report = baked_class(*parts).from_pretrained(  # type: ignore[attr-defined]
            folder, use_safetensors=True, local_files_only=True, output_loading_info=True, dtype=dtype
        )
    if report["missing_keys"]:
        raise ArtefactError(
            f"The baked model in {str(folder)!r} lacks {len(report['missing_keys'])} weights (such as "
            f"{sorted(report['missing_keys'])[0]}); bake and save it again."
        )
    return model.to(device).eval()


def saved_kind(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    gguf: str | None = None,
) -> str:
    """Which of ``KINDS`` a model was saved as; ``auto`` when it does not say, or is none of them."""
    name = _packed(name, gguf)
    if name in tiny.TINY:
        return "auto"
    if name in shape_models.SHAPE_MODELS:
        return "visual-question-answering"
    with one_sentence(f"The configuration of {shorten(name)} could not be read"), quiet():
        source, options = sources.find(name, revision, cache_dir, local_files_only, trust_remote_code)
        if file := options.get("gguf_file"):
            # GGUF files do not say it, but nearly all are of language models.
            config = gguf_config(Path(file))
            return "causal-lm" if type(config) in transformers.AutoModelForCausalLM._model_mapping else "auto"
        config = transformers.AutoConfig.from_pretrained(source, **options)
        saved = set(config.architectures or ())
    for kind in (kind for kind in KINDS if kind != "auto"):
        mapping = automatic_class(kind)._model_mapping
        if type(config) in mapping and getattr(mapping[type(config)], "__name__", None) in saved:
            return kind
    return "auto"


def load_tokenizer(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    gguf: str | None = None,
) -> Any:
    """Load the tokenizer of a model; one without a padding token pads with its end-of-text token."""
    name = _packed(name, gguf)
    if name in tiny.TINY:
        return tiny.tiny_tokenizer()
    if name in shape_models.SHAPE_MODELS:
        return shape_models.shapes_tokenizer()
    if name in TOKENIZERS:
        name, revision = TOKENIZERS[name], None
    with one_sentence(f"The tokenizer of {shorten(name)} could not be loaded"), quiet():
        source, options = sources.find(name, revision, cache_dir, local_files_only, trust_remote_code)
        file = options.get("gguf_file")
        with readable(Path(file)) if file else nullcontext():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        known = len(tokenizer) - len(tokenizer.all_special_tokens)
    # Without tokenizer files, transformers makes an empty tokenizer that knows nothing but special tokens.
    if known <= 2:
        raise ArtefactError(f"{name!r} holds no tokenizer; load it from the model that this one was made from.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def load_image_processor(
    name: str | Path,
    kind: str = "image-classification",
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
) -> Any:
    """Load what prepares images, and texts where the kind has them, for a model.

    A model without such a file, one that was never trained, gets images of its own size with values from -1 to 1.
    """
    name = _packed(name, None)
    automatic = transformers.AutoProcessor if kind.startswith("zero-shot") else transformers.AutoImageProcessor
    with one_sentence(f"The image processor of {shorten(name)} could not be loaded"), quiet():
        source, options = sources.find(name, revision, cache_dir, local_files_only, trust_remote_code)
        if automatic is transformers.AutoImageProcessor and Path(source).is_dir():
            known = ("preprocessor_config.json", "processor_config.json")
            if not any((Path(source) / file).is_file() for file in known):
                config = transformers.AutoConfig.from_pretrained(source, **options)
                size = getattr(getattr(config, "vision_config", config), "image_size", 224)
                return transformers.ViTImageProcessor(size={"height": size, "width": size})
        return automatic.from_pretrained(source, **options)


def _packed(name: str | Path, gguf: str | None) -> str:
    """The name of a model, or that of a GGUF file in it."""
    if not isinstance(name, (str, Path)):
        raise ParameterError(f"A model is loaded by its name or folder, not {shorten(name)}.")
    require_text(str(name), "name of the model")
    return str(name) if gguf is None else f"{name}/{gguf}"


def check_fit(model: nn.Module, tokenizer: Any) -> None:
    """Raise an error when the tokenizer makes numbers that the model has no embedding for."""
    words = getattr(tokenizer, "tokenizer", tokenizer)  # what prepares images may have a tokenizer, or no words at all
    if not hasattr(words, "get_vocab"):
        return
    if misfit := _misfit(model, max(words.get_vocab().values(), default=-1)):
        raise ArtefactError(f"The tokenizer makes {misfit}")


def check_tokens(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raise an error when a batch holds token numbers that the model has no embedding for."""
    tokens = [inputs[name] for name in ("input_ids", "decoder_input_ids") if isinstance(inputs.get(name), Tensor)]
    largest = max((int(numbers.max()) for numbers in tokens if numbers.numel()), default=-1)
    if misfit := _misfit(model, largest):
        raise DataError(f"A batch holds {misfit}")


def _misfit(model: nn.Module, largest: int) -> str:
    """What is wrong with token numbers up to ``largest``; empty when the model has an embedding for each of them."""
    words = getattr(model, "text_model", model)  # of a model with two towers (CLIP)
    if largest < 0 or not hasattr(words, "get_input_embeddings"):
        return ""
    table = getattr(words.get_input_embeddings(), "weight", None)  # type: ignore[operator]
    if table is None or largest < len(table):
        return ""
    return (
        f"token numbers up to {largest} but the model has {len(table)} embeddings, which is its vocabulary; "
        "check the tokenizer, and load both from the same name."
    )


def longest_input(model: nn.Module, tokenizer: Any = None) -> int | None:
    """Return the number of tokens that the model and the tokenizer can take; None when there is no limit."""
    words = getattr(tokenizer, "tokenizer", tokenizer)
    limits = [limit] if (limit := getattr(words, "model_max_length", 10**9)) < 10**9 else []
    config = getattr(model, "config", None)
    for field in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(limit := getattr(config, field, None), int) and limit > 0:
            limits.append(limit)
    for name, module in model.named_modules():
        # RoBERTa and its family keep their first position rows for padding.
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(limits, default=None)


def _check_report(name: str, kind: str, model: Any, report: dict[str, Any], new_head: bool) -> None:
    """Refuse weights that the checkpoint does not have, which ``transformers`` would fill with random numbers.

    Refuse as well a baked model without its sidecar, which would run without the edits that it was made with.
    """
    if any(CARRIER in key.split(".") for key in report["unexpected_keys"]):
        raise ArtefactError(
            f"{name!r} is a baked model that carries edits, but its {SIDECAR} is missing, so they would be lost; copy "
            "the whole folder, or bake and save it again."
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key or kind == "sequence-classification")
    prefix = f"{model.base_model_prefix}."
    body = [key for key in missing if kind == "auto" or key.startswith(prefix)]
    body = [key for key in body if "pooler" not in key]
    if body:
        raise ArtefactError(
            f"{name!r} holds no weights for {len(body)} parts of a {type(model).__name__} (such as {body[0]}); "
            "the checkpoint belongs to another architecture."
        )
    if missing and not new_head:
        raise ArtefactError(
            f"{name!r} has no trained {kind} head ({missing[0]} is missing); choose a model that was trained for it, "
            "or train a new head ('attrim train', or load with new_head=True in Python)."
        )


def _device(name: str) -> torch.device:
    if not isinstance(name, (str, torch.device)):
        raise ParameterError(f"The device must be a name such as cpu or cuda, not {shorten(name)}.")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, AttributeError) as error:
        cause = first_line(error)
        if cause.startswith("Could not run") or isinstance(error, (ImportError, AttributeError)):
            cause = "this build of torch has no such device"  # torch lists its operators or a module that is not there
        elif "Expected one of" in cause:
            cause = "torch knows no such device"
        raise ArtefactError(
            f"The device {shorten(name)} cannot be used here ({shorten(cause, str, most=120)}); use 'cpu'."
        ) from error
    return device


def _dtype(name: str) -> torch.dtype:
    if not isinstance(name, str) or name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES)
    return DTYPES[name]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and load reports: what matters in a report becomes an error."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
