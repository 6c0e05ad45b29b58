"""The probes: the paper's formulas, what the configuration decides, and what a folder brings back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from attrim.errors import ArtefactError, DataError, ParameterError, ShapeError
from attrim.probing.backbone import PackedStates, pack, slots_of, unpack
from attrim.probing.probe import MaskedProbe, SequenceProbe, TokenProbe, dropout_of, load_probe, make_probe, save_probe
from attrim.tasks import load_task
from probed_models import LENGTH, backbone, scores, sentences, tags

# Oracle O7 of the paper's specification: two examples, two layers, four slots, width two.
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
EMBEDDED = torch.tensor([[[1, 2], [3, 4], [5, 6], [7, 8]], [[1, 1]] * 4], dtype=torch.float32)
LAYER = torch.tensor([[[2, 0], [0, 2], [1, 1], [9, 9]], [[0, 0], [4, 4], [0, 0], [0, 0]]], dtype=torch.float32)
SUMS = torch.tensor([[2.75, 3.5, 2.75, 2.75], [0.5, 0.5, 1, 1]])
POOLED = torch.tensor([[0.999967, 0.848284], [0.905148, 0]])


def oracle_probe():
    probe = SequenceProbe(layers=1, length=4, hidden=2, labels=2)
    with torch.no_grad():
        probe.pooler.weight.copy_(torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, -1]]))
        probe.pooler.bias.copy_(torch.tensor([0, 0.5]))
        probe.classifier.weight.copy_(torch.eye(2))
    return probe


@pytest.mark.parametrize("rows", [slice(0, 2), slice(0, 1), slice(1, 2)])
def test_the_sequence_probe_is_that_of_the_paper(rows):
    probe = oracle_probe()
    assert torch.equal(probe.weights, torch.full((2, 4), 0.25))
    states = (EMBEDDED[rows], LAYER[rows])
    assert torch.allclose(probe.sums(pack(states, MASK[rows])).flatten(1), SUMS[rows], atol=1e-6)
    assert torch.allclose(probe(states, MASK[rows]), POOLED[rows], atol=1e-6)
    assert torch.allclose(probe(torch.stack(states, dim=1), MASK[rows]), POOLED[rows], atol=1e-6)


def test_sizes_are_those_of_the_paper():
    probe = SequenceProbe(layers=12, length=64, hidden=768, labels=2)
    assert probe.weights.numel() == 832
    assert sum(parameter.numel() for parameter in probe.pooler.parameters()) == 7_668_480
    assert probe.pooler.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert not probe.pooler.bias.any()


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 10_000))
def test_sums_equal_the_formula_with_gradients(batch, length, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    mask[:, 0] = True
    states = torch.randn(batch, 3, length, 4, generator=generator, dtype=torch.float64)
    probe = SequenceProbe(2, length, 4, 2).double()
    with torch.no_grad():
        probe.weights.copy_(torch.randn(3, length, generator=generator))
    found = probe.sums(pack(states, mask))
    right = torch.einsum("ln,bn,blnd->bld", probe.weights, mask.double(), states)
    assert torch.allclose(found, right)
    factors = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((sums * factors).sum(), probe.weights)[0] for sums in (found, right)]
    assert torch.allclose(*gradients)


def test_the_token_probe_answers_each_token():
    probe = TokenProbe(layers=1, hidden=2, labels=3)
    states = (EMBEDDED, LAYER)
    logits = probe(states, MASK)
    inner = torch.tanh(torch.cat(states, -1) @ probe.pooler.weight.T + probe.pooler.bias)
    right = inner @ probe.classifier.weight.T + probe.classifier.bias
    assert torch.allclose(logits[MASK.bool()], right[MASK.bool()], atol=1e-6)
    assert not logits[~MASK.bool()].any()
    assert torch.equal(probe(pack(states, MASK)), logits[MASK.bool()])


def test_the_masked_probe_is_tied_and_uses_the_models_activation():
    model = backbone()
    probe = make_probe(model, load_task("masked-lm"))
    assert isinstance(probe, MaskedProbe)
    assert probe.embeddings is model.get_input_embeddings().weight
    states = tuple(torch.randn(2, 4, 32) for _ in range(3))
    inner = torch.nn.functional.gelu(torch.cat(states, -1) @ probe.pooler.weight.T + probe.pooler.bias)
    right = inner @ model.get_input_embeddings().weight.T + probe.bias
    assert torch.allclose(probe(states, MASK)[MASK.bool()], right[MASK.bool()], atol=1e-5)


def test_packing_and_back():
    packed = pack((EMBEDDED, LAYER), MASK)
    assert packed.slots.tolist() == [0, 1, 3, 0, 1]
    assert packed.starts.tolist() == [0, 3, 5]
    assert packed.rows().tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(unpack(packed.states[:, 0], MASK), EMBEDDED * MASK[..., None])
    assert slots_of(torch.tensor([[0, 0, 1, 0, 1]])).tolist() == [0, 2]  # padding on the left does not count
    with pytest.raises(ShapeError, match="do not fit a mask"):
        pack((EMBEDDED,), MASK[:, :3])


@pytest.mark.parametrize(
    ("model_type", "fields", "dropout"),
    [
        ("bert", {"hidden_dropout_prob": 0.3}, 0.3),
        ("bert", {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2}, 0.2),
        ("roberta", {"hidden_dropout_prob": 0.3}, 0.0),
        ("xlm-roberta", {}, 0.0),
        ("deberta", {"hidden_dropout_prob": 0.3}, 0.3),
        ("deberta-v2", {"hidden_dropout_prob": 0.3, "cls_dropout": 0.4}, 0.4),
        ("distilbert", {"dropout": 0.15}, 0.15),
        ("gpt2", {"resid_pdrop": 0.25}, 0.25),
    ],
)
def test_dropout_comes_from_the_configuration(model_type, fields, dropout):
    assert dropout_of(AutoConfig.for_model(model_type, **fields)) == dropout


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta", "tiny-deberta", "tiny-gpt2", "tiny-llama"])
def test_a_probe_fits_its_model_and_task(name, tmp_path):
    model = backbone(name)
    probe = make_probe(model, sentences(tmp_path))
    assert (probe.layers, probe.hidden, probe.labels, probe.length) == (2, 32, 2, LENGTH)
    assert make_probe(model, scores(tmp_path / "scores")).labels == 1
    assert isinstance(make_probe(model, tags(tmp_path)), TokenProbe)
    with pytest.raises(DataError, match="no probe for the task squad"):
        make_probe(model, load_task("squad"))


def test_the_seed_fixes_a_new_probe_and_nothing_else(tmp_path):
    model, task = backbone(), sentences(tmp_path)
    torch.manual_seed(5)
    first, second, third = (make_probe(model, task, seed=seed) for seed in (1, 1, 2))
    after = torch.rand(1)
    assert torch.equal(first.pooler.weight, second.pooler.weight)
    assert not torch.equal(first.pooler.weight, third.pooler.weight)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_the_loss_leaves_ignored_labels_out():
    probe = TokenProbe(1, 2, 3)
    logits = torch.randn(4, 3)
    labels = torch.tensor([0, -100, 2, -100])
    assert torch.equal(probe.loss(logits, labels), torch.nn.functional.cross_entropy(logits[[0, 2]], labels[[0, 2]]))
    single = SequenceProbe(1, 4, 2, labels=1)
    assert single.loss(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])).item() == pytest.approx(2.0)


def test_what_does_not_fit_is_refused():
    probe = oracle_probe()
    with pytest.raises(ShapeError, match="2 hidden states of width 2, not 3 of width 2"):
        probe((EMBEDDED, LAYER, LAYER), MASK)
    with pytest.raises(ShapeError, match="slot 4 but the probe has 4 slots"):
        probe(PackedStates(torch.zeros(1, 2, 2), torch.tensor([4]), torch.tensor([0, 1])))
    with pytest.raises(ParameterError, match="mask"):
        probe((EMBEDDED, LAYER))
    with pytest.raises(ParameterError, match="needs layers"):
        TokenProbe(2, 2, 0)


def test_saving_and_loading(tmp_path):
    model = backbone()
    for number, task in enumerate([sentences(tmp_path / "text"), load_task("masked-lm")]):
        probe = make_probe(model, task)
        folder = save_probe(probe, tmp_path / f"{number}", {"model": "tiny-bert", "heads": [[0, 1]]})
        loaded, about = load_probe(folder, model)
        assert type(loaded) is type(probe)
        assert loaded.options() == probe.options()
        assert about == {"model": "tiny-bert", "heads": [[0, 1]]}
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in probe.state_dict().items())
    assert loaded.embeddings is model.get_input_embeddings().weight
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 4 * sum(value.numel() for name, value in probe.state_dict().items() if name != "embeddings") + 4000
    with pytest.raises(ArtefactError, match="tied to its model"):
        load_probe(folder)
    with pytest.raises(ArtefactError, match="no saved probes"):
        load_probe(tmp_path)
    index = folder / "probes.json"
    index.write_text(index.read_text().replace('"masked-lm"', '"unheard-of"'))
    with pytest.raises(ArtefactError, match="cannot be read") as caught:
        load_probe(folder, model)
    assert "\n" not in str(caught.value)
