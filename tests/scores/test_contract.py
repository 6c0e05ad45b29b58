"""What every score must keep, whatever it measures: each form of each score goes through all of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from attrim.attention.discover import find_sites
from attrim.core import registry
from attrim.core.site import Site
from attrim.errors import ParameterError, SelectionError
from attrim.probing.probe import make_probe
from attrim.probing.probed import Probed
from attrim.scores.base import Score, ScoreInputs, Scores
from attrim.scores.gradient import Gradient
from methods import SCORES
from probed_models import LENGTH, TOKENIZER, backbone, sentences

every_score = pytest.mark.parametrize("score", SCORES)


def inputs(score: Score, folder: Path) -> dict[str, Any]:
    """Everything a score may need, for a tiny model: with a probe, unless the score trains one itself."""
    task, model = sentences(folder), backbone()
    constants = {site.name: torch.rand(site.heads, LENGTH, LENGTH) for site in find_sites(model)}
    probed = Probed(model, make_probe(model, task)).eval()
    batches = list(task.train_batches(TOKENIZER, probed))
    scored = model if "task" in score.needs else probed
    return {"model": scored, "batches": batches, "constants": constants, "task": task, "tokenizer": TOKENIZER}


def test_every_registered_score_is_in_the_list() -> None:
    assert {parameter.values[0].registered_name for parameter in SCORES} == set(registry.SCORES)


@every_score
def test_every_head_gets_a_number_and_the_result_says_how(score: Score, tmp_path: Path) -> None:
    given = inputs(score, tmp_path)
    scores = score(**given)
    assert scores.sites == tuple(find_sites(given["model"]))
    assert scores.scope == score.scope
    examples = [40] if score.scope == "example" else []
    assert list(scores.table().shape) == [*examples, 2, 4]
    assert scores.name == score.registered_name
    assert {name: scores.options.get(name) for name in score.choices()} == {
        name: getattr(score, name) for name in score.choices()
    }
    again = Scores.from_json(json.loads(json.dumps(scores.to_json())))
    assert again.options == scores.options
    assert torch.equal(again.table(), scores.table())


@every_score
def test_what_a_score_needs_and_does_not_get_is_named(score: Score, tmp_path: Path) -> None:
    given = inputs(score, tmp_path)
    for need in score.needs:
        with pytest.raises(ParameterError, match=rf"{score.registered_name!r} needs .*; give {need}="):
            score(**{**given, need: None})


@every_score
def test_what_a_score_cannot_do_is_refused(score: Score) -> None:
    for name, known in score.choices().items():
        with pytest.raises(ParameterError, match=rf"{score.registered_name!r} cannot have {name}='everything'"):
            type(score)(**{name: "everything"})
        for one in known:
            assert getattr(type(score)(**{name: one}), name) == one


def test_examples_are_reduced_as_the_score_itself_does(tmp_path: Path) -> None:
    given = inputs(Gradient(), tmp_path)
    for reduction in ("mean", "sum"):
        each = Gradient(scope="example", reduction=reduction)(**given)
        whole = Gradient(reduction=reduction)(**given)
        torch.testing.assert_close(each.over_examples().table(), whole.table(), rtol=1e-10, atol=0)
        assert each.over_examples().options == whole.options
    assert torch.equal(each.of_example(5).table(), each.table()[5])
    with pytest.raises(SelectionError, match=r"of_example\(number\)"):
        each.order()
    with pytest.raises(SelectionError, match="scope='example'"):
        whole.of_example(0)


def test_a_target_may_be_a_number() -> None:
    class Numbered(Score):
        registered_name: ClassVar[str] = "numbered"
        targets = ("predicted", "id")

    assert Numbered().target == "predicted"
    assert Numbered(target=3).target == 3
    with pytest.raises(ParameterError, match="cannot have target='label'; it can have predicted, id"):
        Numbered(target="label")


def test_the_sign_decides_which_head_comes_first() -> None:
    class Uselessness(Score):
        """Large for heads that do nothing."""

        registered_name: ClassVar[str] = "uselessness"
        needs = frozenset()
        large_is_important = False

        def compute(self, given: ScoreInputs) -> Scores:
            return self.scores({"a": torch.tensor([1.0, 3.0, 2.0])}, [Site("a", "encoder", 0, 3)])

    scores = Uselessness()(torch.nn.Identity())
    assert scores.order() == [("a", 1), ("a", 2), ("a", 0)]
    assert Scores.from_json(scores.to_json()).order() == scores.order()
