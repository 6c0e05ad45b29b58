from __future__ import annotations

import pytest
import torch

from attrim.core.call import Call
from attrim.core.site import Site
from attrim.scores.confidence import Confidence, RowMaxima
from zoo import HEADED, batch


def test_the_largest_weight_of_each_row_without_the_end() -> None:
    weights = torch.tensor([[[[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.7, 0.0], [0.0, 0.1, 0.9, 0.0], [1.0, 0.0, 0.0, 0.0]]]])
    mask = torch.tensor([[1, 1, 1, 0]])
    expected = {True: (0.5 + 0.2) / 2, False: (0.5 + 0.7 + 0.9) / 3}
    for skip_end, mean in expected.items():
        maxima = RowMaxima(skip_end)
        call = Call.plain(weights, mask, Site("a", "encoder", 0, 1))
        assert maxima.edit_weights(weights, call) is weights
        assert maxima.means["a"].item() == pytest.approx(mean)
    call = Call.plain(weights, mask, Site("a", "vision", 0, 1))
    maxima = RowMaxima()
    maxima.edit_weights(weights, call)  # regions have no end
    assert maxima.means["a"].item() == pytest.approx(expected[False])


def test_it_is_that_of_the_stock_model_for_each_text() -> None:
    model, lengths = HEADED[0].build(), (7, 4, 6)
    inputs = batch(HEADED[0], lengths)
    together = Confidence(scope="example")(model, [inputs])
    model.set_attn_implementation("eager")
    for number, length in enumerate(lengths):
        one = {name: tensor[number : number + 1, :length] for name, tensor in inputs.items()}
        attentions = model(**one, output_attentions=True).attentions
        for site in together.sites:
            expected = attentions[site.layer][0, :, :-1, :-1].amax(-1).mean(-1).double()
            torch.testing.assert_close(together.values[site.name][number], expected, rtol=1e-4, atol=1e-6)
    assert 0 < together.table().min() < together.table().max() <= 1
