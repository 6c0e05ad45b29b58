"""Relevance maps of every kind of model, against a plain computation with stock eager attention and autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    CLIPConfig,
    CLIPForImageClassification,
)

import attrim
from attrim.errors import AttrimError, DataError, ParameterError, SelectionError, ShapeError, SiteError
from attrim.maps.explainer import Explainer, MapOptions, keep_highest
from attrim.scores.gradient_attention import GradientAttention
from stock_attention import private_maps
from zoo import HEADED, TEXT, ZOO, Animal, batch

LENGTHS = (7, 4, 6)
LEVELS = (0.0, 0.4, 0.6, 0.9)
ONE = [animal for animal in HEADED if animal.name not in ("lxmert",)]
SEQUENCES = [animal for animal in ZOO if animal.name in ("bart", "marian", "t5", "fsmt")]
PAIRS = [animal for animal in ZOO if animal.name == "clip"]
EVERY = [*HEADED, *SEQUENCES, *PAIRS]
every_model = pytest.mark.parametrize("animal", EVERY, ids=str)


def of(name: str) -> Animal:
    return next(animal for animal in EVERY if animal.name == name)


def built(animal: Animal) -> nn.Module:
    model = animal.build()
    if animal.name == "fsmt":
        model.config.use_cache = False  # with it, FSMT masks neither padding nor later tokens
    return model


def alone(inputs: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """One example of a batch without its padding."""
    one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
    for mask in ("attention_mask", "decoder_attention_mask"):
        if mask in one:
            real = one[mask][0].bool()
            ids = mask.replace("attention_mask", "input_ids")
            one |= {mask: one[mask][:, real], ids: one[ids][:, real]}
    return one


def maps_by_site(animal: Animal, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
    """Stock attention ``[B, H, Q, K]`` by site name, in the graph of the output."""
    with private_maps(model) as maps:
        if animal.eats in ("visual-embeds", "regions"):
            return maps, model(**inputs)
        if animal.route == "interface":
            model.set_attn_implementation("eager")
        output = model(**inputs, output_attentions=True)
    towers = {"text": "text_model_output", "vision": "vision_model_output"}
    for site in attrim.sites(model):
        if animal.name == "clip":
            found = output[towers[site.role]].attentions
        else:
            found = output[site.role + "_attentions" if animal.eats == "pair" else "attentions"]
        maps[site.name] = found[site.layer]
    return maps, output


def average(weights: Tensor, slope: Tensor | None, kept: Tensor | None = None) -> Tensor:
    """``[Q, K]`` of the only example of a batch."""
    if slope is None:
        return torch.zeros(weights.shape[2:], dtype=torch.float64)
    product = (weights * slope)[0].detach().double()
    if kept is not None:
        product = product * kept[:, None, None]
    return product.clamp(min=0).sum(0) / weights.shape[1]


def reference(
    animal: Animal, model: nn.Module, inputs: dict[str, Tensor], kept: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Relevance of one example, as the formulas read, by sequence."""
    maps, output = maps_by_site(animal, model, inputs)
    if animal.name == "clip":
        number = output.logits_per_image[0, 0]
    else:
        logits = output.question_answering_score if animal.name == "lxmert" else output.logits
        number = (logits[:, -1] if logits.ndim == 3 else logits).max()
    slopes = torch.autograd.grad(number, list(maps.values()), allow_unused=True)
    averages = {
        name: average(weights, slope, None if kept is None else kept.get(name))
        for (name, weights), slope in zip(maps.items(), slopes, strict=True)
    }
    sites = attrim.sites(model)
    streams = {site.streams[0] for site in sites}
    R = {
        (s, q): torch.zeros(_length(sites, averages, s), _length(sites, averages, q), dtype=torch.float64)
        for s in streams
        for q in streams
    }
    for s in streams:
        R[s, s] += torch.eye(len(R[s, s]))

    def spread(matrix: Tensor) -> Tensor:
        rest = matrix - torch.eye(len(matrix))
        for row in rest:
            if row.sum() != 0:
                row /= row.sum()
        return rest + torch.eye(len(matrix))

    sites = list(sites)
    while sites:
        site = sites.pop(0)
        s, q = site.streams
        if s == q:
            old = dict(R)
            for other in streams:
                R[s, other] = old[s, other] + averages[site.name] @ old[s, other]
            continue
        old = dict(R)
        pair = [site]
        if sites and sites[0].streams == (q, s):
            pair.append(sites.pop(0))
        for one in pair:
            s, q = one.streams
            R[s, q] = R[s, q] + spread(old[s, s]).T @ averages[one.name] @ spread(old[q, q])
            R[s, s] = R[s, s] + averages[one.name] @ old[q, s]
    rows = {
        "bert": ("encoder", 0), "vit": ("encoder", 0), "lxmert": ("language", 0), "gpt2": ("decoder", -1),
        "llama": ("decoder", -1),
    }  # fmt: skip
    if animal.name == "clip":
        end = int(inputs["input_ids"][0].argmax())
        found = {"text": R["text", "text"][end], "vision": R["vision", "vision"][0]}
        found["text"][end] = found["vision"][0] = 0
        return found
    if animal.name == "visual_bert":
        stream, row = "encoder", inputs["input_ids"].shape[1] - 2
    else:
        stream, row = rows.get(animal.name, ("decoder", -1))
    found = {q: R[stream, q][row].clone() for q in streams}
    found[stream][row] = 0
    return found


def _length(sites: list[Any], averages: dict[str, Tensor], stream: str) -> int:
    return next(len(averages[site.name]) for site in sites if site.streams[0] == stream)


@every_model
def test_maps_are_those_of_stock_attention_in_padded_batches(animal: Animal) -> None:
    model, inputs = built(animal), batch(animal, LENGTHS)
    maps = Explainer(model)(inputs, LEVELS)
    for number in range(len(LENGTHS)):
        one = alone(inputs, number)
        for level in range(len(LEVELS)):
            kept = {name: mask[level, number].double() for name, mask in maps.kept.items()}
            wanted = reference(animal, built(animal), one, kept)
            for name, part in maps.parts.items():
                expected = wanted[part.stream]
                cut = len(expected) - int(maps.real["regions"][number].sum()) if "regions" in maps.parts else 0
                if animal.name == "visual_bert":
                    expected = expected[cut:] if name == "regions" else expected[:cut]
                elif name == "patches":
                    expected = expected[part.first :]
                torch.testing.assert_close(maps.of(name, number)[level], expected, rtol=1e-5, atol=1e-6)


@every_model
def test_an_example_has_the_map_that_it_has_alone(animal: Animal) -> None:
    exact = animal.name != "fsmt"  # which fills masks with the minimum of float32
    dtype = torch.float64 if exact else torch.float32
    close = {"rtol": 1e-9, "atol": 1e-12} if exact else {"rtol": 1e-5, "atol": 1e-6}
    model, inputs = built(animal).to(dtype), batch(animal, LENGTHS, dtype)
    explain = Explainer(model)
    together = explain(inputs, LEVELS)
    for number in range(len(LENGTHS)):
        single = explain(alone(inputs, number), LEVELS)
        for name in together.relevance:
            torch.testing.assert_close(together.of(name, number), single.of(name, 0), **close)
        torch.testing.assert_close(together.logits[:, number], single.logits[:, 0], **close)


@pytest.mark.parametrize("animal", [*ONE, *PAIRS], ids=str)
def test_a_row_carried_down_is_the_row_of_the_matrix(animal: Animal) -> None:
    model, inputs = built(animal), batch(animal, LENGTHS)
    explain = Explainer(model)
    watched = explain.watch(inputs)
    kept = keep_highest(watched.scores, LEVELS)
    by_row, by_matrix = explain._by_row(watched, kept), explain._by_matrix(watched, kept)
    for name, relevance in by_row.items():
        torch.testing.assert_close(relevance, by_matrix[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("animal", [*ONE, *PAIRS], ids=str)
def test_attention_that_is_not_kept_is_computed_again(animal: Animal) -> None:
    model, inputs = built(animal).double(), batch(animal, LENGTHS, torch.float64)
    again, kept = Explainer(model), Explainer(model, MapOptions(form="matrix"))
    found, wanted = again(inputs, LEVELS), kept(inputs, LEVELS)
    assert kept.watch.stored
    assert again.watch.stored == (animal.route == "softmax")
    # Some stock models take the softmax in float32.
    torch.testing.assert_close(found.relevance, wanted.relevance, rtol=2e-6, atol=1e-8)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made while it is active."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [one for one in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(one, Tensor)]
        self.numbers = max(self.numbers, *(one.untyped_storage().nbytes() // one.itemsize for one in made), 0)
        return result


def test_long_inputs_keep_no_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 300
    monkeypatch.setattr("attrim.maps.passes.BLOCK", 4 * length * 10)
    model = BertForSequenceClassification(BertConfig(**TEXT)).eval()
    inputs = {"input_ids": torch.randint(5, 60, (1, length)), "attention_mask": torch.ones(1, length).long()}
    found = {}
    for form in ("", "matrix"):
        explain = Explainer(model, MapOptions(form=form))
        with Largest() as largest:
            explain(inputs)
        found[form] = largest.numbers
    # The mask of all heads together is what is left of a matrix.
    assert found[""] <= length * length
    assert found["matrix"] >= 4 * length * length


def test_a_row_is_the_same_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    animal = of("llama")
    model, inputs = built(animal), batch(animal, LENGTHS)
    whole = Explainer(model)(inputs, LEVELS)
    monkeypatch.setattr("attrim.maps.passes.BLOCK", 1)
    torch.testing.assert_close(Explainer(model)(inputs, LEVELS).relevance, whole.relevance)


def test_heads_with_the_lowest_scores_are_left_out_for_each_example() -> None:
    scores = {"a": torch.tensor([[0.3, -0.1, 0.05], [1, 2, 3]]), "b": torch.tensor([[0, -0.4, 0.2], [6, 5, 4]])}
    kept = keep_highest(scores, (0, 0.5))
    assert bool(kept["a"][0].all())
    assert kept["a"][1].tolist() == [[True, False, True], [False, False, False]]
    assert kept["b"][1].tolist() == [[False, False, True], [True, True, True]]
    with pytest.raises(ParameterError, match="from 0 to 1, not 40"):
        keep_highest(scores, (40,))


@pytest.mark.parametrize("animal", HEADED, ids=str)
def test_scores_are_those_of_gradient_attention(animal: Animal) -> None:
    model, inputs = built(animal), batch(animal, LENGTHS)
    where: Any = "all" if animal.causal else ""
    scores = Explainer(model, MapOptions(where=where))(inputs).scores
    wanted = GradientAttention(scope="example")(model, [inputs]).values
    for name, values in wanted.items():
        found = scores.get(name, torch.zeros_like(values))
        torch.testing.assert_close(found, values, rtol=1e-4, atol=1e-6)
    dead = {"lxmert": 2}.get(animal.name, 0)  # the image side of the last cross layer
    assert len(wanted) - len(scores) == dead


@pytest.mark.parametrize("animal", [of("bert"), of("lxmert"), of("bart")], ids=str)
def test_heads_can_be_missing_in_the_model(animal: Animal) -> None:
    model, inputs = built(animal), batch(animal, LENGTHS)
    found = {
        where: Explainer(model, MapOptions(mask_in=where))(inputs, LEVELS) for where in ("aggregation", "model", "both")
    }
    for name in found["model"].relevance:
        torch.testing.assert_close(found["both"].relevance[name], found["model"].relevance[name])
        first = [maps.relevance[name][0] for maps in found.values()]
        torch.testing.assert_close(first[0], first[1], rtol=1e-5, atol=1e-6)
    assert any(
        not torch.allclose(found["model"].relevance[name][2], found["aggregation"].relevance[name][2], atol=1e-4)
        for name in found["model"].relevance
    )
    # What the model answers does not depend on where the map leaves heads out.
    for field in ("predicted", "logits", "probabilities"):
        torch.testing.assert_close(getattr(found["model"], field), getattr(found["aggregation"], field))


def test_a_model_without_heads_is_differentiated_as_such() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    maps = Explainer(model, MapOptions(mask_in="model"))(inputs, (0.0, 0.5))
    gate = attrim.Gate({name: mask[1].float() for name, mask in maps.kept.items()})
    target = int(maps.answers[0, 0])
    with attrim.edit(model, gate):
        logits = model(**inputs).logits
    torch.testing.assert_close(maps.logits[1, 0], logits[0, target].double(), rtol=1e-5, atol=1e-6)
    assert maps.predicted[1, :, 0].tolist() == logits.argmax(1).tolist()


def test_heads_can_be_given() -> None:
    animal = of("lxmert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    explain = Explainer(model)
    levels = explain(inputs, LEVELS)
    given = explain.with_heads(inputs, levels.kept)
    torch.testing.assert_close(given.relevance, levels.relevance)
    assert given.levels == pytest.approx(LEVELS, abs=0.02)
    assert explain.with_heads(inputs, {}).levels == (0.0,)
    with pytest.raises(SelectionError, match="no site 'none'"):
        explain.with_heads(inputs, {"none": torch.ones(3, 4)})
    with pytest.raises(ShapeError, match="the same number of levels"):
        explain.with_heads(inputs, {name: mask[:, :2] for name, mask in levels.kept.items()})


def test_no_head_leaves_an_empty_map() -> None:
    animal = of("lxmert")
    maps = Explainer(built(animal))(batch(animal, LENGTHS), (0.0, 1.0))
    assert maps.empty("regions").tolist() == [[False] * 3, [True] * 3]
    assert maps.empty("tokens").tolist() == [[False] * 3, [True] * 3]


def test_as_coded_maps_of_regions_vanish_where_a_row_is_empty() -> None:
    """The defect of the original: with most heads left out, one text token without relevance blackens the picture."""
    animal = of("lxmert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    safe = Explainer(model)(inputs, (0.0, 0.9))
    coded = Explainer(model, MapOptions(as_coded=True))(inputs, (0.0, 0.9))
    torch.testing.assert_close(coded.relevance["regions"][0], safe.relevance["regions"][0])
    lost = (coded.relevance["regions"][1] == 0).all(-1) & (safe.relevance["regions"][1] != 0).any(-1)
    assert bool(lost.any())
    for number in range(len(LENGTHS)):  # padding is none of these rows
        single = Explainer(model, MapOptions(as_coded=True))(alone(inputs, number), (0.0, 0.9))
        torch.testing.assert_close(single.of("regions", 0), coded.of("regions", number), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [{"normalize": False}, {"self_in_cross_rule": False}], ids=str)
def test_switches_of_the_cross_rule_change_two_streams_only(change: dict[str, Any]) -> None:
    animal = of("lxmert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    usual, other = Explainer(model)(inputs), Explainer(model, MapOptions(**change))(inputs)
    assert not torch.allclose(usual.relevance["regions"], other.relevance["regions"])
    with pytest.raises(ParameterError, match=f"{next(iter(change))} is about sequences"):
        Explainer(built(of("bert")), MapOptions(**change))


def test_layers_below_the_start_are_left_out() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    last = Explainer(model, MapOptions(start_layer=1))(inputs)
    torch.testing.assert_close(Explainer(model, MapOptions(start_layer=-1))(inputs).relevance, last.relevance)
    maps, output = maps_by_site(animal, built(animal), alone(inputs, 1))
    name = attrim.sites(model)[1].name
    slope = torch.autograd.grad(output.logits.max(), maps[name])[0]
    row = average(maps[name], slope)[0]
    row[0] = 0
    torch.testing.assert_close(last.of("tokens", 1)[0], row, rtol=1e-5, atol=1e-7)
    with pytest.raises(ParameterError, match="start_layer=2 is not a layer: 'encoder' has 2"):
        Explainer(model, MapOptions(start_layer=2))


def test_relevance_of_lrp_in_the_place_of_attention() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    maps = Explainer(model, MapOptions(use="lrp"))(inputs, LEVELS)
    usual = Explainer(model)(inputs, LEVELS)
    assert not torch.allclose(maps.relevance["tokens"], usual.relevance["tokens"])
    torch.testing.assert_close(maps.scores, usual.scores, rtol=1e-4, atol=1e-6)  # heads are left out by the same scores
    for number in range(len(LENGTHS)):
        single = Explainer(model, MapOptions(use="lrp"))(alone(inputs, number), LEVELS)
        torch.testing.assert_close(single.of("tokens", 0), maps.of("tokens", number), rtol=1e-3, atol=1e-5)
    with pytest.raises(ParameterError, match="is about LRP"):
        Explainer(model, MapOptions(rules="safe"))


def test_the_target_is_what_is_explained() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    labels = torch.tensor([1, 2, 4])
    by_label = Explainer(model, MapOptions(target="label"))({**inputs, "labels": labels})
    assert by_label.answers[:, 0].tolist() == labels.tolist()
    for number, label in enumerate(labels.tolist()):
        chosen = Explainer(model, MapOptions(target=label))(inputs)
        torch.testing.assert_close(chosen.of("tokens", number), by_label.of("tokens", number))
    with pytest.raises(DataError, match="needs labels"):
        Explainer(model, MapOptions(target="label"))(inputs)


def _tagger() -> nn.Module:
    return BertForTokenClassification(BertConfig(**TEXT, num_labels=3)).eval()


def test_places_of_token_answers() -> None:
    model, inputs = _tagger(), batch(of("bert"), LENGTHS)
    everywhere = Explainer(model)(inputs)
    at = [Explainer(model, MapOptions(where=place))(inputs).relevance["tokens"] for place in range(4)]
    assert everywhere.counted.sum(1).tolist() == list(LENGTHS)
    assert at[2][0, :, 2].tolist() == [0, 0, 0]
    assert not torch.allclose(at[1], at[2])
    last = Explainer(model, MapOptions(where=-1))(inputs)
    torch.testing.assert_close(Explainer(model, MapOptions(where="last"))(inputs).relevance, last.relevance)
    with pytest.raises(ParameterError, match="the shortest has 4"):
        Explainer(model, MapOptions(where=5))(inputs)
    with pytest.raises(ParameterError, match="answers at every token"):
        Explainer(model, MapOptions(row="last"))(inputs)
    with pytest.raises(ParameterError, match="does not answer at every token"):
        Explainer(built(of("bert")), MapOptions(where="last"))(inputs)


def test_the_answer_of_a_span_is_read_at_its_ends() -> None:
    model, inputs = BertForQuestionAnswering(BertConfig(**TEXT)).eval(), batch(of("bert"), LENGTHS)
    maps = Explainer(model)(inputs)
    assert maps.answers.shape == (3, 2)
    model.set_attn_implementation("eager")
    one = alone(inputs, 1)
    output = model(**one, output_attentions=True)
    number = (output.start_logits.max() + output.end_logits.max()) / 2
    slopes = torch.autograd.grad(number, output.attentions)
    R = torch.eye(4, dtype=torch.float64)
    for weights, slope in zip(output.attentions, slopes, strict=True):
        R = R + average(weights, slope) @ R
    rows = []
    for place in (int(output.start_logits.argmax()), int(output.end_logits.argmax())):
        rows.append(R[place].clone())
        rows[-1][place] = 0
    torch.testing.assert_close(maps.of("tokens", 1)[0], (rows[0] + rows[1]) / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("animal", [animal for animal in HEADED if not animal.causal], ids=str)
def test_the_table_names_the_token_that_the_head_reads(animal: Animal) -> None:
    """Only the row that is read has a gradient in the last layer."""
    model, inputs = built(animal), batch(animal, (7,))
    maps, output = maps_by_site(animal, model, inputs)
    logits = output.question_answering_score if animal.name == "lxmert" else output.logits
    sites = [site for site in attrim.sites(model) if site.role in ("encoder", "language")]
    slope = torch.autograd.grad(logits.max(), maps[sites[-1].name])[0]
    rows = slope.abs().sum((0, 1, 3)).nonzero()[:, 0].tolist()
    assert rows == [{"visual_bert": 5}.get(animal.name, 0)]


def test_other_architectures_are_refused_by_name() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    wanted = Explainer(model)(inputs)
    model.config.model_type = "herbert"
    with pytest.raises(SiteError, match="the architecture 'herbert'"):
        Explainer(model)
    torch.testing.assert_close(Explainer(model, MapOptions(row="first"))(inputs).relevance, wanted.relevance)
    with pytest.raises(ParameterError, match="row=9 is not a token"):
        Explainer(model, MapOptions(row=9))(inputs)


def test_a_model_whose_sequence_changes_its_length_is_refused() -> None:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2)
    model = SwinForImageClassification(config).eval()
    images = {"pixel_values": torch.randn(1, 3, 16, 16)}
    with pytest.raises(AttrimError, match="'swin'"):
        Explainer(model, example=images)
    with pytest.raises(SiteError, match="keep their length"):
        Explainer(model, MapOptions(row="mean"), example=images)(images)


def test_a_model_is_left_as_it_was() -> None:
    animal = of("bert")
    model, inputs = built(animal).train(), batch(animal, LENGTHS)
    Explainer(model, MapOptions(mask_in="model"))(inputs, LEVELS)
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_half_precision() -> None:
    animal = of("bert")
    model, inputs = built(animal), batch(animal, LENGTHS)
    wanted = Explainer(model)(inputs).relevance["tokens"]
    found = Explainer(model.bfloat16())(inputs).relevance["tokens"]
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found, wanted, rtol=0.3, atol=0.05)


def test_options_are_kept() -> None:
    assert replace(MapOptions(), start_layer=2).start_layer == 2


def test_padding_on_the_left_changes_nothing() -> None:
    """Where positions are relative: the last token is read, and padding has no relevance."""
    animal = of("llama")
    model = built(animal).double()
    right, left = (batch(animal, LENGTHS, torch.float64, side) for side in ("right", "left"))
    one, other = Explainer(model)(right, LEVELS), Explainer(model)(left, LEVELS)
    for number in range(len(LENGTHS)):
        torch.testing.assert_close(one.of("tokens", number), other.of("tokens", number), rtol=1e-4, atol=1e-6)
        assert bool((other.relevance["tokens"][:, number, ~other.real["tokens"][number]] == 0).all())


def test_a_classifier_on_clip_reads_the_mean_of_the_patches() -> None:
    torch.manual_seed(0)
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = CLIPConfig(vision_config={**vision, "image_size": 12, "patch_size": 4}, num_labels=3)
    model = CLIPForImageClassification(config).eval()
    inputs = {"pixel_values": torch.randn(1, 3, 12, 12)}
    maps = Explainer(model)(inputs)
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    slopes = torch.autograd.grad(output.logits.max(), output.attentions)
    matrix = torch.eye(10, dtype=torch.float64)
    for weights, slope in zip(output.attentions, slopes, strict=True):
        matrix = matrix + average(weights, slope) @ matrix
    expected = (matrix - torch.eye(10))[1:].mean(0)[1:]
    assert expected.max() > 0
    torch.testing.assert_close(maps.of("patches", 0)[0], expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_the_first_token_can_be_the_one_that_is_explained(name: str) -> None:
    animal = of(name)
    model, inputs = built(animal), batch(animal, LENGTHS)
    first, second = (Explainer(model, MapOptions(where=place))(inputs) for place in (0, 1))
    part = "target" if animal.eats == "pair" else "tokens"
    assert not first.relevance[part].any()  # it sees none of the tokens after it
    assert bool((second.relevance[part][0, :, 0] > 0).any())
    assert first.counted.int().argmax(1).tolist() == [0, 0, 0]
