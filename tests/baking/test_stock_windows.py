"""Windows of whole layers as stock layer types: what other engines load computes windows without first tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import attrim
from attrim.baking.stock_windows import stock_windows
from attrim.cli import main
from attrim.core.site import Select
from attrim.edits import Edit, Gate, Window
from attrim.errors import ParameterError
from baked_models import ANIMALS

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 4,
}  # fmt: skip
NAMES = ("Qwen2", "Qwen3", "Ministral", "Olmo3")
TOKENS = torch.randint(5, 60, (2, 20), generator=torch.Generator().manual_seed(0))


def build(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, layer_types=["full_attention"] * 3)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("layers", [(0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_stock_layers_are_windows_without_first_tokens(name: str, layers: tuple[int, ...], tmp_path: Path) -> None:
    model = build(name)
    found = stock_windows(model, [Window(3, first=2, select=Select(layers=layers))])
    assert (found.size, found.layers, found.first, found.partial) == (3, layers, 2, ())
    found.save_pretrained(tmp_path)
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        with attrim.edit(model, Window(3, select=Select(layers=layers))):
            expected = model(TOKENS).logits
        with attrim.edit(model, Window(3, first=2, select=Select(layers=layers))):
            with_first = model(TOKENS).logits
        torch.testing.assert_close(stock(TOKENS).logits, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(with_first, expected, atol=1e-3)
    assert "first 2 tokens" in str(found)


@pytest.mark.parametrize(
    ("name", "edits", "message"),
    [
        ("gpt2", [Window(3)], "has no layer types"),
        ("Qwen3", [Window(3, select=Select(heads=[0]))], "No layer has windows in all"),
        ("Qwen3", [Window(3, select=Select(layers=0)), Window(4, select=Select(layers=1))], "one size of window"),
        ("Qwen3", [Window(3), Gate(0, select=Select(heads=[0]))], "windows and nothing else"),
    ],
)
def test_what_stock_code_cannot_say_is_refused(name: str, edits: list[Edit], message: str) -> None:
    model = ANIMALS[name].build() if name in ANIMALS else build(name)
    with pytest.raises(ParameterError, match=message):
        stock_windows(model, edits)


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **options})).eval()


@pytest.mark.parametrize(
    "options",
    [
        {
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        {"head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ],
    ids=["tied", "wide heads, scaled positions"],
)
def test_a_llama_is_written_as_a_ministral(options: dict[str, Any], tmp_path: Path) -> None:
    model = llama(**options)
    found = stock_windows(model, [Window(3, first=1, select=Select(layers=[0, 2]))])
    found.save_pretrained(tmp_path)
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (stock.config.model_type, stock.config.sliding_window) == ("ministral", 3)
    assert type(stock).__name__ == "MinistralForCausalLM"
    # What mlx-lm, vLLM and transformers 4 read.
    written, positions = json.loads((tmp_path / "config.json").read_text()), model.config.rope_parameters
    assert (written["model_type"], written["architectures"]) == ("mistral", ["MistralForCausalLM"])
    assert written["rope_theta"] == positions["rope_theta"]
    scaled = {"rope_type": "linear", "factor": 4.0} if positions["rope_type"] == "linear" else None
    assert written["rope_scaling"] == scaled
    assert stock.config.rope_parameters == positions
    assert stock.config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    assert "a ministral model with the same weights" in str(found)
    with torch.no_grad(), attrim.edit(model, Window(3, select=Select(layers=[0, 2]))):
        torch.testing.assert_close(stock(TOKENS).logits, model(TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_a_baked_model_is_refused() -> None:
    with pytest.raises(ParameterError, match="this one is baked already"):
        stock_windows(attrim.bake(llama(), Window(3)), [Window(3)])


def test_biases_of_a_llama_are_refused() -> None:
    with pytest.raises(ParameterError, match="attention_bias and mlp_bias, which ministral"):
        stock_windows(llama(attention_bias=True, mlp_bias=True), [Window(3)])


def test_layers_with_other_heads_lose_their_windows_and_that_is_said() -> None:
    edits = [Window(3, select=Select(layers=0)), Window(3, select=Select(heads=[(1, 0)]))]
    found = stock_windows(build("Qwen3"), edits)
    assert (found.layers, found.partial) == ((0,), (1,))
    assert "the windows of 1 layer with other heads" in str(found)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("Qwen3").save_pretrained(tmp_path / "model")
    words = ["bake", str(tmp_path / "model"), "--edit", "window:3,first=1,layers=0", "--rounds", "0", "--length", "20"]
    folders = ["--output", str(tmp_path / "baked"), "--layer-types", str(tmp_path / "stock")]
    assert main([*words, *folders]) == 0
    assert "without the first 1 token" in " ".join(capsys.readouterr().out.split())
    config = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention", "full_attention", "full_attention"]
    assert not (tmp_path / "stock" / "baked.json").exists()
    assert attrim.load(tmp_path / "baked").base_model.attrim_carried.edits()[0].first == 1
    assert main([*words, "--dry-run", "--layer-types", str(tmp_path / "none")]) == 0
    assert not (tmp_path / "none").exists()
    assert main([*words, "--output", str(tmp_path / "one"), "--layer-types", str(tmp_path / "one")]) == 2
    assert "need two folders" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "one").exists()
    (tmp_path / "file").write_text("")
    assert main([*words, "--output", str(tmp_path / "one"), "--layer-types", str(tmp_path / "file")]) == 2
    assert "give another folder with --layer-types." in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "one").exists()
