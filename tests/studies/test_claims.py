"""The verdicts of the sparsity study, from made-up results."""

from __future__ import annotations

import numpy as np
import pytest

from attrim.evaluation import UNEDITED
from attrim.runs.result import Interval, Result
from attrim.studies.findings import Setting
from attrim.studies.sparsity.claims import FEWEST, claims, examples_needed, judge, relative_loss, renormalising

LOG = "quantize:linear-slog-clamped-midval,bits=3"
SETTINGS = [
    Setting("threshold:0.005", "threshold", 0.005, ()),
    Setting("threshold:0.01", "threshold", 0.01, ()),
    Setting(LOG, "linear-slog-clamped-midval", 3, ()),
    Setting("random-drop:0.79", "random drop", 0.79, ()),
]


def result(score: float, share: float = 0.0, change: tuple[float, float] | None = None, examples: int = 5000) -> Result:
    nothing = np.zeros(examples)
    changes = {} if change is None else {"accuracy": Interval(score - 80.0, *change)}
    return Result({"accuracy": score}, share, {"hit": nothing}, nothing, nothing, changes)


def results(**changed: Result) -> dict[str, Result]:
    made = {
        UNEDITED: result(80.0),
        "threshold:0.005": result(79.6, 0.79, (-0.7, -0.1)),
        "threshold:0.01": result(70.0, 0.9, (-12.0, -8.0)),
        LOG: result(78.0, 0.45, (-2.4, -1.6)),
        "random-drop:0.79": result(60.0, 0.79, (-22.0, -18.0)),
    }
    return made | {name.replace("threshold", "threshold:0.005"): value for name, value in changed.items()}


def test_the_threshold_nearest_to_80_per_cent_is_judged() -> None:
    zeros, log = claims(SETTINGS, results(), "accuracy", False)
    assert (zeros.verdict, zeros.setting) == ("confirmed", "threshold:0.005")  # at most 0.7 / 80 = 0.875 % is lost
    assert (log.verdict, log.setting) == ("refuted", LOG)  # at least 1.6 / 80 = 2 % is lost
    assert "79.0 %" in zeros.sentence
    assert "random loses 25.00 % (22.50 to 27.50)" in zeros.sentence
    assert "5000 examples" in log.sentence


def test_a_score_that_controls_do_not_change_is_called_so() -> None:
    settings = [*SETTINGS, Setting("gate:0", "control", 0, (), "attention off")]
    off = result(79.9, 1.0, (-0.2, 0.0))
    zeros, _ = claims(settings, results() | {"gate:0": off}, "accuracy", False)
    assert zeros.verdict == "confirmed"
    assert "switching attention off loses 0.12 % (0.00 to 0.25), so this score does not show" in zeros.sentence
    assert "at random loses 25.00 % (22.50 to 27.50);" in zeros.sentence


def test_an_interval_across_the_bar_decides_nothing() -> None:
    zeros, _ = claims(SETTINGS, results(threshold=result(79.6, 0.79, (-0.9, 0.1))), "accuracy", False)
    assert zeros.verdict == "open"


def test_no_change_in_few_examples_confirms_nothing() -> None:
    """A bootstrap of unchanged examples has no width; one bad example in fifty may still not have been drawn."""
    few = {
        name: result(80.0, one.zero_share, (0.0, 0.0) if one.changes else None, 50) for name, one in results().items()
    }
    zeros, _ = claims(SETTINGS, few, "accuracy", False)
    assert zeros.verdict == "open"
    assert zeros.loss is not None
    assert zeros.loss.high == pytest.approx(100 / 80 * 100 * (1 - 0.05 ** (1 / 50)))


def few(examples: int, change: tuple[float, float] = (3.0, 3.0)) -> dict[str, Result]:
    """Perplexities of a few examples: bootstrap intervals without any width."""
    return {
        name: result(83.0 if one.changes else 80.0, one.zero_share, change if one.changes else None, examples)
        for name, one in results().items()
    }


@pytest.mark.parametrize("smaller_is_better", [True, False])
@pytest.mark.parametrize("examples", [1, 2, 3, FEWEST - 1])
@pytest.mark.parametrize("change", [(3.0, 3.0), (-3.0, -3.0), (0.0, 0.0)])
def test_few_examples_decide_nothing_in_either_direction(
    change: tuple[float, float], examples: int, smaller_is_better: bool
) -> None:
    for claim in claims(SETTINGS, few(examples, change), "accuracy", smaller_is_better):
        assert claim.verdict == "open"
        assert claim.examples == examples
        assert claim.needed is not None
        assert claim.needed >= FEWEST
        assert f"at least {claim.needed} are needed" in claim.sentence
        assert "interval" not in claim.sentence
        assert ("1 example is too few" if examples == 1 else f"{examples} examples are too few") in claim.sentence


def test_more_examples_decide_in_both_directions() -> None:
    refuted, _ = claims(SETTINGS, few(FEWEST), "accuracy", smaller_is_better=True)
    assert (refuted.verdict, refuted.needed) == ("refuted", None)
    confirmed, _ = claims(SETTINGS, few(FEWEST, (-4.0, -3.0)), "accuracy", smaller_is_better=True)
    assert (confirmed.verdict, confirmed.needed) == ("confirmed", None)


def test_how_many_examples_would_decide() -> None:
    # Half of the interval is 1 and the bar 0.5 away, so it must be half as wide: four times the examples.
    assert examples_needed(Interval(0.5, -0.5, 1.5), 200, None) == 800
    assert examples_needed(Interval(1.5, 0.5, 2.5), 200, None) == 800
    assert examples_needed(Interval(1.0, 0.5, 1.5), 200, None) is None
    # No change at all, but 1 % of a score of 80 is 0.8 % of the examples: three over that, by the rule of three.
    assert examples_needed(Interval(0.0, 0.0, 1.5), 200, 80.0) == 380
    zeros, _ = claims(SETTINGS, results(threshold=result(79.6, 0.79, (-0.9, 0.1))), "accuracy", False)
    assert zeros.needed is not None
    assert f"; about {zeros.needed} examples would decide; dropping" in zeros.sentence


def test_few_examples_say_nothing_about_renormalising() -> None:
    found = {name: result(one.metrics["accuracy"], 0.5, (0.0, 1.0) if one.changes else None, 3)
             for name, one in forms((80.0, 76.0, 40.0), (80.0, 79.0, 50.0)).items()}  # fmt: skip
    judged = renormalising(FORMS, found, differences((1.0, 1.0), (2.0, 4.0), (8.0, 12.0)), "accuracy", False)
    assert judged is not None
    assert judged.verdict == "open"
    assert "3 examples are too few" in judged.sentence


def test_what_was_not_tried_is_open() -> None:
    zeros, log = claims(SETTINGS[1:2], results(), "accuracy", False)
    assert zeros.verdict == log.verdict == "open"
    assert "no threshold that was tried" in zeros.sentence
    assert "not tried with 3 bits" in log.sentence


def test_smaller_is_better_turns_the_sign() -> None:
    worse = result(84.0, 0.8, (3.0, 5.0))
    loss = relative_loss(worse, result(80.0), "accuracy", smaller_is_better=True)
    assert loss is not None
    assert (loss.value, loss.low, loss.high) == (pytest.approx(5.0), pytest.approx(3.75), pytest.approx(6.25))
    assert judge(loss) == "refuted"
    better = relative_loss(result(76.0, 0.8, (-5.0, -3.0)), result(80.0), "accuracy", smaller_is_better=True)
    assert judge(better) == "confirmed"


def test_a_score_that_is_not_positive_has_no_relative_loss() -> None:
    assert relative_loss(result(1.0, 0.8, (0.0, 2.0)), result(0.0), "accuracy", smaller_is_better=False) is None
    assert judge(None) == "open"


FORMS = [
    *(Setting(f"threshold:{bar}", "threshold", bar, ()) for bar in (0.001, 0.01, 0.1)),
    *(Setting(f"threshold:{bar},renormalize=true", "threshold, renormalised", bar, ()) for bar in (0.001, 0.01, 0.1)),
]


def forms(plain: tuple[float, ...], renormalised: tuple[float, ...]) -> dict[str, Result]:
    scores = zip(FORMS, (*plain, *renormalised), strict=True)
    narrow = {setting.name: result(score, 0.5, (score - 80.5, score - 79.5)) for setting, score in scores}
    return {UNEDITED: result(80.0), **narrow}


def differences(*ends: tuple[float, float]) -> dict[str, Interval]:
    return {one.name: Interval(sum(pair) / 2, *pair) for one, pair in zip(FORMS[3:], ends, strict=True)}


@pytest.mark.parametrize(
    ("ends", "smaller_is_better", "verdict"),
    [
        (((-1.0, 1.0), (2.0, 4.0), (8.0, 12.0)), False, "needed"),
        (((-1.0, 1.0), (2.0, 4.0), (8.0, 12.0)), True, "harmful"),
        (((-1.0, 1.0), (-4.0, -2.0), (8.0, 12.0)), False, "depends on the bar"),
        (((-1.0, 1.0), (-4.0, 2.0), (0.0, 0.0)), False, "no difference"),
    ],
)
def test_renormalising_is_judged_by_the_intervals(
    ends: tuple[tuple[float, float], ...], smaller_is_better: bool, verdict: str
) -> None:
    found = forms((80.0, 76.0, 40.0), (80.0, 79.0, 50.0))
    judged = renormalising(FORMS, found, differences(*ends), "accuracy", smaller_is_better)
    assert judged is not None
    assert judged.verdict == verdict
    assert f"Renormalising after a threshold: {verdict}" in judged.sentence


def test_the_sentence_about_renormalising_quotes_the_largest_bar_that_still_works() -> None:
    found = forms((80.0, 60.0, 20.0), (80.0, 78.0, 30.0))
    judged = renormalising(FORMS, found, differences((0.0, 0.0), (15.0, 20.0), (8.0, 12.0)), "accuracy", False)
    assert judged is not None
    assert (judged.better, judged.worse) == ((0.01, 0.1), ())
    assert "better at 2 of 3 bars and worse at none" in judged.sentence
    assert "at threshold:0.01 accuracy is 60.00 as in the paper (-20.00 [-20.50, -19.50])" in judged.sentence
    assert "and 78.00 renormalised" in judged.sentence
    assert "unedited 80.00" in judged.sentence
    assert "a difference of +17.50 [+15.00, +20.00]" in judged.sentence


def test_one_form_alone_says_nothing_about_renormalising() -> None:
    found = forms((80.0, 76.0, 40.0), (80.0, 79.0, 50.0))
    assert renormalising(FORMS[3:], found, {}, "accuracy", False) is None


def test_renormalised_thresholds_are_judged_only_where_there_are_no_others() -> None:
    both = [*SETTINGS, Setting("threshold:0.005,renormalize=true", "threshold, renormalised", 0.005, ())]
    known = results() | {"threshold:0.005,renormalize=true": result(60.0, 0.8, (-22.0, -18.0))}
    assert claims(both, known, "accuracy", False)[0].setting == "threshold:0.005"
    assert claims(both[4:], known, "accuracy", False)[0].setting == "threshold:0.005,renormalize=true"
