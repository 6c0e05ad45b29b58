"""Averages and orders go from one model, run or tool to another: with a head or without, as files, into a baked model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attrim
from attrim.cli import main
from attrim.core.site import Select, Site
from attrim.edits.saving import load_edits, save_edits
from attrim.errors import ArtefactError, SelectionError, SiteError
from attrim.evaluation import check_stats
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer, saved_kind
from attrim.stats import Mean
from attrim.stats.bundle import Stats

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
    with pytest.raises(ArtefactError, match="weights at .* are others"):
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
