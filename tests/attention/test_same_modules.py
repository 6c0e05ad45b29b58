"""Whether a model has the modules that it had: the compiled comparison against the plain one."""

import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attrim.attention.discover import LEAVES, all_modules
from attrim.kernels import team

if not team.available():
    pytest.skip("there are no compiled functions here", allow_module_level=True)

from attrim.kernels import _compiled


def references(model: nn.Module) -> tuple[weakref.ReferenceType[nn.Module] | None, ...]:
    return tuple(None if module is None else weakref.ref(module) for module in all_modules(model))


def plain(model: nn.Module, known: tuple[weakref.ReferenceType[nn.Module] | None, ...]) -> bool:
    return [None if one is None else one() for one in known] == all_modules(model)


def tree(shape: Any, shared: nn.Module) -> nn.Module:
    """A module whose children are given as a list: None, a shared module, or other lists."""
    made = nn.Module()
    for number, child in enumerate(shape):
        made._modules[str(number)] = None if child is None else shared if child == "shared" else tree(child, shared)
    return made


shapes = st.recursive(st.lists(st.sampled_from([None, "shared"]), max_size=2), lambda own: st.lists(own, max_size=4))


@settings(max_examples=60, deadline=None)
@given(shape=shapes, change=st.sampled_from(["nothing", "add", "remove", "replace", "leave out"]), data=st.data())
def test_changes_are_seen_as_the_plain_comparison_sees_them(shape: Any, change: str, data: st.DataObject) -> None:
    model = tree(shape, nn.Linear(1, 1))
    known = references(model)
    modules = [module for module in all_modules(model) if module is not None]
    place = data.draw(st.sampled_from(modules))
    if change == "add":
        place._modules["new"] = nn.Identity()
    elif place._modules and change != "nothing":
        name = data.draw(st.sampled_from(sorted(place._modules)))
        if change == "remove":
            del place._modules[name]
        else:
            place._modules[name] = nn.Identity() if change == "replace" else None
    assert _compiled.same_modules(model, known, LEAVES) is plain(model, known)
    assert _compiled.same_modules(model, references(model), LEAVES)


def test_a_module_that_was_freed_is_not_the_one_in_its_place() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    known = references(model)
    del model[0]
    model.insert(0, nn.Linear(2, 2))
    assert not _compiled.same_modules(model, known, LEAVES)


@pytest.mark.parametrize("wrong", [(), (1,), (nn.Identity(), [], LEAVES), (nn.Identity(), (), [])])
def test_wrong_arguments_are_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _compiled.same_modules(*wrong)
