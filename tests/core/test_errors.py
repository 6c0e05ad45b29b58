"""What a sentence for a user shows of long names and long lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from attrim.edits.saving import STORE
from attrim.errors import SENTENCE, UnknownName, listed, one_line

MANY = [f"known-name-{number}" for number in range(60)]


def test_a_list_is_cut_between_names() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == ""
    assert listed(["one", "two", "three"], 8) == "one, two and 1 more"
    assert listed(["longer than that", "two"], 8) == "longer than that and 1 more"
    assert len(listed(MANY)) <= 150 + len(" and 60 more")


@pytest.mark.parametrize("length", [1, 40, 90])
@pytest.mark.parametrize("kind", ["edit", "field of the edit 'hidden-quantize' in a long chain of other edits"])
def test_an_unknown_name_stays_whole(kind: str, length: int) -> None:
    name = "%" * length
    text = one_line(str(UnknownName(kind, name, MANY)))
    assert len(text) <= SENTENCE
    assert f"named '{name}'; known are known-name-0, " in text
    assert text.endswith(" more.")


def test_an_unknown_name_in_a_damaged_file_stays_whole() -> None:
    """However long the path is that the sentence names first."""
    folder = Path("/somewhere") / ("deep" * 15) / ("down" * 15) / "edits"
    error = STORE.damaged(folder, str(UnknownName("edit", "not-an-edit-of-any-attrim", MANY)))
    text = one_line(str(error))
    assert len(text) <= SENTENCE
    assert "no edit named 'not-an-edit-of-any-attrim'; known are" in text
    assert "'/somewhere" in text
    assert str(STORE.damaged(folder, "it is short")).count(str(folder)) == 1
