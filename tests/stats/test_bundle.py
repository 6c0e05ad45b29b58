from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from attrim.core.site import Select
from attrim.errors import ArtefactError, AttrimError
from attrim.stats import Histogram, Mean, Moments, Sample
from attrim.stats.bundle import INDEX, Stats, load_stats, save_stats
from attrim.stats.origin import Fingerprint, Origin
from damage import reseal

ORIGIN = Origin("bert", "abc", Select(layers=[0]), ("Threshold(0.1)",), Fingerprint(2, f"{7:032x}"), "0.1.0")


def measured(seed: int = 0, origin: Origin = ORIGIN) -> Stats:
    weights = torch.softmax(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed)), -1)
    stats = [Histogram(), Mean(), Moments(), Sample(count=2, first=2 * seed)]
    for stat in stats:
        stat.update(weights)
    return Stats(stats, origin)


def test_round_trip(tmp_path: Path) -> None:
    stats = measured()
    stats.save(tmp_path / "new" / "folder")
    loaded = Stats.load(tmp_path / "new" / "folder")
    assert loaded.origin == ORIGIN
    assert list(loaded) == ["Histogram", "Mean", "Moments", "Sample"]
    for name in stats:
        mine, theirs = stats[name].state()[0], loaded[name].state()[0]
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert len(load_stats(tmp_path / "new" / "folder")) == 4


def test_saving_again_replaces_and_leaves_no_files_behind(tmp_path: Path) -> None:
    measured(0).save(tmp_path)
    measured(1).save(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2
    assert torch.equal(
        Stats.load(tmp_path)["Mean"].matrix("plain"),  # type: ignore[attr-defined]
        measured(1)["Mean"].matrix("plain"),  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("artefact.replace_file", OSError(28, "No space left on device")),
        ("files.replace_tensors", SafetensorError("I/O error: No space left on device (os error 28)")),
    ],
)
def test_a_failed_save_keeps_the_old_stats(
    step: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(0).save(tmp_path)

    def full(path: Path, content: object) -> None:
        raise error

    monkeypatch.setattr(f"attrim.runs.{step}", full)
    with pytest.raises(ArtefactError, match="No space left"):
        measured(1).save(tmp_path)
    monkeypatch.undo()
    assert torch.equal(
        Stats.load(tmp_path)["Mean"].matrix("plain"),  # type: ignore[attr-defined]
        measured(0)["Mean"].matrix("plain"),  # type: ignore[attr-defined]
    )


def test_two_stats_of_one_class_have_two_names() -> None:
    stats = Stats([Histogram(), Histogram(rows=True)])
    assert list(stats) == ["Histogram", "Histogram-2"]
    with pytest.raises(AttrimError, match="did you mean"):
        stats["histogram"]
    assert "Mean" not in stats


def test_a_stat_is_found_by_its_class() -> None:
    stats = Stats([Histogram(), Histogram(rows=True), Mean()])
    mean: Mean = stats[Mean]
    assert mean is stats["Mean"]
    assert Mean in stats
    assert Histogram in stats
    assert Moments not in stats
    with pytest.raises(KeyError, match=r"'Moments' was not measured; what was measured is Histogram, Hi.*, Mean"):
        stats[Moments]
    with pytest.raises(
        AttrimError, match=r"2 stats of the class Histogram; .*'Histogram' .*'Histogram-2' .*'rows': True"
    ):
        stats[Histogram]


def test_merge_adds_the_data_up() -> None:
    part = dataclasses.replace(ORIGIN, data=Fingerprint(3, f"{9:032x}"))
    merged = measured(0).merge(measured(1, part))
    assert merged.origin.data == Fingerprint(5, f"{16:032x}")
    assert merged["Histogram"].total.tolist() == [[64] * 3]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "gpt2"), ("revision", "def"), ("selection", Select()), ("edits", ())],
)
def test_what_does_not_fit_is_named(field: str, value: object) -> None:
    other = dataclasses.replace(ORIGIN, data=Fingerprint(1, f"{1:032x}"), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ArtefactError, match=field):
        measured(0).merge(measured(1, other))


def test_the_same_data_twice_and_other_stats_are_refused() -> None:
    with pytest.raises(ArtefactError, match="same 2 examples"):
        measured(0).merge(measured(1))
    with pytest.raises(ArtefactError, match="Mean"):
        Stats([Mean()]).merge(Stats([Histogram()]))


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=INDEX):
        Stats.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 500, -1])
def test_truncated_tensors(tmp_path: Path, keep: int) -> None:
    measured().save(tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ArtefactError, match="measure again"):
        Stats.load(tmp_path)


def test_flipped_bit(tmp_path: Path) -> None:
    measured().save(tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtefactError, match="has changed since it was saved"):
        Stats.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1}'])
def test_damaged_index(tmp_path: Path, content: str) -> None:
    measured().save(tmp_path)
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ArtefactError):
        Stats.load(tmp_path)


def test_an_index_with_changed_fields(tmp_path: Path) -> None:
    measured().save(tmp_path)
    reseal(tmp_path / INDEX, lambda index: index["stats"][0]["fields"]["options"].update(colour="red"))
    with pytest.raises(ArtefactError, match="colour"):
        Stats.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["stats"][0]["fields"]["sites"][0].update(layer=1),
        lambda index: index["stats"][0]["fields"]["sites"][0].update(watched=[0, 2, 1]),
        lambda index: index["stats"][3]["fields"]["options"].update(count=3),
        lambda index: index["origin"]["selection"].update(layers=[1]),
        lambda index: index["stats"].reverse(),
    ],
)
def test_an_index_that_was_changed_by_hand(tmp_path: Path, change: Any) -> None:
    """None of these was noticed when only the tensors had a digest."""
    measured().save(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    change(index)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ArtefactError, match=r"stats\.json has changed since it was saved"):
        Stats.load(tmp_path)


def test_stats_of_an_older_attrim(tmp_path: Path) -> None:
    measured().save(tmp_path)
    reseal(tmp_path / INDEX, lambda index: index.update(format=1))
    with pytest.raises(ArtefactError, match=r"format 1, not 2, so another attrim wrote them; .*measure again"):
        Stats.load(tmp_path)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="choose another folder"):
        save_stats([Histogram()], tmp_path / "file")


def test_fingerprint_does_not_depend_on_batches_order_and_padding() -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    whole = Fingerprint.of({"input_ids": ids, "attention_mask": mask})
    alone = [
        Fingerprint.of({"input_ids": ids[1:, :2], "attention_mask": mask[1:, :2]}),
        Fingerprint.of({"input_ids": ids[:1], "attention_mask": mask[:1]}),
    ]
    assert alone[0] + alone[1] == whole
    assert whole.examples == 2
    assert Fingerprint.of({"input_ids": ids + 1, "attention_mask": mask}) != whole
