"""``attrim bake``: from the command line to a folder that other commands read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import attrim
from attrim.cli import main
from attrim.edits import Mask, save_edits
from attrim.kernels import team, ways
from attrim.kernels.rates import Rates
from attrim.models.loading import load_model, load_tokenizer
from attrim.models.tiny import TINY
from damage import files_up_to
from zoo import ZOO, Animal, batch

TEXT = "A few words to measure.\nAnother line, which is longer than the first one.\n"


def sparse_here() -> bool:
    return team.available() and team.PATHS[team.path()] != "torch"


@pytest.fixture
def averages(tmp_path: Path) -> Path:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = [
        "measure",
        "tiny-bert",
        "--task",
        "text",
        "--data",
        str(text),
        "--stats",
        "mean",
        "--output",
        str(tmp_path / "mean"),
    ]
    assert main([*words, "--quiet"]) == 0
    return tmp_path / "mean"


def test_bake_and_use(averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "smaller"
    edits = ["--edit", f"constant:{averages},heads=0-1 then gate:0,heads=0/3+1/2"]
    words = ["bake", "tiny-bert", *edits, "--output", str(folder), "--even-if-slower"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, baked = load_model("tiny-bert"), attrim.load(folder)
    assert found["before"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["after"]["parameters"] == sum(p.numel() for p in baked.parameters()) < found["before"]["parameters"]
    assert found["after"]["flops"] < found["before"]["flops"]
    assert found["speed"]["ratio"] > 0
    assert main(["sites", str(folder), "--json"]) == 0
    assert [site["heads"] for site in json.loads(capsys.readouterr().out)["sites"]] == [1, 1]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "parameters" in shown
    assert "milliseconds" in shown
    assert str(folder) in shown.replace("\n", "")


@pytest.mark.parametrize("name", TINY)
def test_bake_every_built_in_model(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user would: measure, bake, look at the result."""
    folder, output = tmp_path / "mean", tmp_path / "smaller"
    measured = ["measure", name, "--text", "A few words.", "More of them.", "--stats", "mean", "--output", str(folder)]
    assert main([*measured, "--quiet"]) == 0
    edit = f"constant:{folder},heads=0-1 then gate:0,heads=3"
    words = ["bake", name, "--edit", edit, "--output", str(output), "--rounds", "1", "--even-if-slower", "--json"]
    capsys.readouterr()
    assert main(words) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["after"]["flops"] < found["before"]["flops"]
    assert main(["sites", str(output), "--json"]) == 0
    assert {site["heads"] for site in json.loads(capsys.readouterr().out)["sites"]} == {1}


def bakeable(animals: set[str]) -> list[Animal]:
    return [animal for animal in ZOO if animal.name in animals]


CONSTANTS = {
    *("bert", "roberta", "electra", "distilbert", "albert", "modernbert", "gpt2", "bart", "marian", "vit", "clip"),
    *("llama", "qwen3", "mistral", "gemma2", "gpt_oss", "t5", "deberta", "deberta_v2", "visual_bert", "lxmert"),
}
GATES_ONLY = {"mpt", "bloom", "xlnet"}


def test_the_lists_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bake.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    named = {animal.name: [gate.strip()[:3], constant.strip()[:3]] for animal in ZOO for models, gate, constant in rows
             if animal.name in models.replace(",", " ").split()}  # fmt: skip
    assert {name for name, said in named.items() if said == ["yes", "yes"]} == CONSTANTS
    assert {name for name, (gate, constant) in named.items() if (gate, constant[:2]) == ("yes", "no")} == GATES_ONLY


@pytest.mark.parametrize("animal", bakeable(CONSTANTS | GATES_ONLY), ids=str)
def test_bake_every_architecture_of_the_page(
    animal: Animal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "source", tmp_path / "smaller"
    model = animal.build()
    model.save_pretrained(source)
    edit = "gate:0,heads=3"
    if animal.name in CONSTANTS:
        attrim.measure(model, [batch(animal)], attrim.Mean()).save(tmp_path / "mean")
        edit = f"constant:{tmp_path / 'mean'},heads=0 then {edit}"
    words = ["bake", str(source), "--edit", edit, "--output", str(output), "--rounds", "1", "--even-if-slower"]
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["after"]["flops"] < found["before"]["flops"]
    assert found["after"]["parameters"] < found["before"]["parameters"]
    assert type(attrim.load(output)).__name__ == type(model).__name__


def test_evaluate_a_model_without_any_attention_left(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "smaller"
    assert main(["bake", "tiny-bert", "--edit", f"constant:{averages}", "--output", str(folder), "--rounds", "0"]) == 0
    capsys.readouterr()
    pages = {
        "data": [
            {
                "title": "t",
                "paragraphs": [{"context": f"A {w} is here.", "qas": [{"question": f"A {w}?"}]} for w in "abc"],
            }
        ]
    }
    data = tmp_path / "squad.json"
    data.write_text(json.dumps(pages))
    words = ["--task", "retrieval", "--data", str(data), "--option", "paragraphs=3", "--limit", "3", "--json"]
    assert main(["evaluate", "tiny-bert", *words, "--edit", f"constant:{averages}"]) == 0
    edited = json.loads(capsys.readouterr().out)["results"][f"constant:{averages}"]["metrics"]
    assert main(["evaluate", str(folder), *words]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["unedited"]["metrics"] == edited


def test_a_model_that_became_slower_is_not_written(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_faster(model: torch.nn.Module, baked: torch.nn.Module, *sizes: int) -> attrim.baking.Speed:
        return attrim.baking.Speed(0.1, 0.2, 0.5, slower=True)

    monkeypatch.setattr("attrim.baking.speed", never_faster)
    folder = tmp_path / "smaller"
    words = ["bake", "tiny-bert", "--edit", f"constant:{averages},heads=0", "--output", str(folder)]
    assert main(words) == 2
    assert "0.50 x as fast), so nothing is written" in capsys.readouterr().err
    assert not folder.exists()
    assert main([*words, "--even-if-slower"]) == 0
    assert folder.exists()


def test_averages_of_another_model_are_refused(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the same shape and the same names, so nothing but its weights can tell."""
    model = load_model("tiny-bert")
    torch.nn.init.normal_(model.encoder.layer[1].attention.self.key.weight)
    model.save_pretrained(tmp_path / "other")
    load_tokenizer("tiny-bert").save_pretrained(tmp_path / "other")
    text = str(tmp_path / "text.txt")
    for words in (
        ["bake", "--output", str(tmp_path / "out"), "--kind", "auto"],
        ["measure", "--task", "text", "--data", text],
        ["export", "--text", "some words", "--output", str(tmp_path / "vectors")],
    ):
        arguments = [words[0], str(tmp_path / "other"), *words[1:], "--edit", f"constant:{averages}"]
        assert main(arguments) == 2, words
        message = capsys.readouterr().err
        assert "whose weights at 'encoder.layer.1.attention.self' are others" in message
        assert "measure" in message
    assert not (tmp_path / "out").exists()


def test_averages_of_another_tokenizer_are_refused(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_model("tiny-bert").save_pretrained(tmp_path / "other")
    tokenizer = load_tokenizer("tiny-bert")
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "other")
    words = ["bake", str(tmp_path / "other"), "--edit", f"constant:{averages}", "--output", str(tmp_path / "out")]
    assert main([*words, "--kind", "auto"]) == 2
    assert "with another tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("length", "message"), [("100000", "take 51 tokens"), ("52", "take 51 tokens"), ("0", "at least 1")]
)
def test_a_length_that_the_model_cannot_take(
    length: str, message: str, averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bake", "tiny-bert", "--edit", f"constant:{averages}", "--rounds", "0", "--length", length]
    assert main([*words, "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [("threshold:0.1", "cannot be baked"), ("gate:0,heads=9", "matches no head"), ("constant:nowhere", "no saved")],
)
def test_bad_input(edit: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake", "tiny-bert", "--edit", edit, "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_everything_and_writes_nothing(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "SMALL", 0)
    monkeypatch.setattr(ways, "rates", lambda *_: Rates(1.0, 0.5, 3.0, 1.0, 1.0, 0.0, 0.0))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    edit = f"constant:{averages},heads=0 then gate:0,heads=1/1 then window:4,first=1,heads=2"
    words = ["bake", "tiny-bert", "--edit", edit, "--dry-run", "--rounds", "2", "--length", "40"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] is None
    assert found["after"]["parameters"] < found["before"]["parameters"]
    first, second = found["sites"]
    ways_of = {"dense": 2, "sparse": 1, "masked": 0, "edited": 0, "constant": 1, "removed": 0}
    if not sparse_here():
        ways_of |= {"sparse": 0, "edited": 1}
    assert {name: first[name] for name in ways_of} == ways_of
    assert (second["removed"], second["dense"]) == (1, 1)
    if sparse_here():
        kept = sum(len({*range(max(0, q - 3), min(40, q + 4)), 0}) for q in range(40))
        assert first["density"] == pytest.approx(kept / 40**2)
        assert first["density"] < first["union_density"] < 1
        assert first["flops"] > 0
        assert first["bytes"] > 0
        assert first["gain"] > 0
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Nothing is written" in shown
    assert "1 constant" in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_no_other_model_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other, weights = tmp_path / "model", tmp_path / "other", tmp_path / "weights"
    weights.mkdir()
    (weights / "model-00001-of-00001.safetensors").write_bytes(b"of somebody")
    for folder in (model, other):
        attrim.load_model("tiny-llama", kind="causal-lm").save_pretrained(folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["bake", str(model), "--edit", "window:3,layers=0", "--rounds", "0"]
    for folders, message in (
        (["--output", f"{other}/../model"], "--output is the folder of the model"),
        (["--output", str(tmp_path / "new"), "--layer-types", str(model)], "--layer-types is the folder of the model"),
        (["--output", str(other)], "holds a model or tokenizer that was not baked"),
        (["--output", str(weights)], "holds a model or tokenizer that was not baked"),
        (["--output", str(tmp_path / "new"), "--layer-types", str(other)], "holds a model, which would be replaced"),
    ):
        assert main([*words, *folders]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert main([*words, "--output", str(tmp_path / "new")]) == 0
    assert main([*words, "--output", str(tmp_path / "new")]) == 0, "what was baked before is replaced"


def test_without_a_folder_and_without_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake", "tiny-bert", "--edit", "gate:0,heads=0"]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(("way", "said"), [("masked", "runs dense, with a mask"), ("sparse", "as fast as dense")])
def test_what_a_pattern_gains_is_said(
    way: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sparse_here():
        pytest.skip("the compiled passes are not used here")
    monkeypatch.setattr(ways, "SMALL", 0)
    heads = {name: (0, 1, 2, 3) if name == way else () for name in ways.WAYS}
    monkeypatch.setattr(ways, "choose", lambda *_: ways.Choice(heads, 1.0, 2.0, 1.0))
    ways._choices.clear()  # a plan of another test with the same window may still be there
    words = ["bake", "tiny-bert", "--edit", "window:4", "--dry-run", "--rounds", "0", "--length", "40"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert f"4 {way}" in shown


def test_what_is_kept_beyond_a_pattern_is_said(
    averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bake", "tiny-bert", "--dry-run", "--rounds", "0", "--length", "60", "--edit"]
    said = "positions, and beyond these every cell is kept"
    assert main([*words, f"pattern:{averages},tau=0.5"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    attrim.bake(attrim.load_model("tiny-bert"), attrim.Mask(torch.eye(32, dtype=torch.bool)[None])).save_pretrained(
        tmp_path / "masked"
    )
    assert main([*words, f"mask:{tmp_path / 'masked'}"]) == 0
    assert f"covers 32 {said}" in " ".join(capsys.readouterr().out.split())
    assert main([*words, f"pattern:{averages},tau=0.5,unseen=offset"]) == 0
    assert said not in " ".join(capsys.readouterr().out.split())


def test_more_cells_may_be_computed_than_a_causal_query_sees(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sparse_here():
        pytest.skip("the compiled passes are not used here")
    monkeypatch.setattr(ways, "SMALL", 0)
    assert main(["bake", "tiny-gpt2", "--edit", "window:14", "--dry-run", "--rounds", "0", "--length", "16"]) == 0
    assert "so that it can exceed 1" in " ".join(capsys.readouterr().out.split())


def test_entmax_leaves_nothing_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake", "tiny-bert", "--edit", "entmax:1.5", "--dry-run", "--rounds", "0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 edited" in shown
    assert "every score is computed, and then edited" in shown


def test_operations_of_a_pattern_are_those_of_its_blocks() -> None:
    if not sparse_here():
        pytest.skip("the compiled passes are not used here")
    model = load_model("tiny-bert")
    baked = attrim.bake(model, attrim.Window(4))
    # A block of 16 queries needs its 16 keys and 3 on either side, in 4 heads of 8 numbers and 2 layers.
    columns = (16 + 3) + (16 + 6) + (16 + 3)
    attention = 2 * 4 * 48 * 48 * 2 * 8 * 2
    whole, sparse = attrim.baking.cost(model, 48).flops, attrim.baking.cost(baked, 48).flops
    assert whole - sparse == attention - 2 * 4 * 16 * columns * 2 * 8 * 2


def test_cost_counts_what_is_computed() -> None:
    model = load_model("tiny-bert")
    whole = attrim.baking.cost(model, 16)
    pooler, quadratic = 2 * 32 * 32, 2 * 4 * 16 * 8 * 32
    assert whole.flops == 2 * attrim.baking.cost(model, 8).flops + quadratic - pooler
    constant = attrim.baking.cost(attrim.bake(model, attrim.Constant(torch.rand(4, 16, 16))), 16)
    # Two of twelve projections of 32 x 32 go, and half of the attention, in both layers.
    assert whole.parameters - constant.parameters == 2 * 2 * (32 * 32 + 32)
    assert whole.flops - constant.flops == 2 * (2 * 2 * 16 * 32 * 32 + 2 * 16 * 16 * 32)
    assert constant.constants == 2 * 4 * 16 * 16


def test_bake_writes_everything_or_nothing(averages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk, devices and links left half a model or a traceback."""
    words = ["bake", "tiny-bert", "--edit", f"constant:{averages},heads=0", "--rounds", "0", "--output"]
    out, loop, dangling = tmp_path / "out", tmp_path / "loop", tmp_path / "dangling"
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "there")
    for place in ("/dev/null", str(loop), "/proc/attrim", str(averages / "stats.json")):
        assert main([*words, place]) == 2
        assert re.search("cannot be (read or )?written", capsys.readouterr().err)
    assert main([*words, str(dangling)]) == 0
    attrim.load(tmp_path / "there")
    assert main([*words, str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    names = sorted(path.name for path in tmp_path.iterdir())
    capsys.readouterr()
    for place in (out, tmp_path / "new"):
        with files_up_to(5_000):
            assert main([*words, str(place)]) == 2
        assert "no room left" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_model_that_carries_edits_and_became_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attrim.baking.speed", lambda *_: attrim.baking.Speed(0.1, 0.2, 0.5, slower=True))
    assert main(["bake", "tiny-bert", "--edit", "entmax:1.5", "--output", str(tmp_path / "slower")]) == 0
    assert "It became slower (0.50 x as fast)" in capsys.readouterr().out
    assert attrim.load(tmp_path / "slower")


@pytest.mark.parametrize("held", ["tokenizer.json", "vocab.txt", "generation_config.json"])
def test_files_of_a_tokenizer_are_not_replaced(held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / held).write_text("mine")
    assert main(["bake", "tiny-bert", "--edit", "window:3", "--output", str(tmp_path), "--rounds", "0"]) == 2
    assert "holds a model or tokenizer that was not baked" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(held, "mine")]


def test_saved_edits_are_not_hidden_by_a_baked_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_edits(Mask(torch.zeros(4, 3, 3, dtype=torch.bool)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["bake", "tiny-bert", "--edit", "window:3", "--output", str(tmp_path), "--rounds", "0"]) == 2
    assert "holds edits of save_edits" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_root_of_a_file_system_is_no_folder_to_write_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake", "tiny-bert", "--edit", "window:3", "--output", "/", "--rounds", "0"]) == 2
    assert "it is the root of a file system" in capsys.readouterr().err
