"""Averages and orders go from one model, run or tool to another: with a head or without, and into a baked model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import attrim
from attrim.cli import main
from attrim.core.site import Select, Site
from attrim.core.text import parse_heads
from attrim.edits.saving import load_edits, save_edits
from attrim.errors import ArtefactError, ParameterError, SelectionError, SiteError
from attrim.evaluation import check_stats
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer, saved_kind
from attrim.stats import Mean
from attrim.stats.bundle import Stats
from attrim.studies.constant import ConstantHeads

TEXT = ["The film was good.", "A bad one, and long too.", "Well."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One backbone without a head, with one for classes, and with one for masked tokens."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    headed = load_model("tiny-bert", "sequence-classification", num_labels=2)
    masked = load_model("tiny-bert", "masked-lm")
    masked.base_model.load_state_dict(headed.base_model.state_dict(), strict=False)
    found = {}
    for name, model in {"bare": headed.base_model, "classes": headed, "masked": masked}.items():
        found[name] = place / name
        model.save_pretrained(found[name])
        load_tokenizer("tiny-bert").save_pretrained(found[name])
    return found


def inputs(name: str = "tiny-bert") -> list[dict[str, torch.Tensor]]:
    return [dict(load_tokenizer(name)(TEXT, return_tensors="pt", padding=True))]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("saved", ["bare", "classes", "masked"])
def test_measuring_needs_no_head(folders: dict, glue: Path, tmp_path: Path, capsys, saved: str) -> None:
    shared = ("--task", "glue/sst2", "--data", glue)
    run(capsys, "measure", folders[saved], *shared, "--stats", "mean", "--output", tmp_path / "mean")
    stat = Stats.load(tmp_path / "mean")[Mean]
    want = measure(
        load_model(folders["bare"]),
        attrim.tasks.load_task("glue/sst2", data=str(glue)).feed(
            load_model(folders["bare"]), load_tokenizer("tiny-bert")
        ),
        Mean(),
        progress=False,
    )[Mean]
    for mine, other in zip(stat.sites, want.sites, strict=True):
        assert torch.equal(stat.matrix(mine), want.matrix(other))
    assert type(load_model(folders[saved], saved_kind(folders[saved]))).__name__.startswith("Bert")


def test_the_kind_that_is_given_wins(folders: dict, glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", folders["bare"], "--task", "glue/sst2", "--data", glue, "--kind", "sequence-classification"]
    assert main([*map(str, words)]) != 0
    assert "no trained sequence-classification head" in capsys.readouterr().err


def test_sparsity_without_scores_needs_no_head(folders: dict, glue: Path, tmp_path: Path, capsys) -> None:
    words = ("--task", "glue/sst2", "--data", glue, "--output", tmp_path / "runs", "--formats", "png", "--limit", 4)
    found = run(capsys, "sparsity", folders["bare"], *words, "--no-scores", "--parts", "distances", "--bits", 3)
    assert found["folder"]
    assert main([*map(str, ("sparsity", folders["bare"], *words))]) != 0
    assert "no trained sequence-classification head" in capsys.readouterr().err


SITE = Site("bert.encoder.layer.0.attention.self", "encoder", 0, 4, backbone="bert")


def test_sites_of_one_backbone_have_two_names() -> None:
    bare = Site("encoder.layer.0.attention.self", "encoder", 0, 4, backbone="bert")
    assert set(SITE.aliases) == set(bare.aliases)
    assert SITE.aliases[0] == SITE.name
    assert Site("encoder.layer.0", "encoder", 0, 4).aliases == ("encoder.layer.0",)
    assert bare == Site("encoder.layer.0.attention.self", "encoder", 0, 4)
    assert Select(heads=[(bare.name, 1)]).resolve([SITE]) == {SITE: (1,)}
    with pytest.raises(SelectionError):
        Select(heads=[("roberta.encoder.layer.0.attention.self", 1)]).resolve([SITE])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta", "tiny-gpt2", "tiny-bart", "tiny-deberta"])
def test_averages_fit_the_same_model_with_and_without_a_head(name: str) -> None:
    kind = "sequence-classification" if name != "tiny-bart" else "seq2seq-lm"
    headed = load_model(name, kind, num_labels=2) if name != "tiny-bart" else load_model(name, kind)
    bare = headed.base_model
    batches = inputs(name)
    if name == "tiny-bart":
        batches[0]["decoder_input_ids"] = batches[0]["input_ids"]
    if name in ("tiny-gpt2",):
        headed.config.pad_token_id = load_tokenizer(name).pad_token_id
    means = {model: measure(model, batches, Mean(), progress=False)[Mean] for model in (headed, bare)}
    assert [site.name for site in attrim.sites(headed)] != [site.name for site in attrim.sites(bare)]
    for model, other in ((headed, bare), (bare, headed)):
        outputs = []
        for mean in (means[model], means[other]):
            order = [(site.name, 0) for site in mean.sites]
            with attrim.edit(model, attrim.Constant(mean, heads=order)), torch.inference_mode():
                outputs.append(model(**batches[0])[0])
        assert torch.equal(*outputs)
        with attrim.edit(model, attrim.Mix(means[other], 0.3)), torch.inference_mode():
            model(**batches[0])
        cells = {site.name: means[other].matrix(site) < 0.01 for site in means[other].sites}
        with attrim.edit(model, attrim.Mask(cells)), torch.inference_mode():
            model(**batches[0])


def test_averages_of_another_model_are_still_refused(folders: dict, tmp_path: Path) -> None:
    headed = load_model(folders["classes"], "sequence-classification")
    bare = load_model(folders["bare"])
    measure(bare, inputs(), Mean(), progress=False).save(tmp_path / "mean")
    check_stats([f"constant:{tmp_path / 'mean'}"], headed)
    with torch.no_grad():
        headed.bert.encoder.layer[1].attention.self.query.weight[0] += 1
    with pytest.raises(ArtefactError, match=r"weights at .* are others"):
        check_stats([f"constant:{tmp_path / 'mean'}"], headed)
    other, mean = load_model("tiny-gpt2"), Stats.load(tmp_path / "mean")[Mean]
    with pytest.raises(SiteError, match="no matrix for site"), attrim.edit(other, attrim.Constant(mean)):
        other(**inputs("tiny-gpt2")[0])


def test_averages_of_the_bare_model_bake_into_the_one_with_a_head(folders: dict, tmp_path: Path) -> None:
    headed = load_model(folders["classes"], "sequence-classification")
    mean = measure(load_model(folders["bare"]), inputs(), Mean(), progress=False)[Mean]
    edit = attrim.Constant(mean, heads=[(mean.sites[0].name, 0), (mean.sites[1].name, 3)])
    (again,) = load_edits(save_edits([edit], tmp_path / "edits"))
    baked = attrim.bake(headed, again)
    assert [site.heads for site in attrim.sites(baked)] == [3, 3]
    with attrim.edit(headed, edit), torch.inference_mode():
        want = headed(**inputs()[0]).logits
    torch.testing.assert_close(baked(**inputs()[0]).logits, want)


QUICK = ("--max-length", 24, "--epochs", 1, "--seeds", 0, "--order-epochs", 1, "--formats", "png")


@pytest.fixture
def ordered(folders: dict, glue: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    """The run of a study that stopped after its order, and what it printed."""
    words = ("constant", folders["classes"], "--task", "glue/sst2", "--data", glue, "--output", glue.parent / "runs")
    assert main([*map(str, (*words, *QUICK, "--until", "order"))]) == 0
    (folder,) = (glue.parent / "runs").glob("constant-*")
    return folder, capsys.readouterr().out.splitlines()


def test_the_averages_of_a_run_are_an_edit_everywhere(ordered, folders: dict, glue: Path, capsys, tmp_path) -> None:
    folder, _ = ordered
    edit = f"constant:{folder}/averages,heads=@{folder}/orders/lambdas.json:1/2"
    data = ("--task", "glue/sst2", "--data", glue, "--max-length", 24, "--option", "layout=grid")
    found = run(capsys, "evaluate", folders["classes"], *data, "--edit", edit)
    assert found["results"][edit]["metrics"]
    run(capsys, "measure", folders["classes"], *data, "--edit", edit, "--stats", "moments")
    out = tmp_path / "smaller"
    baked = run(capsys, "bake", folders["classes"], "--edit", edit, "--output", out, "--rounds", 0)
    assert baked["after"]["parameters"] < baked["before"]["parameters"]
    assert sum(site.heads for site in attrim.sites(attrim.load(out))) == 4
    again = run(capsys, "evaluate", out, *data)
    assert again["results"]["unedited"]["metrics"] == found["results"][edit]["metrics"]


def test_the_averages_keep_what_the_halves_said(ordered) -> None:
    found = attrim.findings(ordered[0])
    assert found.averages.stats.folder == ordered[0] / "averages"
    assert found.averages.stats.origin.tokenizer
    assert found.averages.stats.origin.data.examples == 48
    rows = found.averages.correlations.values()
    assert [len(row) for row in rows] == [4, 4]
    assert found.data()["averages"]["half_correlation"] == pytest.approx(sum(map(sum, rows)) / 8)
    assert not list((ordered[0] / "stats").glob("averages-*"))  # merged, so not kept twice


def test_the_order_is_printed_and_written(ordered) -> None:
    folder, shown = ordered
    order = attrim.findings(folder).orders["lambdas"].order()
    index = json.loads((folder / "orders" / "lambdas.json").read_text())
    assert [tuple(head) for head in index["order"]] == order
    lines = (folder / "orders" / "lambdas.csv").read_text().splitlines()
    assert lines[0] == "place,site,role,layer,head,score"
    assert [(line.split(",")[1], int(line.split(",")[4])) for line in lines[1:]] == order
    layers = [f"{name.split('.')[2]}/{head}" for name, head in order]
    assert " ".join(layers) in " ".join(" ".join(shown).split())


@pytest.mark.parametrize("form", ["ours.json", "ours.csv", "pairs.json", "layers.csv"])
def test_orders_and_averages_from_outside(ordered, folders: dict, glue: Path, tmp_path, capsys, form: str) -> None:
    """What the released code reads from static_heads_dir and sorting_heads_dir."""
    folder, _ = ordered
    order = attrim.findings(folder).orders["lambdas"].order(by="layer")
    files = {
        "ours.json": (folder / "orders" / "lambdas.json").read_text(),
        "ours.csv": (folder / "orders" / "lambdas.csv").read_text(),
        "pairs.json": json.dumps(order),
        "layers.csv": "layer,head\n" + "".join(f"{layer},{head}\n" for layer, head in order),
    }
    (tmp_path / form).write_text(files[form])
    words = ("constant", folders["bare"], "--task", "glue/sst2", "--data", glue, "--output", tmp_path / "runs", *QUICK)
    given = ("--averages", folder / "averages", "--order", tmp_path / form, "--budgets", "1/2")
    found = run(capsys, *words, *given)
    assert [(row["order"], row["heads"]) for row in found["rows"]] == [("", 0), ("given", 4)]
    mine = run(capsys, *words, "--budgets", "1/2", "--output", tmp_path / "own")
    assert [row["scores"] for row in mine["rows"]] == [row["scores"] for row in found["rows"]]


def test_averages_of_a_model_with_a_head_serve_a_study(folders: dict, glue: Path, tmp_path: Path, capsys) -> None:
    data = ("--task", "glue/sst2", "--data", glue)
    grid = ("--option", "layout=grid", "--option", "split=train", "--max-length", 24)
    run(capsys, "measure", folders["classes"], *data, *grid, "--stats", "mean", "--output", tmp_path / "mean")
    words = ("constant", folders["bare"], *data, "--output", tmp_path / "runs", *QUICK, "--orders", "random")
    given = run(capsys, *words, "--averages", tmp_path / "mean", "--budgets", "all", "--select-layers", 1)
    own = run(capsys, *words, "--budgets", "all", "--output", tmp_path / "own", "--select-layers", 1)
    assert [row["heads"] for row in given["rows"]] == [0, 4]
    assert [row["scores"] for row in given["rows"]] == [row["scores"] for row in own["rows"]]
    assert given["folder"] != own["folder"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("o.json", "[[0, 0], [0, 0]]", "entry 2 of .* names head 0/0 again"),
        ("o.json", "[[0, 0], [0, true]]", r"entry 2 of .* is not \[layer or site, head\]"),
        ("o.json", "[[0, 9]]", "no head 0/9"),
        ("o.json", "[[0, 0]]", "lacks 7 of the 8 heads"),
        ("o.json", "{}", "holds no order"),
        ("o.json", "[]", "holds no order"),
        ("o.json", "[[0, 0]", "is not JSON"),
        ("o.csv", "layer,heads\n0,0\n", "no column 'head'"),
        ("o.csv", "layer,head\n0,0\n0,x\n", "line 3 of"),
        ("o.csv", "layer,head\n0\n", "line 2 of"),
        ("o.csv", "place,layer,head\n1,0,0\n1,0,1\n", "line 3 of .* place 1 again"),
        ("o.csv", "", "is empty"),
        ("o.txt", "0 0", r"\.json or \.csv"),
    ],
)
def test_bad_orders_are_one_sentence(glue: Path, tmp_path: Path, capsys, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    words = ("constant", "tiny-bert", "--task", "glue/sst2", "--data", glue, "--output", tmp_path / "runs", *QUICK)
    assert main([*map(str, (*words, "--order", tmp_path / name))]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said, re.IGNORECASE), said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()  # before any long work


def test_an_order_comes_from_a_file_or_is_worked_out(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="give one of them"):
        ConstantHeads(order=tmp_path / "order.json", orders=("random",))
    with pytest.raises(ArtefactError, match="no file"):
        parse_heads(f"@{tmp_path}/order.json:1/2")
    (tmp_path / "order.json").write_text("[[0, 1], [1, 2], [0, 0], [1, 1]]")
    assert parse_heads(f"@{tmp_path}/order.json:1/2") == [(0, 1), (1, 2)]
    assert len(parse_heads(f"@{tmp_path}/order.json")) == 4
    with pytest.raises(ParameterError, match="not a budget of 4 heads"):
        parse_heads(f"@{tmp_path}/order.json:5")
    with pytest.raises(ParameterError, match="no head"):
        parse_heads(f"@{tmp_path}/order.json:0")


def test_averages_from_outside_must_be_of_this_model(folders: dict, glue: Path, tmp_path: Path, capsys) -> None:
    words = ("constant", folders["bare"], "--task", "glue/sst2", "--data", glue, "--output", tmp_path / "runs", *QUICK)
    tokens = lambda length: [{"input_ids": torch.ones(1, length).long()}]
    mean = measure(load_model("tiny-roberta"), inputs("tiny-roberta"), Mean(), progress=False)
    for stats, message in (
        (mean, "weights at"),
        (measure(load_model(folders["bare"]), inputs(), attrim.Histogram(), progress=False), "holds no average"),
        (measure(load_model(folders["bare"]), tokens(9), Mean(), Select(layers=[0]), progress=False), "lack head 0"),
        (measure(load_model(folders["bare"]), tokens(30), Mean(), progress=False), "30 slots"),
    ):
        stats.save(tmp_path / "mean")
        assert main([*map(str, (*words, "--averages", tmp_path / "mean"))]) == 2
        assert message in capsys.readouterr().err
