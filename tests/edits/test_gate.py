from __future__ import annotations

import pytest
import torch

from attrim.attention.context import attach
from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.core.site import Select, Site
from attrim.edits.gate import Gate, gate
from attrim.errors import ParameterError, ShapeError, SiteError
from attrim.stats.histogram import Histogram
from attrim.stats.rowfacts import RowCurves
from attrim.stats.zero_count import ZeroCount
from zoo import ZOO, batch

WEIGHTS = torch.softmax(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), -1)


def test_gate_is_the_factor_of_the_output() -> None:
    """Oracle 8 of spec/head-analysis.md: the gate's gradient is the sum of weights times their gradient."""
    weights = torch.tensor([[0.6, 0.4], [0.5, 0.5]])[None, None]
    value = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    upstream = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    factor = torch.ones(1, requires_grad=True)
    loss = (upstream * (Gate(factor).apply(weights) @ value)).sum()
    assert loss.item() == pytest.approx(2.75)
    (gradient,) = torch.autograd.grad(loss, factor)
    assert gradient.item() == pytest.approx(2.75)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 3)])
def test_gradcheck(shape: tuple[int, ...]) -> None:
    factors = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    weights = WEIGHTS.double().requires_grad_()
    assert torch.autograd.gradcheck(gate, (weights, factors))


def test_factors_by_head_by_example_by_site() -> None:
    by_head = torch.tensor([1.0, 0.0, 0.5])
    expected = WEIGHTS * by_head[:, None, None]
    assert torch.equal(Gate(by_head).apply(WEIGHTS), expected)
    assert torch.equal(Gate({"plain": by_head, "other": 0.0}).apply(WEIGHTS), expected)
    table = torch.stack([torch.zeros(3), by_head])
    assert torch.equal(Gate(table, sites=["other", "plain"]).apply(WEIGHTS), expected)
    assert torch.equal(
        Gate(table, sites=[Site("x", "encoder", 0, 3), Site("plain", "encoder", 1, 3)]).apply(WEIGHTS), expected
    )
    by_example = torch.rand(2, 3)
    assert torch.equal(Gate({"plain": by_example}).apply(WEIGHTS), WEIGHTS * by_example[:, :, None, None])


def test_gradient_reaches_only_the_selected_heads() -> None:
    factors = torch.ones(3, requires_grad=True)
    Gate(factors, select=Select(heads=[0, 2])).apply(WEIGHTS).square().sum().backward()
    assert factors.grad is not None
    assert (factors.grad != 0).tolist() == [True, False, True]


def test_one_leaves_weights_bit_identical_and_zero_switches_off() -> None:
    assert torch.equal(Gate(1.0).apply(WEIGHTS), WEIGHTS)
    assert (Gate(0).apply(WEIGHTS) == 0).all()


def test_half_precision_weights_keep_their_dtype() -> None:
    factors = torch.rand(3, requires_grad=True)
    after = Gate(factors).apply(WEIGHTS.bfloat16())
    assert after.dtype == torch.bfloat16
    after.sum().backward()
    assert factors.grad is not None
    assert factors.grad.dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"sites=attrim\.sites\(model\)"):
        Gate(torch.ones(6, 3))
    with pytest.raises(ShapeError, match="2 sites"):
        Gate(torch.ones(6, 3), sites=["a", "b"])
    with pytest.raises(ShapeError, match="floating point"):
        Gate(torch.ones(3, dtype=torch.int64))
    with pytest.raises(ParameterError, match="finite"):
        Gate(torch.tensor([1.0, float("inf")]))
    with pytest.raises(ParameterError, match="finite"):
        Gate(float("nan"))
    with pytest.raises(ShapeError, match="5 heads but the site has 3"):
        Gate(torch.ones(5)).apply(WEIGHTS)
    with pytest.raises(ShapeError, match="batch of 4"):
        Gate({"plain": torch.ones(4, 3)}).apply(WEIGHTS)
    with pytest.raises(SiteError, match="no factor for site 'plain'"):
        Gate({"other": 0.0}).apply(WEIGHTS)


def test_per_example_factors_work_on_some_heads() -> None:
    by_example = torch.rand(2, 3)
    call = Call.plain(WEIGHTS)
    after = Plan([(Gate({"plain": by_example}), (1,))]).edited(WEIGHTS, call)
    assert torch.equal(after[:, 1], WEIGHTS[:, 1] * by_example[:, 1, None, None])
    assert torch.equal(after[:, [0, 2]], WEIGHTS[:, [0, 2]])


def test_negative_factors_make_no_zeros() -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, zeros, histogram, curves = animal.build(), ZeroCount(), Histogram(), RowCurves()
    with torch.no_grad(), attach(model, [Gate(-1.0)], [zeros, histogram, curves]):
        model(**batch(animal))
    assert (zeros.zeros, int(histogram.zeros.sum())) == (0, 0)
    assert zeros.total == int(histogram.total.sum())
    with torch.no_grad(), attach(model, stats=[plain := RowCurves()]):
        model(**batch(animal))
    first = next(iter(plain.records))  # later sites get other inputs
    assert torch.equal(curves.of(first).tensors["counts"], plain.of(first).tensors["counts"])
