"""Stats about single rows, examples and tokens: by hand, against scipy, and against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attrim.attention.context import attach
from attrim.edits import Threshold
from attrim.edits.quantize import Quantize
from attrim.errors import DataError, ParameterError, UnknownName
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.stats import Histogram, Moments, Sample
from attrim.stats.bins import log_edges
from attrim.stats.distance import RowDistance
from attrim.stats.rowfacts import RowCurves
from attrim.stats.spread import Extremes, Majority
from attrim.stats.token_sparsity import TokenSparsity, TokenTable
from attrim.stats.values import Values
from attrim.tasks import load_task

V = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.05, 0.01, 0.002, 0.0005], dtype=torch.float64)


def attention(seed: int, heads: int = 2, length: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(4 * torch.randn(1, heads, length, length, generator=generator), -1)


def test_tokens_to_majority_of_known_rows() -> None:
    stat = Majority()
    stat.update(V[None, None, None])
    assert stat.mean("tokens").item() == 2  # 0.5 alone does not exceed a half
    assert stat.mean("share").item() == pytest.approx(2 / 8)
    for length in (1, 2, 5, 8):
        even = Majority()
        even.update(torch.full((1, 1, length, length), 1 / length))
        assert even.mean("tokens").item() == length // 2 + 1
        assert even.std("tokens").item() == 0


def test_majority_agrees_with_moments_and_tells_what_is_missing() -> None:
    weights = Threshold(0.3).apply(torch.cat([attention(seed) for seed in range(4)]))
    stat, moments = Majority(), Moments()
    stat.update(weights)
    moments.update(weights)
    assert torch.equal(stat.mean("tokens"), moments.tokens_to_majority())
    assert torch.allclose(stat.missing(), moments.not_reached())
    assert 0 < stat.missing().min() < 1
    ordered = weights.double().sort(-1, descending=True).values.cumsum(-1)
    tokens = ((ordered <= 0.5).sum(-1) + 1).double()
    reached = ordered[..., -1] > 0.5
    for head in range(2):
        wanted = tokens[:, head][reached[:, head]]
        assert stat.std("tokens")[0, head] == pytest.approx(wanted.std(correction=0).item())
        assert stat.highest("tokens")[0, head] == wanted.max()
        assert stat.lowest("tokens")[0, head] == wanted.min()
    with pytest.raises(UnknownName, match="tokens"):
        stat.mean("token")


def test_features_are_those_of_each_example() -> None:
    examples = [attention(seed, length=length) for seed, length in ((0, 3), (1, 9), (2, 6))]
    padded = torch.zeros(3, 2, 9, 9)
    for place, one in enumerate(examples):
        padded[place, :, : one.shape[-2], : one.shape[-1]] = one
    real = torch.arange(9)[None] < torch.tensor([3, 9, 6])[:, None]
    stat = Extremes()
    stat.update(padded, real)
    for fact, function in (("maximum", np.max), ("minimum", np.min), ("mean", np.mean), ("std", np.std)):
        wanted = np.array([function(one[0].double().numpy(), axis=(1, 2)) for one in examples])
        assert stat.mean(fact)[0].numpy() == pytest.approx(wanted.mean(0), abs=1e-9)
        assert stat.std(fact)[0].numpy() == pytest.approx(wanted.std(0), abs=1e-6)
        assert stat.highest(fact)[0].numpy() == pytest.approx(wanted.max(0))
        assert stat.lowest(fact)[0].numpy() == pytest.approx(wanted.min(0))


def test_row_curves_are_the_rows_cumulative_histograms() -> None:
    weights = attention(5, heads=1, length=20)
    curves, histogram = RowCurves(), Histogram(rows=True)
    curves.update(weights)
    histogram.update(weights)
    edges = log_edges(1e-8, 100).numpy()
    each = np.stack([np.histogram(row + 1e-8, edges)[0].cumsum() / 20 for row in weights[0, 0].double().numpy()])
    for share in (0.25, 0.5, 0.95):
        wanted = np.quantile(each, share, axis=0, method="inverted_cdf")
        assert curves.quantile(share)[0, 0].numpy() == pytest.approx(wanted, abs=0.011)  # half a level
    assert curves.quantile(1.0)[0, 0, -1] == 1
    mean = histogram.row_histogram()[0, 0].cumsum(0).numpy()
    assert mean == pytest.approx(each.mean(0), abs=1e-6)
    with pytest.raises(ParameterError):
        curves.quantile(1.5)


def test_row_distance_is_that_of_scipy_over_all_examples() -> None:
    """The paper's code kept the last example only, and printed the square root as the divergence."""
    edits = ["quantize:linear-slog-clamped-midval,bits=3", "quantize:linear-slinear-midval,bits=3"]
    stat = RowDistance(edits)
    edges = log_edges(1e-10, 100).numpy()
    wanted: dict[str, list[float]] = {edit: [] for edit in edits}
    sums: dict[str, list[float]] = {edit: [] for edit in edits}
    for seed in range(3):
        weights = attention(seed, heads=1, length=7 + seed)
        stat.update(weights)
        for edit, method in zip(edits, ("linear-slog-clamped-midval", "linear-slinear-midval"), strict=True):
            edited = Quantize(method, 3).apply(weights.double())
            for row, other in zip(weights[0, 0].double().numpy(), edited[0, 0].double().numpy(), strict=True):
                before, after = (np.histogram(side + 1e-10, edges)[0] for side in (row, other))
                wanted[edit].append(float(jensenshannon(before, after)))
                sums[edit].append(float(other.sum()))
    for place, edit in enumerate(edits):
        assert stat.distance()[0, 0, place].item() == pytest.approx(np.mean(wanted[edit]), abs=1e-9)
        assert stat.row_sum()[0, 0, place].item() == pytest.approx(np.mean(sums[edit]), abs=1e-6)


def test_rows_before_and_after_are_the_means_of_the_rows_histograms() -> None:
    stat = RowDistance({"mine": Quantize("linear-slog-clamped-midval", 3), "same": Threshold(0.0)})
    histograms = []
    for seed in range(2):
        weights = attention(seed, heads=1, length=6 + 3 * seed)
        stat.update(weights)
        edited = Quantize("linear-slog-clamped-midval", 3).apply(weights.double())
        edges = log_edges(1e-10, 100).numpy()
        for rows in (weights[0, 0].double().numpy(), edited[0, 0].numpy()):
            histograms.append([np.histogram(row + 1e-10, edges)[0] / len(row) for row in rows])
    before = np.concatenate([histograms[0], histograms[2]]).mean(0)
    after = np.concatenate([histograms[1], histograms[3]]).mean(0)
    np.testing.assert_allclose(stat.rows_before()[0, 0], before, atol=1e-8)
    np.testing.assert_allclose(stat.rows_after()[0, 0, 0], after, atol=1e-8)
    assert torch.equal(stat.rows_after()[..., 1, :], stat.rows_before())


def test_edits_with_names_of_their_own_are_saved_by_name() -> None:
    """What was counted can be read and merged; going on needs the edits again."""
    stat = RowDistance({"fitted": Threshold(0.1), "threshold:0.2": Threshold(0.2)})
    stat.update(attention(0))
    loaded = RowDistance.load(*stat.state())
    assert loaded.edits == ("fitted", "threshold:0.2")
    assert torch.equal(loaded.distance(), stat.distance())
    with pytest.raises(UnknownName, match="fitted"):
        loaded.update(attention(1))
    other = RowDistance({"fitted": Threshold(0.1), "threshold:0.2": Threshold(0.2)})
    other.update(attention(1))
    merged = RowDistance.load(*other.state()).merge(loaded)
    stat.update(attention(1))
    assert torch.equal(merged.distance(), stat.distance())


def test_an_edit_that_changes_nothing_has_no_distance() -> None:
    stat = RowDistance(["threshold:0"])
    stat.update(attention(0))
    assert torch.equal(stat.distance(), torch.zeros(1, 2, 1, dtype=torch.float64))
    assert torch.allclose(stat.row_sum(), torch.ones(1, 2, 1, dtype=torch.float64))


def measured_tokens(size: int) -> TokenSparsity:
    """Three texts through a tiny model, in batches of the given size."""
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    texts = ["abc", "aab and b", "c"]
    batches = [dict(tokenizer(texts[n : n + size], return_tensors="pt", padding=True)) for n in range(0, 3, size)]
    stat = TokenSparsity([0.05, 1.0])
    measure(model, batches, stat, progress=False)
    return stat


def test_token_sparsity_counts_each_token_whatever_the_batches() -> None:
    whole, single = measured_tokens(3), measured_tokens(1)
    totals = whole.totals()
    for name, tensor in single.totals().items():
        if name == "small":
            assert (tensor - totals[name]).abs().max() <= 2  # float32 differs in the last bit from batch to batch
        else:
            assert torch.equal(tensor, totals[name])
    tokenizer = load_tokenizer("tiny-bert")
    ids = [tokenizer(text)["input_ids"] for text in ("abc", "aab and b", "c")]
    letter = tokenizer("a", add_special_tokens=False)["input_ids"][0]
    assert totals["rows"][letter] == sum(one.count(letter) for one in ids)
    heads = sum(site.heads for site in whole.sites)
    assert totals["weights"][letter] == heads * sum(one.count(letter) * len(one) for one in ids)
    assert torch.equal(totals["small"][1], totals["weights"])  # nothing is above 1
    frequent = whole.most_frequent(3)
    assert [rows for _, rows, _ in frequent] == sorted((rows for _, rows, _ in frequent), reverse=True)
    assert all(0 <= shares[0] <= shares[1] == 1 for _, _, shares in frequent)


@pytest.mark.parametrize("name", ["shapes-visualbert", "shapes-lxmert"])
def test_token_sparsity_counts_text_and_leaves_regions_out(name: str) -> None:
    task = load_task("shapes", limit=4)
    model, tokenizer = task.load_model(name), load_tokenizer(name)
    batches = list(task.feed(model, tokenizer))
    stat, table = TokenSparsity([1.0]), TokenTable(4, bar=1.0)
    measure(model, batches, [stat, table], progress=False)
    totals = stat.totals()
    ids = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in batches])
    assert totals["rows"].tolist() == ids.bincount(minlength=totals["rows"].shape[0]).tolist()
    words = [token for _, rows in table.texts() for token in (row.token for row in rows)]
    assert sorted(words) == sorted(ids.tolist())
    regions = batches[0]["visual_embeds" if "visual_embeds" in batches[0] else "visual_feats"].shape[1]
    texts = [int(mask.sum()) for batch in batches for mask in batch["attention_mask"]]
    reach = {"language": 0, "language>vision": 0, "encoder": regions}
    heads = sum(
        site.heads * sum(n * (regions if site.role == "language>vision" else n + reach[site.role]) for n in texts)
        for site in stat.sites
        if site.role in reach
    )
    assert int(totals["weights"].sum()) == heads


def test_token_sparsity_merges_and_loads() -> None:
    one, other = measured_tokens(1), measured_tokens(3)
    loaded = TokenSparsity.load(*one.state())
    assert loaded.options() == one.options()
    merged = loaded.merge(other).totals()
    assert torch.equal(merged["weights"], 2 * other.totals()["weights"])
    assert torch.equal(merged["rows"], 2 * other.totals()["rows"])


def test_token_sparsity_says_what_it_needs() -> None:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    with attach(model, stats=[TokenSparsity()], strict=False), pytest.raises(DataError, match=r"use attrim\.measure"):
        model(**tokenizer(["abc"], return_tensors="pt"))
    with pytest.raises(DataError, match="watched nothing"):
        TokenSparsity().totals()
    with pytest.raises(ParameterError, match="no bar"):
        TokenSparsity([])


@pytest.mark.parametrize("size", [1, 3])
def test_token_tables_of_single_examples(size: int) -> None:
    """Against the matrices themselves: every row of an example, over all heads and layers, in the order of the text."""
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    texts = ["abc", "aab and b", "c"]
    batches = [dict(tokenizer(texts[n : n + size], return_tensors="pt", padding=True)) for n in range(0, 3, size)]
    table, sample = TokenTable(2, bar=0.05), Sample(2)
    measure(model, batches, [table, sample], progress=False)
    assert table.examples == sample.examples
    for number in table.examples:
        rows = table.rows(number)
        assert [row.token for row in rows] == tokenizer(texts[number])["input_ids"]
        assert [row.place for row in rows] == list(range(len(rows)))
        matrices = torch.cat([sample.matrices(site)[number] for site in sample.sites])
        assert [row.weights for row in rows] == [len(matrices) * len(rows)] * len(rows)
        assert [row.small for row in rows] == (matrices <= 0.05).sum((0, 2)).tolist()
        assert rows[0].sparsity == rows[0].small / rows[0].weights
    loaded = TokenTable.load(*table.state())
    assert [loaded.rows(number) for number in loaded.examples] == [table.rows(number) for number in table.examples]


def test_token_tables_tell_the_streams_of_a_model_apart() -> None:
    model, tokenizer = load_model("tiny-bart"), load_tokenizer("tiny-bart")
    table = TokenTable(1, bar=0.05)
    target = tokenizer("cd", return_tensors="pt")["input_ids"]
    measure(model, [{**tokenizer("a text", return_tensors="pt"), "decoder_input_ids": target}], table, progress=False)
    assert [row.token for row in table.rows(0, "encoder")] == tokenizer("a text")["input_ids"]
    assert [row.token for row in table.rows(0, "decoder")] == target[0].tolist()
    with pytest.raises(DataError, match="watched nothing"):
        TokenTable().rows(0)


def test_values_of_the_heads_outputs() -> None:
    """The last axis of an output is no key, so only whether the query is real counts."""
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    batch = dict(tokenizer(["a text", "a longer text"], return_tensors="pt", padding=True))
    stats = measure(model, [batch], [Values("output"), Values("value")], progress=False)
    tokens = int(batch["attention_mask"].sum())
    size = model.config.hidden_size // model.config.num_attention_heads
    for stat in stats.values():
        assert isinstance(stat, Values)
        assert (stat.total == tokens * size).all()


@pytest.mark.parametrize("stat", [Histogram, RowCurves, RowDistance])
@pytest.mark.parametrize("grid", [{"floor": 0.0}, {"floor": -1.0}, {"floor": 2.0}, {"bins": 0}])
def test_grids_without_bins_are_refused(stat: Any, grid: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=stat.__name__):
        stat(**grid)
