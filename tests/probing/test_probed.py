"""A frozen model with a probe: tasks, evaluation, training and edits take it like any model."""

from __future__ import annotations

import pytest
import torch

import attrim
from attrim.attention.discover import find_sites
from attrim.edits import Constant, Mix
from attrim.errors import DataError, ParameterError
from attrim.evaluation import evaluate
from attrim.probing.backbone import Backbone, pack
from attrim.probing.probe import make_probe
from attrim.probing.probed import Probed, train_probed
from attrim.tasks import load_task
from attrim.training.recipe import ProbeRecipe
from probed_models import LENGTH, TOKENIZER, backbone, scores, sentences, settle, tags


def matrices(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {site.name: torch.rand(site.heads, LENGTH, LENGTH, generator=generator) for site in find_sites(model)}


def probed_for(task, name="tiny-bert", **options):
    model = backbone(name)
    return Probed(model, settle(make_probe(model, task)), names=getattr(task, "labels", ()), **options)


class Stub:
    """A model that gives logits which are there."""

    def __init__(self, config, logits):
        self.config, self.logits = config, logits

    def __call__(self, **inputs):
        return self


def moved(probed, before):
    """Which parts of a model changed."""
    return {
        name.partition(".")[0]
        for name, parameter in probed.named_parameters()
        if not torch.equal(parameter, before[name])
    }


@pytest.mark.parametrize("make", [sentences, scores, tags])
def test_evaluation_equals_the_plain_formula(make, tmp_path):
    """One text at a time, stock model, stock hidden states."""
    task = make(tmp_path)
    probed = probed_for(task).eval()
    result = evaluate(probed, task, TOKENIZER)
    assert result.metrics
    outputs = []
    for batch in task.batches(TOKENIZER):
        inputs = {**batch.inputs, **batch.targets}
        with torch.no_grad():
            states = probed.backbone(**batch.inputs, output_hidden_states=True).hidden_states
            stub = Stub(probed.config, probed.probe(states, batch.inputs["attention_mask"]))
        outputs.append((batch.index, task.run(stub, inputs).numpy()))
    for index, right in outputs:
        assert torch.allclose(torch.tensor(result.outputs[index]), torch.tensor(right), atol=1e-4)


def test_labels_are_never_those_that_the_model_had(tmp_path):
    task, model = sentences(tmp_path), backbone("tiny-bert")
    model.config.id2label, model.config.label2id = {0: "cat", 1: "dog"}, {"cat": 0, "dog": 1}
    task.check(Probed(model, make_probe(model, task)))
    assert model.config.id2label == {0: "cat", 1: "dog"}


def test_sites_keep_their_names_so_that_constants_of_the_model_fit(tmp_path):
    task = sentences(tmp_path)
    probed = probed_for(task).eval()
    assert find_sites(probed) == find_sites(probed.backbone)
    edit = Constant(matrices(probed.backbone), heads=[(0, 1), (1, 2)])
    inputs = next(iter(task.batches(TOKENIZER))).inputs
    with torch.no_grad(), attrim.edit(probed.backbone, edit):
        states = probed.backbone(**inputs, output_hidden_states=True).hidden_states
    right = probed.probe(states, inputs["attention_mask"])
    with torch.no_grad(), attrim.edit(probed, edit):
        found = probed(**inputs).logits
    assert torch.allclose(found, right, atol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(found, probed(**inputs).logits, atol=1e-3)
    result = evaluate(probed, task, TOKENIZER, edit)
    assert result.distances["shift"] > 0


@pytest.mark.parametrize(
    ("trained", "parts"),
    [
        ("probe", {"probe"}),
        ("lambdas", {"probe", "lambdas"}),
        ("constants", {"probe", "constants"}),
        ("everything", {"probe", "backbone"}),
    ],
)
def test_exactly_what_is_asked_for_is_trained(trained, parts, tmp_path):
    task = sentences(tmp_path)
    model = backbone()
    constants = matrices(model)
    lambdas = {site.name: torch.zeros(site.heads) for site in find_sites(model)}
    probed = Probed(
        model,
        make_probe(model, task),
        trained=trained,
        lambdas=lambdas if trained == "lambdas" else None,
        constants=constants if trained == "constants" else None,
    )
    edit = {
        "lambdas": lambda: Mix(constants, probed.lambdas.by_site()),
        "constants": lambda: Constant(probed.constants.by_site(), train_constants=True),
    }.get(trained, lambda: Constant(constants, heads=[(0, 0)]))()
    before = {name: parameter.detach().clone() for name, parameter in probed.named_parameters()}
    train_probed(probed, task, TOKENIZER, ProbeRecipe(steps=3, learning_rate=1e-3), edit)
    assert moved(probed, before) == parts
    if trained == "everything":  # the pooler and the like get no gradient, all that computes hidden states does
        assert not torch.equal(before["backbone.encoder.layer.0.attention.self.query.weight"],
                               model.encoder.layer[0].attention.self.query.weight)  # fmt: skip
    for name, value in constants.items():
        assert torch.equal(value, matrices(model)[name])  # what the caller gave stays


def test_modes_exclude_each_other(tmp_path):
    task = sentences(tmp_path)
    model = backbone()
    probe, tensors = make_probe(model, task), matrices(model)
    for options in (
        {"trained": "lambdas"},
        {"trained": "probe", "lambdas": tensors},
        {"trained": "constants"},
        {"trained": "probe", "constants": tensors},
        {"trained": "lambdas", "lambdas": tensors, "constants": tensors},
        {"trained": "heads"},
    ):
        with pytest.raises(ParameterError):
            Probed(model, probe, **options)


def test_the_model_has_no_dropout_unless_as_coded(tmp_path):
    task = sentences(tmp_path)
    inputs = next(iter(task.batches(TOKENIZER))).inputs
    for options, random in (({}, False), ({"as_coded": True}, True), ({"trained": "everything"}, True)):
        probed = probed_for(task, **options)
        probed.probe.dropout.p = 0.0
        probed.train()
        assert probed.backbone.training is random
        with torch.no_grad():
            same = torch.equal(probed(**inputs).logits, probed(**inputs).logits)
        assert same is not random
        assert not probed.eval().backbone.training


def test_the_loss_is_the_probes_own(tmp_path):
    task = tags(tmp_path)
    probed = probed_for(task).eval()
    inputs = next(iter(task.train_batches(TOKENIZER, probed)))
    output = probed(**inputs)
    right = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), inputs["labels"].flatten())
    assert torch.allclose(output.loss, right)
    noise = inputs["labels"].masked_fill(inputs["attention_mask"] == 0, 1)  # labels at padding do not count
    assert torch.equal(probed(**{**inputs, "labels": noise}).loss, output.loss)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta", "tiny-deberta", "tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("edited", [False, True])
def test_leaving_empty_slots_out_changes_nothing(name, edited, tmp_path):
    """Holes in the middle (pairs) and before the last separator; models where it cannot work compute all slots."""
    model = backbone(name)
    task = scores(tmp_path)
    edits = [Constant(matrices(model), heads=[(0, 1), (1, 0), (1, 3)])] if edited else []
    small, whole = Backbone(model), Backbone(model, compact=False)
    widths = []
    handle = model.get_input_embeddings().register_forward_hook(lambda *given: widths.append(given[2].shape[1]))
    with torch.no_grad(), attrim.edit(model, *edits, strict=False):
        for batch in task.batches(TOKENIZER):
            first, mask = small(dict(batch.inputs))
            second, _ = whole(dict(batch.inputs))
            assert torch.allclose(first.states, second.states, atol=1e-4)
            assert torch.equal(first.slots, second.slots)
            assert torch.equal(mask, batch.inputs["attention_mask"].bool())
    handle.remove()
    possible = name != "tiny-deberta"  # its distances are those of places in the batch
    assert min(widths) < LENGTH  # tried at least
    assert small._ways[True] is (None if not possible else name != "tiny-roberta")


def test_averages_are_the_same_without_empty_slots(tmp_path):
    task = scores(tmp_path)
    probed = probed_for(task)
    feed = list(task.feed(probed, TOKENIZER))
    found = attrim.measure(probed, feed, attrim.Mean(), progress=False)["Mean"]
    right = attrim.measure(probed.backbone, feed, attrim.Mean(), progress=False)["Mean"]
    for site in find_sites(probed):
        assert torch.equal(found.counts(site), right.counts(site))
        assert torch.allclose(found.matrix(site), right.matrix(site), atol=1e-5)


def test_models_without_hidden_states_of_one_stack_are_refused(tmp_path):
    task = sentences(tmp_path)
    model = backbone("tiny-bart")
    probed = Probed(model, make_probe(model, task))
    with pytest.raises(DataError, match="single encoder or decoder"):
        evaluate(probed, task, TOKENIZER)


def test_masked_language_modelling_trains_and_evaluates(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"abc {i} de fg\n" for i in range(20)))
    task = load_task("masked-lm", data=str(path), max_length=LENGTH, batch_size=4)
    probed = probed_for(task)
    before = evaluate(probed, task, TOKENIZER).metrics["perplexity"]
    train_probed(probed, task, TOKENIZER, ProbeRecipe(steps=40, learning_rate=1e-2, batch_size=4))
    assert evaluate(probed, task, TOKENIZER).metrics["perplexity"] < before / 2


def test_packed_states_do_not_depend_on_padding(tmp_path):
    task = sentences(tmp_path, layout="")
    probed = probed_for(task).eval()
    inputs = next(iter(task.batches(TOKENIZER))).inputs
    with torch.no_grad():
        states = probed.backbone(**inputs, output_hidden_states=True).hidden_states
        packed, _ = probed._run(inputs)
    assert torch.equal(packed.states, pack(states, inputs["attention_mask"]).states)
