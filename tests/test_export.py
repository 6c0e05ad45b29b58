"""Words for hardware test benches."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from attrim.cli import main
from attrim.core.site import Select
from attrim.edits.quantize import Quantize
from attrim.edits.threshold import Threshold
from attrim.errors import DataError, ParameterError, SelectionError
from attrim.export import PIPELINE, Format, export_head, export_tensor, to_lines
from zoo import ZOO, batch

BY_NAME = {animal.name: animal for animal in ZOO}


def to_numbers(form: Format, words: list[str]) -> torch.Tensor:
    """The numbers of words, as a test bench reads them; float64."""
    if form.integer is None:
        return torch.tensor([struct.unpack(">f", bytes.fromhex(word))[0] for word in words], dtype=torch.float64)
    bits = form.integer + form.fraction
    signed = [int(word, 16) - ((int(word, 16) >> (bits - 1)) << bits) for word in words]
    return torch.tensor(signed, dtype=torch.float64) / 2.0**form.fraction


def from_lines(text: str, form: Format) -> torch.Tensor:
    """The matrix of a file of words."""
    rows = [to_numbers(form, line.split(",")) for line in text.splitlines()]
    return torch.stack(rows)


def test_known_words() -> None:
    assert Format().words(torch.tensor([5.28])) == ["40a8f5c3"]
    assert Format.parse("q8.8").words(torch.tensor([-123.28], dtype=torch.float64)) == ["84b9"]
    assert Format.parse("q8.8").words(torch.tensor([1.0, -1.0, 500.0, -500.0])) == ["0100", "ff00", "7fff", "8000"]


@given(st.lists(st.floats(-1024, 1024, width=32), min_size=1, max_size=9))
def test_float_words_come_back_exactly(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers)
    assert torch.equal(to_numbers(Format(), Format().words(tensor)).float(), tensor)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9), st.integers(0, 16))
def test_fixed_point_words_come_back_within_a_step(numbers: list[float], fraction: int) -> None:
    form = Format(8, fraction)
    tensor = torch.tensor(numbers, dtype=torch.float64)
    again = to_numbers(form, form.words(tensor))
    assert (again.abs() <= tensor.abs()).all()
    assert ((tensor - again).abs() < 2.0**-fraction).all()
    assert torch.equal(to_numbers(form, form.words(again)), again)


@pytest.mark.parametrize("text", ["float64", "q8", "q0.8", "q20.20", "8.8"])
def test_an_unknown_format_is_named(text: str) -> None:
    with pytest.raises(ParameterError, match="not a format of words"):
        Format.parse(text)


def test_what_is_no_number_or_no_matrix() -> None:
    with pytest.raises(DataError, match="no word"):
        Format().words(torch.tensor([float("nan")]))
    with pytest.raises(DataError, match="no word"):
        Format().words(torch.tensor([1e300], dtype=torch.float64))  # infinity in float32
    with pytest.raises(DataError, match="no numbers to write"):
        to_lines(torch.zeros(3, 0), Format())


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


METHOD = "linear-slog-clamped-midval"


def read_words(folder, name: str, form: str = "float32") -> torch.Tensor:
    return from_lines((folder / f"{name}.hex").read_text(), Format.parse(form)).float()


@pytest.mark.parametrize("bits", [2, 4])
def test_a_head_with_the_codebook_and_the_codes_of_its_weights(tmp_path, bits: int) -> None:
    model, inputs = BY_NAME["llama"].build(), batch(BY_NAME["llama"])
    edits = [Threshold(0.05), Quantize(METHOD, bits), Threshold(0.1, select=Select(layers=0))]
    export_head(model, inputs, Select(layers=1, heads=2), tmp_path, edits=edits)
    codes = read_words(tmp_path, "codes", f"q{bits + 1}.0").long()
    edges, values = (read_words(tmp_path, f"codebook-{name}")[0] for name in ("edges", "values"))
    assert torch.equal(codes, load_file(tmp_path / "tensors.safetensors")["codes"])
    assert len(values) == len(edges) + 1 == 2**bits
    assert torch.equal(values[codes], read_words(tmp_path, "weights"))
    before = torch.softmax(read_words(tmp_path, "scores"), -1)
    before = torch.where(before > 0.05, before, 0.0)
    assert torch.equal(codes, (before[..., None] >= edges).sum(-1))
    about = json.loads((tmp_path / "export.json").read_text())
    assert about["codebook"] == {"name": METHOD, "bits": bits, "tie": "upper"}


def test_no_codes_where_the_codebook_is_not_of_this_head(tmp_path) -> None:
    model, inputs = BY_NAME["bert"].build(), batch(BY_NAME["bert"])
    for edit in (
        Quantize(METHOD, 3, select=Select(layers=0)),
        Quantize("ranking-token", 2),
        Quantize(METHOD, 3, as_coded=True),
    ):
        assert list(export_head(model, inputs, Select(layers=1, heads=0), tmp_path, edits=[edit])) == list(PIPELINE)


def test_the_command_with_a_tensor(tmp_path, capsys) -> None:
    tensor = torch.rand(2, 3, 4).bfloat16()
    save_file({"weights": tensor, "other": tensor + 1}, tmp_path / "file.safetensors")
    words = [
        "export",
        "--tensor",
        f"{tmp_path}/file.safetensors:weights",
        "--output",
        str(tmp_path / "words"),
        "--json",
    ]
    assert main([*words, "--edit", f"quantize:{METHOD},bits=3"]) == 0
    shapes = json.loads(capsys.readouterr().out)["shapes"]
    assert shapes == {"tensor": [2, 3, 4], "codebook-edges": [7], "codebook-values": [8], "codes": [2, 3, 4]}
    assert torch.equal(read_words(tmp_path / "words", "tensor"), tensor.float().reshape(6, 4))
    edges, codes = read_words(tmp_path / "words", "codebook-edges")[0], read_words(tmp_path / "words", "codes", "q4.0")
    assert torch.equal(codes, (tensor.float().reshape(6, 4)[..., None] >= edges).sum(-1).float())
    about = json.loads((tmp_path / "words" / "export.json").read_text())
    assert (about["file"], about["tensor"]) == (f"{tmp_path}/file.safetensors", "weights")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.safetensors:weights", "cannot be read"),
        ("missing.safetensors", "cannot be read"),
        (".", "cannot be read"),
        ("text.txt", "is not a safetensors file"),
        ("file.safetensors:weight", "did you mean 'weights'"),
        ("file.safetensors", "holds 4 tensors (codes, empty, nan, weights); write"),
        ("file.safetensors:codes", "is int64"),
        ("file.safetensors:nan", "NaN and infinity"),
        ("file.safetensors:empty", "no numbers to write"),
    ],
)
def test_a_tensor_that_cannot_be_exported_is_one_sentence(tmp_path, monkeypatch, capsys, source, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("no tensors")
    tensors = {
        "weights": torch.ones(2),
        "nan": torch.tensor([float("nan")]),
        "empty": torch.ones(0),
        "codes": torch.arange(2),
    }
    save_file(tensors, "file.safetensors")
    assert main(["export", "--tensor", source, "--output", "words"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "words").exists()


def test_what_does_not_go_together(tmp_path, capsys) -> None:
    save_file({"weights": torch.ones(2)}, tmp_path / "file.safetensors")
    tensor = ["--tensor", str(tmp_path / "file.safetensors"), "--output", str(tmp_path / "words")]
    for words, message in (
        (["tiny-bert", *tensor], "leave out MODEL"),
        (["--select-heads", "1", *tensor], "leave out MODEL"),
        (["tiny-bert", "--output", "words"], "Give MODEL and --text"),
        (["--text", "one", "--output", "words"], "Give MODEL and --text"),
        ([*tensor, "--edit", "threshold:0.1"], "whose codebook all numbers share"),
    ):
        assert main(["export", *words]) == 2
        assert message in capsys.readouterr().err
    twice = [Quantize(METHOD, 2), Quantize(METHOD, 3)]
    for edits in (twice, [Quantize(METHOD, 2, renormalize=True)], [Quantize(METHOD, 2, as_coded=True)]):
        with pytest.raises(ParameterError, match="whose codebook all numbers share"):
            export_tensor(torch.ones(2), tmp_path / "words", edits=edits)
    assert not (tmp_path / "words").exists()
