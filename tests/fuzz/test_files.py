"""Every kind of file that attrim reads, damaged: what is read back is equal, or refused in one sentence.

Files of the user's own (models, tokenizers, data, YAML) have no digest. For those it is only required that whatever
they hold gives something or one sentence.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
import attrim.report.drawing
from attrim.commands.parsing import _read_yaml
from attrim.commands.study import command_of
from attrim.core import record
from attrim.core.site import Site
from attrim.edits.saving import load_edits, save_edits
from attrim.errors import AttrimError
from attrim.models.loading import load_model, load_tokenizer, saved_kind
from attrim.probing.probe import SequenceProbe, load_probe, save_probe
from attrim.runs.run import Run
from attrim.scores.base import Scores
from attrim.stats import Histogram, Mean, Moments, Sample
from attrim.stats.bundle import Stats
from attrim.stats.origin import Fingerprint, Origin
from attrim.stats.resume import Checkpoint
from attrim.studies.findings import findings
from attrim.studies.sparsity import Sparsity
from attrim.tasks import load_task
from attrim.tasks.reading import csv_column, json_lines, tsv_rows
from attrim.training.checkpoint import Checkpoints
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe
from baked_models import ANIMALS, baked_of
from damage import damage
from fuzz.scale import SEED, share, tried
from nets import Net, epochs, loss
from watching import output_of
from zoo import batch


@dataclass(frozen=True)
class Target:
    """One kind of folder.

    Attributes
    ----------
    make : fills a folder.
    read : what is read from it, to be compared; None says that it would be made again.
    exact : whether what is read from a damaged folder must be equal to what was written.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    exact: bool = True


def make_stats(folder: Path) -> None:
    weights = torch.softmax(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), -1)
    stats = [Histogram(), Mean(), Moments(), Sample(count=2)]
    for stat in stats:
        stat.update(weights)
    Stats(stats, Origin("bert", data=Fingerprint(2, f"{7:032x}"), attention={"a": "b"})).save(folder)


def read_stats(folder: Path) -> Any:
    stats = Stats.load(folder)
    return stats.origin, {name: stat.state() for name, stat in stats.items()}


def make_unfinished(folder: Path) -> None:
    stat = Mean()
    stat.update(torch.full((1, 2, 3, 3), 0.5))
    Checkpoint(folder, identity={"task": "x"}).passed([stat], Origin("bert"), batches=3, now=True)


def read_unfinished(folder: Path) -> Any:
    stat = Mean()
    batches, data = Checkpoint(folder, identity={"task": "x"}).resume([stat], Origin("bert"))
    return (batches, data, stat.state()) if batches else None


def make_edits(folder: Path) -> None:
    constant = attrim.Constant({"a": torch.eye(3).expand(2, 3, 3)}, heads=[("a", 0), ("a", 1)])
    save_edits([attrim.Threshold(0.1), attrim.Gate(torch.tensor([1.0, 0.5])), constant], folder)


def read_edits(folder: Path) -> Any:
    return [(type(edit).__name__, vars(edit)) for edit in load_edits(folder)]


def make_baked(folder: Path) -> None:
    baked_of("bert")[1].save_pretrained(folder)


def read_baked(folder: Path) -> Any:
    # Without its sidecar it is not a baked model any more, and stock code refuses its weights.
    model = attrim.load(folder)
    load_model(folder, "sequence-classification")
    with torch.no_grad():
        return output_of(model(**batch(ANIMALS["bert"], (7, 4))))


def make_probe(folder: Path) -> None:
    torch.manual_seed(0)
    save_probe(SequenceProbe(2, 5, 8, 2), folder, {"epochs": [{"accuracy": 50.0}]})


def read_probe(folder: Path) -> Any:
    probe, about = load_probe(folder)
    return dict(probe.state_dict()), probe.options(), about


def make_scores(folder: Path) -> None:
    sites = [Site("a", "encoder", 0, 2), Site("b", "encoder", 1, 2)]
    values = {"a": torch.tensor([0.1, 0.2]), "b": torch.tensor([0.3, -0.1])}
    with Run.open(folder, {"study": "constant"}) as run:
        run.write("orders/one.json", Scores(values, sites, "gradient", {"seed": 1}).to_json())


def read_scores(folder: Path) -> Any:
    [path] = folder.iterdir()
    with Run.read(path) as run:
        if not (path / "orders" / "one.json").exists():
            return None
        scores = Scores.from_json(run.read_json("orders/one.json"))
        return scores.values, scores.order()


def trained(folder: Path | None = None) -> Loop:
    torch.manual_seed(0)
    recipe = Recipe(steps=4, learning_rate=1e-2, checkpoint_every=2)
    return Loop(Net(), epochs, recipe, loss=loss, folder=folder)


def make_training(folder: Path) -> None:
    trained(folder).run()


def read_training(folder: Path) -> Any:
    if Checkpoints(folder).latest() is None:
        return None
    loop = trained(folder)
    loop.run()
    return loop.done, dict(loop.model.named_parameters())


def make_study(folder: Path) -> None:
    data = folder / "squad.json"
    make_squad(data)
    options = {"bars": (0.05,), "methods": ("linear-slog-clamped-midval",), "bits": (3,), "formats": ("png",)}
    shared = {"model": "tiny-bert", "task": "retrieval", "data": str(data), "option": ("paragraphs=6",), "limit": 8}
    command_of(Sparsity)(**shared, **options, parts=("distances",), output=folder / "runs").run()
    data.unlink()


def read_study(folder: Path) -> Any:
    [run] = (folder / "runs").iterdir()
    found = findings(run)
    with Run.read(run) as opened:
        return found, opened.metrics(), [table.rows for table in found.tables()]


def make_model(folder: Path) -> None:
    load_model("tiny-bert", "sequence-classification").save_pretrained(folder)
    load_tokenizer("tiny-bert").save_pretrained(folder)


def read_model(folder: Path) -> Any:
    load_tokenizer(folder)
    return load_model(folder, saved_kind(folder))


def make_squad(path: Path) -> None:
    import json

    paragraphs = [
        {"context": f"text {i} of {7 * i} words", "qas": [_question(i, j) for j in range(2)]} for i in range(6)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def _question(i: int, j: int) -> dict[str, Any]:
    return {"question": f"which {i} {j}", "id": f"{i}{j}", "answers": [{"text": "text", "answer_start": 0}]}


def make_data(folder: Path) -> None:
    make_squad(folder / "dev-v1.1.json")
    (folder / "lines.jsonl").write_text('{"text": "a b", "label": 1}\n{"text": "c", "label": 0}\n')
    (folder / "rows.csv").write_text('text,label\n"a, b",1\nc,0\n')
    (folder / "dev.tsv").write_text("sentence\tlabel\na b\t1\nc\t0\n")


def read_data(folder: Path) -> Any:
    texts = [
        load_task("squad", data=str(folder)).examples,
        load_task("squad-paragraphs", data=str(folder)).examples,
        load_task("retrieval", data=str(folder), paragraphs=2).examples,
        load_task("glue/sst2", data=str(folder)).examples,
        lambda: json_lines(folder / "lines.jsonl"),
        lambda: csv_column(folder / "rows.csv", "text"),
        lambda: tsv_rows(folder / "dev.tsv"),
    ]
    return [outcome(lambda text=text: list(text())) for text in texts]


def outcome(read: Callable[[], Any]) -> Any:
    """What was read; a sentence where it is refused."""
    try:
        return read()
    except AttrimError as error:
        return str(error)


def make_yaml(folder: Path) -> None:
    text = "model: tiny-bert\ntask: &t retrieval\nbars: [1e-3, 0.1]\nbits: [3, 4]\nx: *t\n"
    (folder / "config.yaml").write_text(text)


TARGETS = {
    "stats": Target(make_stats, read_stats),
    "unfinished": Target(make_unfinished, read_unfinished),
    "edits": Target(make_edits, read_edits),
    "baked": Target(make_baked, read_baked),
    "probe": Target(make_probe, read_probe),
    "scores": Target(make_scores, read_scores),
    "training": Target(make_training, read_training),
    "study": Target(make_study, read_study),
    "model": Target(make_model, read_model, exact=False),
    "data": Target(make_data, read_data, exact=False),
    "yaml": Target(make_yaml, lambda folder: _read_yaml(folder / "config.yaml"), exact=False),
}


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The figures have their own tests.
    monkeypatch.setattr(attrim.report.drawing, "WORTH", 10**6)
    monkeypatch.setattr(attrim.report.drawing.Drawing, "finish", lambda *_: [])
    target, whole, broken = TARGETS[name], tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    target.make(whole)
    shutil.copytree(whole, broken)  # also where a path is part of what is read
    expected = target.read(broken)
    assert expected is not None
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.name != ".lock")
    sentences: list[str] = []
    remade = 0
    for case in range(SEED, SEED + share("files") // len(TARGETS)):
        tried["files"] += 1
        shutil.rmtree(broken)
        shutil.copytree(whole, broken)
        path = files[case % len(files)]
        said = f"case {case}: {path}, {damage(broken / path, case)}"
        try:
            found = target.read(broken)
        except AttrimError as error:
            sentences.append(str(error))
        except Exception as error:
            raise AssertionError(said) from error
        else:
            remade += found is None
            assert found is None or not target.exact or record.same(found, expected), said
    assert sentences or remade or not target.exact
    assert not [sentence for sentence in sentences if "\n" in sentence]
