"""Try `attrim.sites` on every architecture of the installed transformers that can be built tiny.

Writes docs/coverage.md. Run it as ``python tools/coverage.py`` (about a quarter of an hour on two cores), or with
names to try only those.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from attrim.attention.context import edit
from attrim.attention.discover import make_example, map_of
from attrim.core.site import Select, Site
from attrim.edits.gate import Gate
from attrim.errors import AttrimError

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
SECONDS = 60
LARGEST = 300_000_000

# How many of everything a tiny model has: first the depth, then the width.
DEPTH = {
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_hidden_groups": 1, "l_layers": 2, "r_layers": 1,
    "x_layers": 1,
    "num_blocks": 2, "num_attention_layers": 2, "num_transformer_layers": 2,
    "vocab_size": 96, "src_vocab_size": 96, "tgt_vocab_size": 96, "type_vocab_size": 2, "max_position_embeddings": 64,
    "n_positions": 64, "image_size": 32, "num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2,
    "num_experts_per_tok": 1, "moe_num_experts": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LAYERS = {name: size for name, size in DEPTH.items() if "layer" in name or "block" in name}
WIDTH = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 32, "embed_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_ff": 48, "n_inner": 48,
    "hidden_dim": 48, "d_inner": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 8, "d_kv": 8,
    "kv_channels": 8,
    "patch_size": 8, "num_mel_bins": 16, "projection_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 8,
 "visual_embedding_dim": 16, "visual_feat_dim": 16,
}  # fmt: skip


def small(config: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Arguments that make a configuration like ``config``, its parts included, with every known size small."""
    fields: dict[str, Any] = {}
    for name, size in sizes.items():
        try:
            value = getattr(config, name, None)
        except Exception:  # a size that differs among layers has no one value
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value > size:
            fields[name] = size
    if hasattr(config, "qk_rope_head_dim"):
        fields.pop("head_dim", None)  # follows from the parts, which keep their size
        fields["num_key_value_heads"] = fields.get("num_attention_heads", config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and "mrope_section" in rope and sizes.keys() >= WIDTH.keys():
        fields["rope_parameters"] = rope | {"mrope_section": [1, 1, 2]}  # half of a head's size in three parts
    layers = fields.get("num_hidden_layers", getattr(config, "num_hidden_layers", None))
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and isinstance(layers, int):
            # One layer of each kind first, so that a mixed model still shows its attention.
            fields[name] = (list(dict.fromkeys(kinds)) + kinds)[:layers]
    vocabulary = fields.get("vocab_size")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "image_token_id"):
        value = getattr(config, name, None)
        if vocabulary and isinstance(value, int) and value >= vocabulary:
            fields[name] = 3
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            fields[name] = {"model_type": part.model_type} | small(part, sizes)
    return fields


def make(config_class: Any, sizes: dict[str, int]) -> Any:
    """A small configuration of a class."""
    fields = small(config_class(), sizes)
    while True:
        try:
            return config_class(**fields)
        except Exception as error:  # a field that is computed from others cannot be given
            given = fields.keys() & {"layer_types", "layers_block_type", "mlp_layer_types"}
            if "no setter" not in str(error) or not given:
                raise
            for name in given:
                del fields[name]


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def size_of(config: Any, model_class: type[nn.Module]) -> int:
    """How many parameters a model would have, without building it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in model_class(config).parameters())


def reason(error: Exception) -> str:
    """The first words of an error."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:110]


def runnable(model: nn.Module) -> dict[str, Any]:
    """An input that the model takes: the made-up one, or its text part alone where images need matching tokens."""
    full = make_example(model)
    text = {name: value for name, value in full.items() if "pixel" not in name and "image" not in name}
    with torch.inference_mode():
        try:
            model(**full)
        except Exception:
            if text.keys() == full.keys():
                raise
            model(**text)
            return text
    return full


def build(config_class: Any, model_class: Any) -> tuple[nn.Module, dict[str, Any] | str]:
    """The smallest of the sizes that can be built and run."""
    first: Exception | None = None
    for sizes in (DEPTH | WIDTH, DEPTH, LAYERS | WIDTH, LAYERS):
        try:
            config = make(config_class, sizes)
            if size_of(config, model_class) > LARGEST:
                raise MemoryError("more than 300 million parameters even when small")
            torch.manual_seed(0)
            model = model_class(config).float().eval()
            for parameter in model.parameters():  # some start at zero, where nothing shows
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=0.1)
            return model, runnable(model)
        except TimeoutError:
            raise
        except Exception as error:  # whatever a configuration dislikes about its size is what we report
            first = first or error
    assert first is not None
    return nn.Identity(), reason(first)


def try_one(config_class: Any, model_class: Any) -> tuple[str, str, str]:
    """How the attention of one architecture is reached: (outcome, sites, remark)."""
    with time_limit(SECONDS):
        model, inputs = build(config_class, model_class)
        if isinstance(inputs, str):
            return "not built", "", inputs
        try:
            found = map_of(model, inputs).sites
        except AttrimError as error:
            seen_none = str(error).startswith("No attention was seen")
            return ("no attention", "", "") if seen_none else ("not reached", "", str(error))
        roles = collections.Counter(site.role for site in found)
        summary = ", ".join(f"{role} {count} x {heads_of(found, role)}" for role, count in roles.items())
        with torch.inference_mode():
            stock = model(**inputs)
            with edit(model, Gate(0.0), select=Select(heads=[0])):
                edited = model(**inputs)
        same = all(torch.equal(one, other) for one, other in zip(tensors(stock), tensors(edited), strict=True))
        if same:
            return "not reached", summary, "switching head 0 off everywhere changed nothing"
        shown = "shown its text only" if "pixel_values" in make_example(model).keys() - inputs.keys() else ""
        return "+".join(sorted({site.route for site in found})), summary, shown


def heads_of(found: list[Site], role: str) -> str:
    """The number of heads of a role's sites: one number, or from fewest to most."""
    counts = sorted({site.heads for site in found if site.role == role})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a model's result."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def main(names: list[str]) -> None:
    """Try the named architectures, or all of them and write the document."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    rows = []
    for kind, classes in MODEL_MAPPING_NAMES.items():
        class_name = classes if isinstance(classes, str) else classes[0]
        if names and kind not in names:
            continue
        try:
            outcome, summary, remark = try_one(CONFIG_MAPPING[kind], getattr(transformers, class_name))
        except Exception as error:  # a table of everything must have a row for everything
            outcome, summary, remark = "not built", "", reason(error)
        rows.append((kind, class_name, outcome, summary, remark))
        print(*rows[-1], sep=" | ", flush=True)
    if not names:
        write(sorted(rows))


def write(rows: list[tuple[str, ...]]) -> None:
    """Write the table."""
    counts = collections.Counter(row[2] for row in rows)
    reached = sum(count for outcome, count in counts.items() if not outcome.startswith("no"))
    built = len(rows) - counts["not built"]
    lines = [
        "# Which architectures attrim reaches",
        "",
        f"Made by `python tools/coverage.py` with transformers {transformers.__version__}: the base model of each of "
        f"its {len(rows)} architectures, built tiny with random weights and run on a made-up input. {built} could be "
        f"built and run that way; attrim reached the attention of {reached} of them, and {counts['no attention']} have "
        "none. Reached means: the sites were listed, and switching off one head of each changed the result. An "
        "architecture that could not be built tiny may well work: pass `example=` with one real batch.",
        "",
        "| outcome | architectures |",
        "|---|---|",
        *(f"| {outcome} | {count} |" for outcome, count in counts.most_common()),
        "",
        "| architecture | class | route | sites x heads | remark |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows),
    ]
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
