"""The heads study: what is pruned, in which order, and what it says about it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attrim
from attrim.attention.context import attach
from attrim.cli import main
from attrim.core.site import Site
from attrim.errors import AttrimError
from attrim.evaluation import UNEDITED, Prepared
from attrim.models.tiny import tiny_tokenizer
from attrim.scores.base import Scores
from attrim.studies.heads.findings import HeadsFindings
from attrim.studies.heads.pruning import Units, first_units, pruned_count
from attrim.studies.heads.scoring import score_task
from attrim.tasks.base import load_task
from zoo import HEADED, batch

STEPS = [step / 10 for step in range(10)]


# Which heads


@pytest.mark.parametrize(
    ("rule", "total", "counts"),
    [
        ("visualbert", 144, [0, 14, 28, 43, 57, 72, 86, 100, 115, 129]),
        ("visualbert", 12, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]),
        ("lxmert", 384, [0, 39, 77, 116, 154, 192, 231, 269, 308, 346]),
        ("lxmert", 32, [0, 4, 7, 10, 13, 16, 20, 23, 26, 29]),
        ("round", 144, [0, 14, 29, 43, 58, 72, 86, 101, 115, 130]),
        ("round", 12, [0, 1, 2, 4, 5, 6, 7, 8, 10, 11]),
        ("round", 384, [0, 38, 77, 115, 154, 192, 230, 269, 307, 346]),
        ("round", 32, [0, 3, 6, 10, 13, 16, 19, 22, 26, 29]),
        ("round", 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_how_many_each_step_removes(rule: Any, total: int, counts: list[int]) -> None:
    assert [pruned_count(step, total, rule) for step in STEPS] == counts


def test_oracle_4_the_order_of_removal() -> None:
    values = torch.tensor([[0.3, -0.1, 0.05, 0.0, -0.4, 0.2]])
    assert first_units(values, 3, "largest")[0].nonzero().flatten().tolist() == [0, 2, 5]
    assert first_units(values, 3, "smallest")[0].nonzero().flatten().tolist() == [1, 3, 4]
    assert first_units(values.abs(), 3, "smallest")[0].nonzero().flatten().tolist() == [1, 2, 3]
    one_by_one = [first_units(values, count, "largest")[0] for count in range(4)]
    added = [int((after & ~before).nonzero()) for before, after in itertools.pairwise(one_by_one)]
    assert added == [0, 5, 2]
    assert first_units(torch.zeros(2, 4), 2, "largest").tolist() == [[True, True, False, False]] * 2  # ties in order


def sites(count: int = 2, heads: int = 3) -> list[Site]:
    return [Site(f"layer.{number}.self", "encoder", number, heads) for number in range(count)]


def test_units_are_heads_sites_or_blocks_and_have_the_mean_of_their_heads() -> None:
    two = [*sites(), Site("layer.1.cross", "cross", 1, 3)]
    chosen = {two[0]: (0, 2), two[1]: (1,), two[2]: (0, 1, 2)}
    values = {site.name: torch.arange(len(own)) + 10.0 * number for number, (site, own) in enumerate(chosen.items())}
    scores = Scores(values, two, heads={site.name: own for site, own in chosen.items()})
    assert Units.of(chosen, "head").values(scores).tolist() == [[0, 1, 10, 20, 21, 22]]
    assert Units.of(chosen, "site").values(scores).tolist() == [[0.5, 10, 21]]
    blocks = Units.of(chosen, "block")
    assert blocks.values(scores).tolist() == [[0.5, (10 + 20 + 21 + 22) / 4]]
    gate = blocks.gate(torch.tensor([[False, True]]))
    assert {name: factors.tolist() for name, factors in gate.factors.items()} == {
        "layer.0.self": [1, 1, 1],
        "layer.1.self": [1, 0, 1],  # the heads that are not chosen stay
        "layer.1.cross": [0, 0, 0],
    }
    small = dataclasses.replace(scores, large_is_important=False)
    assert Units.of(chosen, "site").values(small).tolist() == [[-0.5, -10, -21]]
    shared = blocks.shared(small, "block")
    assert shared.order()[:4] == [("layer.1.self", 1), ("layer.1.cross", 0), ("layer.1.cross", 1), ("layer.1.cross", 2)]


# What a gate does


@pytest.mark.parametrize("animal", HEADED, ids=str)
def test_a_gate_of_ones_changes_no_bit_and_a_gate_of_zeros_leaves_the_bias(animal: Any) -> None:
    model = animal.build()
    inputs = batch(animal, (4, 6, 5)) if animal.eats != "image" else batch(animal, (1, 1, 1))
    first = attrim.sites(model)[0]
    rows = len(next(iter(inputs.values())))
    with torch.no_grad():
        before = logits(model(**inputs))
        ones = {site.name: torch.ones(rows, site.heads) for site in attrim.sites(model)}
        with attach(model, [attrim.Gate(ones, at="output")]):
            assert torch.equal(logits(model(**inputs)), before)
        zeros = {first.name: torch.zeros(first.heads)}
        select = attrim.Select(names=[first.name])
        results = []
        for at in ("weights", "output"):
            with attach(model, [attrim.Gate(zeros, at=at, select=select)]):
                results.append(logits(model(**inputs)))
        torch.testing.assert_close(*results)
        assert not torch.equal(results[0], before)


def logits(output: Any) -> torch.Tensor:
    return next(
        getattr(output, name)
        for name in ("logits", "question_answering_score", "start_logits")
        if getattr(output, name, None) is not None
    )


def test_a_site_without_heads_gives_the_bias_of_its_projection() -> None:
    model, inputs = HEADED[0].build(), batch(HEADED[0], (4, 6))
    seen = []
    layer = model.bert.encoder.layer[0].attention.output.dense
    nn.init.normal_(layer.bias)
    name = attrim.sites(model)[0].name
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad(), attach(model, [attrim.Gate(0.0, at="output", select=attrim.Select(names=[name]))]):
        model(**inputs)
    handle.remove()
    assert torch.equal(seen[0], layer.bias.detach().expand_as(seen[0]))


# A model that answers differently with every head


@pytest.fixture
def model() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    config = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=24, num_labels=2, initializer_range=0.4)  # fmt: skip
    return BertForSequenceClassification(config).eval()


def bench(model: Any, glue: Path, **fields: Any) -> Any:
    shared = {"task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs", "quiet": True, "batch_size": 5}
    return attrim.Bench(model, tokenizer=tiny_tokenizer(), **{**shared, **fields})


def run(model: Any, glue: Path, *, fields: dict[str, Any] | None = None, **asked: Any) -> HeadsFindings:
    quick: dict[str, Any] = {"scores": ("gradient-attention", "lrp", "random"), "steps": (0.25, 0.5), "seeds": (0, 1)}
    found = attrim.Heads(**{**quick, **asked}).run(bench(model, glue, **(fields or {})))
    assert isinstance(found, HeadsFindings)
    return found


def test_gates_of_examples_are_those_of_each_example_alone(model: nn.Module, glue: Path) -> None:
    task = load_task("glue/sst2", data=str(glue), batch_size=5)
    prepared = Prepared(model, task, tiny_tokenizer(), count_zeros=False)
    names = {site.name: site.heads for site in prepared.sites()}
    generator = torch.Generator().manual_seed(0)
    factors = {name: torch.randint(0, 2, (16, heads), generator=generator).float() for name, heads in names.items()}
    together = prepared.point("together", [attrim.Gate(factors, at="output")])
    assert np.isnan(together.zero_share)
    single = load_task("glue/sst2", data=str(glue), batch_size=1)
    alone = []
    for item in single.batches(tiny_tokenizer()):
        own = {name: rows[item.index] for name, rows in factors.items()}
        with torch.no_grad(), attach(model, [attrim.Gate(own)]):
            alone.append((int(item.index[0]), model(**item.inputs).logits[0]))
    expected = torch.stack([output for _, output in sorted(alone, key=lambda entry: entry[0])])
    np.testing.assert_allclose(together.outputs, expected.numpy(), atol=2e-5)
    counted = Prepared(model, task, tiny_tokenizer()).point("counted", [attrim.Gate(factors)])
    np.testing.assert_allclose(together.outputs, counted.outputs, atol=2e-5)
    assert counted.zero_share > 0.3
    short = {name: rows[:10] for name, rows in factors.items()}
    with pytest.raises(AttrimError, match="are for 10 examples but the task has more"):
        prepared.point("short", [attrim.Gate(short)])


def test_evaluation_with_gates_of_outputs_stays_on_the_fused_kernel(
    model: nn.Module, glue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("glue/sst2", data=str(glue), batch_size=8)
    prepared = Prepared(model, task, tiny_tokenizer(), count_zeros=False)
    factors = {site.name: torch.ones(16, site.heads) for site in prepared.sites()}
    unedited = prepared.point(UNEDITED, [])
    fused, calls = torch.nn.functional.scaled_dot_product_attention, []

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(None)
        return fused(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    ones = prepared.point("ones", [attrim.Gate(factors, at="output")])
    assert len(calls) == 4  # two batches, two layers
    np.testing.assert_array_equal(ones.outputs, unedited.outputs)


# The study


def by_hand(model: nn.Module, glue: Path, scope: str, count: int, direction: str) -> list[int]:
    """Predictions with the first heads of gradient x attention removed, one example after the other."""
    tokenizer = tiny_tokenizer()
    single = load_task("glue/sst2", data=str(glue), batch_size=1)
    score = attrim.GradientAttention()
    order: list[tuple[str, int]] = []
    if scope == "dataset":
        training = load_task("glue/sst2", data=str(glue), split="train")
        order = score(model, training.feed(model, tokenizer)).order()
    answers: dict[int, int] = {}
    for item in single.batches(tokenizer):
        own = order or score(model, [item.inputs]).order()
        heads = own[-count:] if direction == "largest" else own[:count]
        with torch.no_grad(), attach(model, [attrim.Gate(0.0, select=attrim.Select(heads=heads))]):
            answers[int(item.index[0])] = int(model(**item.inputs).logits.argmax())
    return [answers[number] for number in sorted(answers)]


@pytest.mark.parametrize("scope", ["example", "dataset"])
@pytest.mark.parametrize("direction", ["largest", "smallest"])
def test_it_prunes_as_by_hand(model: nn.Module, glue: Path, scope: str, direction: str) -> None:
    found = run(model, glue, scores=("gradient-attention",), scopes=(scope,), directions=(direction,))
    labels = [number % 2 for number in range(16)]
    assert found.pruned is not None
    (curve,) = found.pruned.curves
    assert [step.removed for step in curve.steps] == [0, 2, 4]
    for step in curve.steps[1:]:
        answers = by_hand(model, glue, scope, step.removed, direction)
        assert step.score == pytest.approx(100 * np.mean(np.array(answers) == labels))
    assert curve.area.value == pytest.approx(np.mean([step.score for step in curve.steps]))
    assert curve.area.low <= curve.area.value <= curve.area.high


def test_right_and_wrong_answers_are_told_apart(model: nn.Module, glue: Path) -> None:
    found = run(model, glue, scopes=("example",))
    assert found.pruned is not None
    assert found.pruned.right is not None
    first = found.pruned.curves[0].steps[0]
    assert (first.right, first.wrong) == (100.0, 0.0)
    for curve in found.pruned.curves:
        for step in curve.steps:
            assert step.right is not None
            assert step.wrong is not None
            whole = found.pruned.right * step.right + (1 - found.pruned.right) * step.wrong
            assert step.score == pytest.approx(whole)


def test_scopes_are_apart_and_random_has_a_curve_for_each_seed(model: nn.Module, glue: Path) -> None:
    found = run(model, glue)
    assert found.pruned is not None
    names = [curve.name for curve in found.pruned.curves]
    assert names == [
        f"{scope}/{rest}"
        for scope in ("example", "dataset")
        for rest in (
            "gradient-attention/largest", "gradient-attention/smallest", "lrp/largest", "lrp/smallest",
            "random/seed-0", "random/seed-1",
        )
    ]  # fmt: skip
    areas = found.tables()[0]
    assert {row[0] for row in areas.rows} == {"example", "dataset"}
    charts = {chart.name for chart in found.charts()}
    assert {"pruning-example-largest", "pruning-dataset-smallest", "areas-example", "scores-dataset-lrp"} <= charts
    said = " ".join(found.sentences())
    assert "gradient-attention minus lrp" in said
    assert "Scopes are not to be compared" in said
    pairs = {(each.scope, each.direction, each.one, each.other) for each in found.pruned.differences}
    assert len(pairs) == 2 * 2 * 3
    for each in found.pruned.differences:
        one, other = (
            np.mean([
                curve.area.value
                for curve in found.pruned.curves
                if curve.scope == each.scope and curve.score == name and curve.direction in (each.direction, "")
            ])
            for name in (each.one, each.other)
        )  # fmt: skip
        assert each.area.value == pytest.approx(one - other)
        assert each.area.low <= each.area.value <= each.area.high


def test_findings_are_read_back_equal_and_shown_without_the_model(
    model: nn.Module, glue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(model, glue, parts=("prune", "correlation"), pairs=9)
    assert attrim.findings(found.folder) == found
    assert main(["show", str(found.folder), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "area under the curves" in printed
    assert "what predicts the rise of the loss" in printed
    (caption,) = (table.caption for table in found.tables() if table.name == "correlation")
    counts = re.search(r"\((.*?)\)", caption)  # also with too few pairs of one change for a column of their own
    assert counts
    assert sum(int(part.split()[0]) for part in counts[1].split(", ")) == 9


def test_a_study_that_was_stopped_goes_on(model: nn.Module, glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(model, glue, fields={"output": glue.parent / "other"})
    done: list[str] = []
    point = Prepared.point

    def limited(self: Prepared, name: str, edits: Any) -> Any:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(name)
        return point(self, name, edits)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Prepared, "point", limited)
        run(model, glue)

    def counted(self: Prepared, name: str, edits: Any) -> Any:
        done.append(name)
        return point(self, name, edits)

    monkeypatch.setattr(Prepared, "point", counted)
    resumed = run(model, glue)
    assert len(done) == len(set(done))  # nothing is evaluated twice
    assert resumed == whole
    before = len(done)
    assert run(model, glue) == resumed
    assert len(done) == before


def test_scoring_again_removes_what_the_pruned_model_says(model: nn.Module, glue: Path) -> None:
    asked: dict[str, Any] = {"scores": ("gradient-attention",), "scopes": ("dataset",), "directions": ("largest",)}
    found = run(model, glue, **asked, steps=(0.125, 0.25), rescore=True)
    tokenizer = tiny_tokenizer()
    training = load_task("glue/sst2", data=str(glue), split="train")
    score = attrim.GradientAttention()
    removed: list[tuple[str, int]] = []
    for _ in range(2):
        with attach(model, [attrim.Gate(0.0, select=attrim.Select(heads=removed))] if removed else []):
            order = score(model, training.feed(model, tokenizer)).order()
        removed.append([head for head in order if head not in removed][-1])
    task = load_task("glue/sst2", data=str(glue))
    expected = Prepared(model, task, tokenizer).point("x", [attrim.Gate(0.0, select=attrim.Select(heads=removed))])
    assert found.pruned is not None
    assert found.pruned.curves[0].steps[-1].score == pytest.approx(expected.metrics["accuracy"])
    stored = found.folder / "scores"
    assert sum("rescored" in path.name for path in stored.iterdir()) == 1
    by_example = run(model, glue, **{**asked, "scopes": ("example",)}, steps=(0.125, 0.25), rescore=True)
    assert by_example.pruned is not None
    lrp = run(model, glue, **{**asked, "scores": ("lrp",)}, steps=(0.125, 0.25), rescore=True)
    assert lrp.pruned is not None


def test_the_first_order_prediction_is_the_sum_and_the_measured_one_is_real(model: nn.Module, glue: Path) -> None:
    found = run(model, glue, scores=("gradient-attention",), scopes=("example",), directions=("largest",))
    assert found.pruned is not None
    task = load_task("glue/sst2", data=str(glue), batch_size=4)
    prepared = Prepared(model, task, tiny_tokenizer(), count_zeros=False)
    scores = score_task(prepared, attrim.GradientAttention(scope="example"))
    units = Units.of({site: range(site.heads) for site in prepared.sites()}, "head")
    values = units.values(scores)
    unpruned = prepared.point(UNEDITED, [])
    answers = unpruned.outputs.argmax(1)
    for one in found.pruned.first_order:
        off = first_units(values, one.removed, "largest")
        result = prepared.point("x", [units.gate(off)])
        change = (result.outputs - unpruned.outputs)[np.arange(16), answers]
        assert one.measured == pytest.approx(change.mean(), abs=1e-5)
        assert one.predicted == pytest.approx(float(-(values * off).sum(1).mean()), abs=1e-6)
        expected = np.corrcoef(-(values * off).sum(1).numpy(), change)[0, 1]
        assert one.correlation == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("unit", ["site", "block"])
def test_other_units(model: nn.Module, glue: Path, unit: str) -> None:
    found = run(model, glue, unit=unit, steps=(0.5,), scores=("gradient-attention",))
    assert found.pruned is not None
    assert found.pruned.units == 2
    assert [step.removed for step in found.pruned.curves[0].steps] == [0, 1]
    order = next((found.folder / "orders").glob("*.json"))
    assert f"order-{unit}" in order.name


def test_the_released_counts_and_cells(model: nn.Module, glue: Path) -> None:
    found = run(model, glue, as_coded=True, scopes=("example",), scores=("gradient-attention",), steps=(0.3,))
    assert found.pruned is not None
    assert found.pruned.counting == "visualbert"
    assert found.pruned.curves[0].score == "gradient-attention:cells=mean"
    assert found.pruned.curves[0].steps[-1].removed == 2


def test_the_printed_command_bakes_what_was_evaluated(
    glue: Path, tmp_path: Path, model: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    found = attrim.Heads(scores=("gradient-attention",), scopes=("dataset",), steps=(0.25,)).run(
        attrim.Bench(str(folder), task="glue/sst2", data=str(glue), output=tmp_path / "runs", quiet=True)
    )
    assert isinstance(found, HeadsFindings)
    assert found.pruned is not None
    (budget,) = found.pruned.budgets
    words = next((text for text in found.sentences() if "attrim bake" in text), None)
    if budget.heads == 0:
        pytest.fail("the first step costs more than 1 %; choose another model for this test")
    assert words is not None
    import shlex

    command = shlex.split(words.partition("attrim ")[2].replace("FOLDER", str(tmp_path / "baked")))
    assert main([*command, "--quiet"]) == 0
    capsys.readouterr()
    words = ["evaluate", str(tmp_path / "baked"), "--task", "glue/sst2", "--data", str(glue), "--json"]
    assert main(words) == 0
    import json

    accuracy = json.loads(capsys.readouterr().out)["results"]["unedited"]["metrics"]["accuracy"]
    assert accuracy == pytest.approx(budget.result)


def test_sites_without_influence_are_neither_scored_nor_pruned() -> None:
    from attrim.scores.taps import influential_sites

    animal = next(animal for animal in HEADED if animal.name == "lxmert")
    model = animal.build()
    reached = {site.name for site in influential_sites(model, batch(animal, (4, 6)))}
    idle = [site for site in attrim.sites(model) if site.name not in reached]
    assert sorted(site.role for site in idle) == ["vision", "vision>language"]
    assert all(site.layer == max(s.layer for s in attrim.sites(model) if s.role == site.role) for site in idle)


def test_lxmert_base_has_32_of_34_sites_with_influence() -> None:
    """The real architecture, 9/5/5 layers, narrow so that it is quick."""
    from transformers import LxmertConfig, LxmertForQuestionAnswering

    from attrim.scores.taps import influential_sites

    config = LxmertConfig(hidden_size=24, num_attention_heads=12, intermediate_size=16, vocab_size=30,
                          visual_feat_dim=8, num_qa_labels=4)  # fmt: skip
    model = LxmertForQuestionAnswering(config).eval()
    inputs = {
        "input_ids": torch.randint(1, 30, (1, 5)),
        "attention_mask": torch.ones(1, 5, dtype=torch.long),
        "visual_feats": torch.rand(1, 6, 8),
        "visual_pos": torch.rand(1, 6, 4),
    }
    reached = influential_sites(model, inputs)
    assert len(attrim.sites(model)) == 34
    assert len(reached) == 32
    assert sum(site.heads for site in reached) == 384


def test_what_is_refused(model: nn.Module, glue: Path) -> None:
    for asked, message in (
        ({"scores": ("gradient-attention", "gradient-attention")}, "at least one entry, each of them once"),
        ({"scores": ("gradient-attention", "gradient-attention:cells=sum")}, "twice"),
        ({"scores": ("lambdas",)}, "attrim constant"),
        ({"scores": ("lrp:scope=example",)}, "--scopes"),
        ({"scores": ("divergence",)}, "None of --scores has the scope 'example'"),
        ({"steps": (1.5,)}, "share of the heads"),
        ({"scores": ("nonsense",)}, "nonsense"),
        ({"target": "nonsense"}, "target"),
        ({"pairs": 0}, "--pairs"),
    ):
        with pytest.raises(AttrimError, match=message):
            attrim.Heads(**asked)
    dev = (glue / "dev.tsv").read_text()
    (glue / "train.tsv").write_text(dev)
    with pytest.raises(AttrimError, match="16 of the 16 examples to score heads on are those that are evaluated"):
        run(model, glue, scopes=("dataset",))
    run(model, glue, scopes=("example",))


def test_an_order_of_a_file_is_a_score(model: nn.Module, glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(model, glue, scores=("gradient",), scopes=("dataset",))
    path = next((first.folder / "orders").glob("*.json"))
    again = run(model, glue, scores=(f"@{path}",), scopes=("dataset",))
    done: list[str] = []
    monkeypatch.setattr(Prepared, "point", lambda self, name, edits: done.append(name))
    with pytest.raises(AttrimError, match="no file"):
        run(model, glue, scores=("gradient-attention", f"@{glue}/none.json"), scopes=("dataset",))
    assert not done  # nothing was computed before
    assert first.pruned is not None
    assert again.pruned is not None
    assert [curve.steps for curve in again.pruned.curves] == [curve.steps for curve in first.pruned.curves]


def test_flags_of_the_command(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["heads", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    words += ["--scores", "gradient-attention:target=1", "confidence", "random", "--steps", "0.5", "--seeds", "3"]
    assert main([*words, "--formats", "png", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "gradient-attention:target=1" in printed
    assert "8 heads at 2 of 2 sites" in printed
