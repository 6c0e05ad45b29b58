"""Contexts that overlap, are left in any order or by another thread, on models that come and go."""

from __future__ import annotations

import copy
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attrim.attention.context import attach, edit
from attrim.attention.discover import find_sites
from attrim.attention.install import NAME, switched
from attrim.attention.session import active_sessions
from attrim.errors import ParameterError, SiteError
from watching import Keep, Scale, eager, output_of
from zoo import ZOO, Animal, batch

BY_NAME = {animal.name: animal for animal in ZOO}
ROUTES = ["bert", "deberta"]  # one on the attention interface, one with a private softmax


def result(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return output_of(model(**inputs)).clone()


def edited(animal: Animal, *edits: Scale) -> Tensor:
    """What a model of its own gives with these edits, nothing else being active."""
    model = eager(animal.build())
    with edit(model, *edits):
        return result(model, batch(animal))


@pytest.mark.parametrize("name", ROUTES)
def test_contexts_may_be_left_in_the_order_they_were_entered(name: str) -> None:
    animal = BY_NAME[name]
    inputs, plain = batch(animal), result(eager(animal.build()), batch(animal))
    both, second = edited(animal, Scale(0.5), Scale(0.25)), edited(animal, Scale(0.25))
    model = eager(animal.build())
    one, other = edit(model, Scale(0.5)), edit(model, Scale(0.25))
    one.__enter__()
    other.__enter__()
    torch.testing.assert_close(result(model, inputs), both)
    one.__exit__(None, None, None)
    torch.testing.assert_close(result(model, inputs), second)
    other.__exit__(None, None, None)
    assert not active_sessions()
    torch.testing.assert_close(result(model, inputs), plain)


def test_an_edit_does_not_reach_a_model_that_was_built_where_a_freed_one_was() -> None:
    """The modules of freed models leave their addresses to those of new ones, which may be anywhere in the model."""
    animal = BY_NAME["bert"]
    plain = result(eager(animal.build()), batch(animal))
    model = eager(animal.build())
    one, other = edit(model, Scale(0.0), strict=False), edit(model, Scale(0.5), strict=False)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    del model, one, other
    for _ in range(8):
        gc.collect()
        fresh = eager(animal.build())
        with attach(fresh, stats=[Keep()]):
            torch.testing.assert_close(result(fresh, batch(animal)), plain)


class Attends(nn.Module):
    """A plain module that attends a number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, states: Tensor) -> Tensor:
        for _ in range(self.times):
            states = torch.softmax(states @ states.transpose(-2, -1), dim=-1) @ states
        return states


def test_a_module_that_takes_the_place_of_a_freed_one_is_found_anew() -> None:
    """The layout of a model is compared by its modules themselves; their addresses may be the same by chance."""
    model, states = nn.Sequential(Attends(1)), torch.rand(1, 1, 3, 4)
    for _ in range(1000):
        model[0] = Attends(1)
        assert len(find_sites(model, states)) == 1
        address = id(model[0])
        model[0] = nn.Identity()
        model[0] = Attends(2)
        if id(model[0]) == address:
            break
    else:
        pytest.skip("No address was used twice.")
    with pytest.raises(SiteError, match="pass example="):  # what is known of the old module does not answer
        find_sites(model)
    assert len(find_sites(model, states)) == 2


@pytest.mark.parametrize("name", ROUTES)
def test_a_generator_holds_a_context_open(name: str) -> None:
    animal = BY_NAME[name]
    model, inputs = eager(animal.build()), batch(animal)
    plain, changed = result(model, inputs), edited(animal, Scale(0.5))

    def held() -> Iterator[None]:
        with edit(model, Scale(0.5)):
            yield
            yield

    for leave in (list, lambda generator: generator.close(), lambda generator: None):
        generator = held()
        next(generator)
        torch.testing.assert_close(result(model, inputs), changed)
        leave(generator)  # type: ignore[operator]
        del generator
        gc.collect()
        torch.testing.assert_close(result(model, inputs), plain)
        assert not active_sessions()


@pytest.mark.parametrize("name", ROUTES)
def test_a_context_that_another_thread_leaves_is_over(name: str) -> None:
    """Garbage collection finishes forgotten generators in whatever thread it happens to run."""
    animal = BY_NAME[name]
    model, inputs = eager(animal.build()), batch(animal)
    plain = result(model, inputs)
    context = edit(model, Scale(0.5))
    context.__enter__()
    result(model, inputs)
    errors: list[Exception] = []

    def leave() -> None:
        try:
            context.__exit__(None, None, None)
        except Exception as error:
            errors.append(error)

    in_threads([leave])
    assert not errors
    assert not active_sessions()
    assert "forward" not in model.__dict__
    torch.testing.assert_close(result(model, inputs), plain)


def test_a_context_that_is_dropped_is_over() -> None:
    model = eager(BY_NAME["bert"].build())
    edit(model, Scale(0.5)).__enter__()
    gc.collect()
    assert not active_sessions()
    assert "forward" not in model.__dict__
    assert model.config._attn_implementation == "eager"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ROUTES)
def test_one_context_object_is_entered_again(name: str) -> None:
    animal = BY_NAME[name]
    model, inputs = eager(animal.build()), batch(animal)
    plain, changed = result(model, inputs), edited(animal, Scale(0.5))
    context = edit(model, *[Scale(0.5)])
    for _ in range(3):
        with context as sites:
            assert sites == find_sites(model)
            torch.testing.assert_close(result(model, inputs), changed)
        torch.testing.assert_close(result(model, inputs), plain)
    with context:
        with pytest.raises(ParameterError, match="active already; make another one"):
            context.__enter__()
        torch.testing.assert_close(result(model, inputs), changed)
    torch.testing.assert_close(result(model, inputs), plain)


def test_a_context_decorates_a_function_that_calls_itself() -> None:
    animal = BY_NAME["bert"]
    model, inputs = eager(animal.build()), batch(animal)

    @edit(model, Scale(0.5))
    def run(deeper: bool) -> Tensor:
        return run(False) if deeper else result(model, inputs)

    torch.testing.assert_close(run(False), edited(animal, Scale(0.5)))
    torch.testing.assert_close(run(True), edited(animal, Scale(0.5), Scale(0.5)))


def test_a_mask_that_is_changed_in_place_is_read_again() -> None:
    """In inference mode too, where tensors do not count their changes."""
    animal = BY_NAME["bert"]
    model, inputs = eager(animal.build()), batch(animal)
    length = inputs["input_ids"].shape[1]
    with torch.inference_mode(), attach(model, stats=[keep := Keep()]):
        mask = torch.zeros(len(inputs["input_ids"]), 1, length, length)
        for forbidden in (0, 1, 2):
            mask[..., length - forbidden :] = torch.finfo(torch.float32).min
            model(input_ids=inputs["input_ids"], attention_mask=mask)
            assert all(int(call.allowed[0, 0, 0].sum()) == length - forbidden for call in keep.calls.values())


def in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Stress:
    """Random work on models that are shared, made and freed; every result is compared with the one expected."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.animals = [BY_NAME[name] for name in ROUTES]
        # New models are copies, because building one sets the random seed, which all threads share.
        self.shared, self.patterns = ([eager(animal.build()) for animal in self.animals] for _ in range(2))
        self.inputs = [batch(animal) for animal in self.animals]
        self.factors = (0.0, 0.5, 1.5)
        self.expected: dict[tuple[int, tuple[float, ...]], Tensor] = {}
        for place, animal in enumerate(self.animals):
            self.expected[place, ()] = result(self.shared[place], self.inputs[place])
            for factor in self.factors:
                self.expected[place, (factor,)] = edited(animal, Scale(factor))
                for after in self.factors:
                    self.expected[place, (factor, after)] = edited(animal, Scale(factor), Scale(after))
        self.wrong: list[str] = []
        self.rounds = 0

    def work(self, seed: int) -> None:
        """Random rounds until the time is over; the first error or wrong result ends them for all threads."""
        chance = random.Random(seed)
        while time.monotonic() < self.until and not self.wrong:
            what = chance.choice([self.fails, self.overlaps, self.generates, self.elsewhere, self.plain])
            place = chance.randrange(len(self.animals))
            model = self.shared[place] if chance.random() < 0.6 else copy.deepcopy(self.patterns[place])
            try:
                what(model, place, chance)
                if active_sessions():
                    self.wrong.append(f"{what.__name__} left {len(active_sessions())} sessions")
            except Exception as error:
                self.wrong.append(f"{what.__name__} on {self.animals[place]}: {type(error).__name__}: {error}")
            del model
            if chance.random() < 0.2:
                gc.collect()
            self.rounds += 1

    def check(self, model: nn.Module, place: int, *factors: float) -> None:
        found, expected = result(model, self.inputs[place]), self.expected[place, factors]
        if not torch.allclose(found, expected, atol=1e-5):
            self.wrong.append(f"{self.animals[place]} with {factors} differs by {(found - expected).abs().max()}")

    def contexts(self, model: nn.Module, chance: random.Random, count: int) -> list[tuple[float, Any]]:
        return [(factor, edit(model, Scale(factor), strict=False)) for factor in chance.choices(self.factors, k=count)]

    def plain(self, model: nn.Module, place: int, chance: random.Random) -> None:
        self.check(model, place)

    def fails(self, model: nn.Module, place: int, chance: random.Random) -> None:
        [(factor, context)] = self.contexts(model, chance, 1)
        with suppress(IndexError), context:
            result(model, {**self.inputs[place], "input_ids": self.inputs[place]["input_ids"] + 10**6})
        with context:
            self.check(model, place, factor)

    def overlaps(self, model: nn.Module, place: int, chance: random.Random) -> None:
        (first, one), (second, other) = self.contexts(model, chance, 2)
        one.__enter__()
        other.__enter__()
        self.check(model, place, first, second)
        if chance.random() < 0.5:
            one.__exit__(None, None, None)
            self.check(model, place, second)
            other.__exit__(None, None, None)
        else:
            other.__exit__(None, None, None)
            self.check(model, place, first)
            one.__exit__(None, None, None)

    def generates(self, model: nn.Module, place: int, chance: random.Random) -> None:
        def held(context: AbstractContextManager[Any]) -> Iterator[None]:
            with context:
                yield

        pairs = self.contexts(model, chance, 2)
        generators = [held(context) for _, context in pairs]
        for generator in generators:
            next(generator)
        self.check(model, place, *(factor for factor, _ in pairs))
        if chance.random() < 0.5:  # forgotten, as a cycle that only garbage collection finds
            generators.append(generators)  # type: ignore[arg-type]
            del pairs, generator, generators
            late = time.monotonic() + 20
            while active_sessions() and time.monotonic() < late:
                gc.collect()  # does nothing while another thread collects
            return
        chance.shuffle(generators)
        for generator in generators:
            generator.close()

    def elsewhere(self, model: nn.Module, place: int, chance: random.Random) -> None:
        [(factor, context)] = self.contexts(model, chance, 1)
        context.__enter__()
        self.check(model, place, factor)
        in_threads([lambda: context.__exit__(None, None, None)])
        self.check(model, place)


def stress(seconds: float) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stress = Stress(seconds)
        in_threads([lambda seed=seed: stress.work(seed) for seed in range(4)])  # type: ignore[misc]
        assert not stress.wrong
        assert stress.rounds > seconds
        for place, model in enumerate(stress.shared):
            stress.check(model, place)
            assert not any("forward" in module.__dict__ for module in model.modules())
            assert getattr(model.config, "_attn_implementation", None) != NAME
        gc.collect()
        assert not stress.wrong
        assert switched() == 0
    finally:
        torch.set_num_threads(threads)


def test_threads_generators_and_freed_models_do_not_disturb_each_other() -> None:
    stress(3)


@pytest.mark.slow
def test_threads_generators_and_freed_models_do_not_disturb_each_other_for_long() -> None:
    stress(90)
