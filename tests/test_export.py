"""Words for hardware test benches."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from attrim.cli import main
from attrim.edits.threshold import Threshold
from attrim.errors import DataError, ParameterError, SelectionError
from attrim.export import PIPELINE, export_head
from attrim.select import Select
from attrim.words import Format, from_lines, to_lines
from zoo import ZOO, batch

BY_NAME = {animal.name: animal for animal in ZOO}


def test_known_words() -> None:
    assert Format().words(torch.tensor([5.28])) == ["40a8f5c3"]
    assert Format.parse("q8.8").words(torch.tensor([-123.28], dtype=torch.float64)) == ["84b9"]
    assert Format.parse("q8.8").words(torch.tensor([1.0, -1.0, 500.0, -500.0])) == ["0100", "ff00", "7fff", "8000"]


@given(st.lists(st.floats(-1024, 1024, width=32), min_size=1, max_size=9))
def test_float_words_come_back_exactly(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers)
    assert torch.equal(Format().numbers(Format().words(tensor)).float(), tensor)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9), st.integers(0, 16))
def test_fixed_point_words_come_back_within_a_step(numbers: list[float], fraction: int) -> None:
    form = Format(8, fraction)
    tensor = torch.tensor(numbers, dtype=torch.float64)
    again = form.numbers(form.words(tensor))
    assert (again.abs() <= tensor.abs()).all()
    assert ((tensor - again).abs() < 2.0**-fraction).all()
    assert torch.equal(form.numbers(form.words(again)), again)


@pytest.mark.parametrize("text", ["float64", "q8", "q0.8", "q20.20", "8.8"])
def test_an_unknown_format_is_named(text: str) -> None:
    with pytest.raises(ParameterError, match="no format of words"):
        Format.parse(text)


def test_what_is_no_number_or_no_matrix() -> None:
    with pytest.raises(DataError, match="no word"):
        Format().words(torch.tensor([float("nan")]))
    with pytest.raises(DataError, match="no matrix"):
        from_lines("00000000,00000000\n00000000\n", Format())


def test_one_head_of_a_real_computation(tmp_path) -> None:
    model, inputs = BY_NAME["llama"].build(), batch(BY_NAME["llama"], (6, 4))
    one = {name: value[1:] for name, value in inputs.items()}
    export_head(model, one, Select(layers=1, heads=2), tmp_path, edits=[Threshold(0.1)])
    about = json.loads((tmp_path / "export.json").read_text())
    assert (about["layer"], about["head"], about["format"]) == (1, 2, "float32")
    read = {name: from_lines((tmp_path / f"{name}.hex").read_text(), Format()).float() for name in PIPELINE}
    stored = load_file(tmp_path / "tensors.safetensors")
    for name in PIPELINE:
        assert torch.equal(read[name], stored[name])
        assert list(read[name].shape) == about["shapes"][name]
    plain = torch.softmax(read["scores"], -1)
    torch.testing.assert_close(read["weights"], torch.where(plain > 0.1, plain, 0.0))
    torch.testing.assert_close(read["output"], read["weights"] @ read["value"])
    scores = read["query"] @ read["key"].T / 2
    lower = torch.ones(4, 4).tril().bool()
    torch.testing.assert_close(read["scores"][lower], scores[lower])
    assert (read["scores"][~lower] < -1e38).all()


def test_more_than_one_head_is_refused(tmp_path) -> None:
    with pytest.raises(SelectionError, match="8 heads are chosen"):
        export_head(BY_NAME["bert"].build(), batch(BY_NAME["bert"]), Select(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_tensor_of_any_shape() -> None:
    tensor = torch.randn(2, 3, 4)
    assert torch.equal(from_lines(to_lines(tensor, Format()), Format()).float(), tensor.reshape(6, 4))


def test_the_command(tmp_path, capsys) -> None:
    words = ["export", "tiny-bert", "--text", "one two", "--output", str(tmp_path), "--format", "q2.14", "--json"]
    assert main([*words, "--select-layers", "0", "--select-heads", "1", "--edit", "threshold:0.01"]) == 0
    shapes = json.loads(capsys.readouterr().out)["shapes"]
    weights = from_lines((tmp_path / "weights.hex").read_text(), Format(2, 14))
    assert list(weights.shape) == shapes["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)).double(), atol=0.01, rtol=0)
    assert main(words) == 2
    assert "one is exported at a time" in capsys.readouterr().err
