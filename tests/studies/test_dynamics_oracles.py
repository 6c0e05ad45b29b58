"""The oracles of the dynamics study: values that were computed by hand or by other code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attrim
from attrim.errors import DataError
from attrim.models.recurrent import (
    AttentionPooling,
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentSeq2Seq,
    RecurrentSeq2SeqConfig,
    copier_config,
)
from attrim.studies.dynamics import probes, proxies
from attrim.studies.dynamics.generated import Copying, Keywords, Lexicon, measured_ratio, two_stages
from attrim.studies.dynamics.readings import (
    Course,
    Readings,
    agree,
    bootstrap,
    chances,
    kendall,
    keys_that_count,
    matches,
    overtaken,
)


def match(chooser: list[float], ranker: list[float], **options: int | None) -> float:
    return float(matches(Readings.of([chooser]), Readings.of([ranker]), **options)[0])


CHOOSER, RANKER = [0.1, 0.2, 0.4, 0.2, 0.1], [1.0, 3, 2, 0, -1]


def test_t1_match() -> None:
    assert match(CHOOSER, RANKER) == 0
    assert match(CHOOSER, RANKER, percent=None, most=2) == 1
    assert match(RANKER, CHOOSER) == 0
    assert match([0.4, 0.4, 0.2], [1, 5, 3]) == 0
    assert match([0.4, 0.4, 0.2], [5, 1, 3]) == 1
    assert match([0.1, 0.2, 0.7], [2, 2, 2]) == 1
    assert match([0, 0, 1], [2, 2, 1]) == 0
    falling = [float(-place) for place in range(40)]
    one_hot = np.eye(40)
    assert [match(one_hot[rank].tolist(), falling) for rank in range(4)] == [1, 1, 0, 0]
    sizes = {1: 1, 20: 1, 21: 2, 40: 2, 41: 3, 60: 3, 61: 4, 100: 5, 101: 6}
    assert keys_that_count(np.array(list(sizes))).tolist() == list(sizes.values())
    assert keys_that_count(np.array([100]), percent=7).tolist() == [7]


def test_t1_many_predictions_at_once() -> None:
    generator = np.random.default_rng(0)
    choosers = [generator.integers(0, 4, size=size).astype(float) for size in (1, 7, 25, 60, 3)]
    rankers = [generator.integers(0, 4, size=len(row)).astype(float) for row in choosers]
    found = matches(Readings.of(choosers), Readings.of(rankers))
    plain = [
        float((ranker > ranker[np.argmax(chooser)]).sum() < -(-5 * len(ranker) // 100))
        for chooser, ranker in zip(choosers, rankers, strict=True)
    ]
    assert found.tolist() == plain


def test_t2_kendall() -> None:
    first = Readings.of([[1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 2, 3], CHOOSER, [1, 1, 1], [5]])
    second = Readings.of([[1, 2, 4, 3], [4, 3, 2, 1], [1, 2, 2, 3], RANKER, [1, 2, 3], [7]])
    found = kendall(first, second)
    assert found[:4] == pytest.approx([2 / 3, -1, 0.8, 0.447214], abs=1e-6)
    assert np.isnan(found[4:]).all()
    agreement = agree(first, second, "kendall tau")
    assert agreement.value == pytest.approx(np.mean(found[:4]))
    assert (agreement.predictions, agreement.skipped) == (4, 2)


def test_t3_chance() -> None:
    rows = [
        [3, 1, 2, 0], [3, 3, 1, 0], [1] * 7, list(range(14)), list(range(41)), list(range(60)),
        [20] * 3 + list(range(11)),
    ]  # fmt: skip
    expected = [0.25, 0.5, 1.0, 1 / 14, 3 / 41, 0.05, 3 / 14]
    assert chances(Readings.of(rows)) == pytest.approx(expected)
    # Shuffled rankers agree with it.
    generator = np.random.default_rng(0)
    shuffled = [generator.permutation(rows[-1]) for _ in range(4000)]
    drawn = matches(Readings.of([np.eye(14)[0]] * 4000), Readings.of(shuffled)).mean()
    assert drawn == pytest.approx(3 / 14, abs=0.03)


def test_t4_xi() -> None:
    steps = (0, 1, 2, 3, 4)
    agreements = [Course(steps, (0.0625, 0.125, 0.25, 0.625, 0.5)), Course(steps, (0.0625, 0.25, 0.375, 0.5, 0.75))]
    performances = [Course(steps, (0.5, 0.5, 0.75, 0.75, 1)), Course(steps, (0.5, 0.625, 0.75, 0.875, 0.875))]
    expected = {0.05: 0.5, 0.0625: 0.5625, 0.1875: 0.75, 0.3: 0.75, 0.5: 0.8125, 0.5625: 0.9375, 0.625: None}
    found = {bar: overtaken(agreements, performances, bar) for bar in expected}
    assert {bar: one.performance for bar, one in found.items()} == expected
    assert [one.step for one in found.values()] == [0, 1, 2, 2, 3, 4, None]


class Linear(nn.Module):
    """h is the embedding itself, and attention is even or the softmax of ``v . h``."""

    def __init__(self, direction: Tensor | None) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor([[1.0, 0], [0, 2], [-1, 1]]))
        self.weight = nn.Parameter(torch.tensor([2.0, 1.0]))
        self.direction = direction

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor) -> object:
        hidden = self.table(input_ids)
        scores = torch.zeros_like(hidden[..., 0]) if self.direction is None else hidden @ self.direction
        logit = (scores.softmax(-1) * (hidden @ self.weight + 0.5)).sum(-1)
        return type("Output", (), {"logits": torch.stack([torch.zeros_like(logit), logit], 1)})


@pytest.mark.parametrize(
    ("direction", "positive", "negative"),
    [
        (None, [0.121617, 0.121617, -0.060809], [-0.545050, -0.545050, 0.272525]),
        ([1.0, 0.0], [0.146631, 0.047525, 0.015122], [-1.363527, -0.441932, -0.140622]),
    ],
)
def test_t5_delta(direction: list[float] | None, positive: list[float], negative: list[float]) -> None:
    model = Linear(None if direction is None else torch.tensor(direction))
    batch = {"input_ids": torch.tensor([[0, 1, 2]] * 2), "labels": torch.tensor([1, 0])}
    found = probes.delta(model, [batch])
    assert found.rows()[0] == pytest.approx(positive, abs=1e-6)
    assert found.rows()[1] == pytest.approx(negative, abs=1e-6)


def test_t6_uniform_attention_with_padding() -> None:
    pooling = AttentionPooling(RecurrentClassifierConfig(hidden_dim=1, intermediate_dim=2))
    with torch.no_grad():  # relu(x) - relu(-x) = x, so that the scores are the states themselves
        pooling.inner.weight.copy_(torch.tensor([[1.0, 0], [-1, 0]]))
        pooling.inner.bias.zero_()
        pooling.score.weight.copy_(torch.tensor([[1.0, -1]]))
        pooling.score.bias.zero_()
    scores = torch.tensor([[5.0, -3, 2], [1, 9, 9]])
    hidden = torch.stack([scores, torch.zeros_like(scores)], -1)
    values = torch.tensor([[1.0, 2, 6], [4, 0, 0]])[..., None].requires_grad_()
    mask = torch.tensor([[True] * 3, [True, False, False]])
    torch.testing.assert_close(pooling(hidden, values, mask).detach(), torch.tensor([1.237373, 4.0]), atol=1e-5, rtol=0)
    with attrim.edit(pooling, attrim.Uniform(), example=(hidden, values, mask)):
        found = pooling(hidden, values, mask)
        found.sum().backward()
    torch.testing.assert_close(found.detach(), torch.tensor([3.0, 4.0]))
    assert all(one.grad is None or not one.grad.any() for one in pooling.parameters())


EVERY_TOKEN = {"input_ids": torch.zeros(3, 2, dtype=torch.long), "labels": torch.arange(3)[:, None]}


def tiny_translator(mix: str) -> RecurrentSeq2Seq:
    """The translator of T8, whose states are put in by hand."""
    config = RecurrentSeq2SeqConfig(vocab_size=3, hidden_dim=2, layers=1, bidirectional=False, mix=mix)
    model = RecurrentSeq2Seq(config).eval()
    head = model.cross_attention.heads[0]
    given = {
        head.query: [[0.0, 1], [1, 0]],
        head.output: [[1.0, 0], [0, 2]],
        model.output: [[0.0, 0], [1, 0], [0, 1]],
        **({model.mix: [[1.0, 0, 1, 0], [0, 1, 0, 1]]} if model.mix is not None else {}),
    }
    with torch.no_grad():
        for layer, weight in given.items():
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.zero_()
    states, keys = torch.tensor([[[1.0, -1]]]), torch.tensor([[[1.0, 0], [0, 1]]])
    model.decoder_states = lambda *_: states.expand(3, 1, 2)  # type: ignore[method-assign]
    encoded = type("Encoded", (), {"last_hidden_state": keys.expand(3, 2, 2)})()
    model.encoder.forward = lambda *_, **__: encoded  # type: ignore[method-assign]
    attrim.sites(model, {"input_ids": EVERY_TOKEN["input_ids"], "decoder_input_ids": EVERY_TOKEN["labels"]})
    return model


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        ("relu", [[-2.239545, -0.239545, -2.239545], [-1.861995, -0.861995, -0.861995]]),
        ("tanh", [[-1.408339, -0.444311, -2.169933], [-1.664565, -0.902971, -0.902971]]),
        ("sum", [[-1.551445, -0.551445, -1.551445], [-2.239545, -2.239545, -0.239545]]),
    ],
)
def test_t8_beta_of_the_translator(mix: str, expected: list[list[float]]) -> None:
    found = probes.beta(tiny_translator(mix), [EVERY_TOKEN])
    assert pytest.approx(np.array(expected), abs=1e-6) == np.array(found.rows()).T


def test_t8_attention_and_answers_of_the_translator() -> None:
    model = tiny_translator("relu")
    assert probes.alpha(model, [EVERY_TOKEN]).rows()[0] == pytest.approx([0.119203, 0.880797], abs=1e-6)

    def answers() -> Tensor:
        logits, labels = probes.predictions(model, EVERY_TOKEN)
        return probes.gold_scores(logits, labels)[:, 0]

    expected = torch.tensor([-1.825210, -0.706007, -1.063616])
    torch.testing.assert_close(answers(), expected, atol=1e-5, rtol=0)
    with attrim.edit(model, attrim.Uniform()):
        torch.testing.assert_close(answers(), torch.tensor([-1.868981, -0.368981, -1.868981]), atol=1e-5, rtol=0)


def test_t11_stable_losses_and_refused_numbers() -> None:
    logit = torch.tensor([[0.0, 20.0]], requires_grad=True)
    loss = -probes.gold_scores(logit, torch.tensor([1]))
    loss.sum().backward()
    # In float32 the log-softmax of 20 against 0 is minus nothing; what counts is that nothing is NaN.
    assert float(loss.detach()) == pytest.approx(2.06e-9, abs=3e-9)
    assert logit.grad is not None
    assert bool(logit.grad.isfinite().all())
    for bad in (math.nan, math.inf):
        with pytest.raises(DataError, match="not finite"):
            Readings.of([[0.1, bad, 0.2]])


@pytest.mark.parametrize("mix", ["relu", "tanh"])
def test_one_hot_attention_gives_beta(mix: str) -> None:
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(RecurrentSeq2SeqConfig(vocab_size=11, hidden_dim=6, layers=2, mix=mix)).eval()
    tokens = torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]])
    batch = {
        "input_ids": tokens,
        "attention_mask": (tokens > 0).long(),
        "labels": torch.tensor([[3, 4, 5, 2], [8, 2, -100, -100]]),
    }
    closed = probes.beta(model, [batch])
    (site,) = attrim.sites(model)
    forced = probes.betas(model, [batch], [(site, 0)])[site, 0]
    assert len(closed) == 6
    assert np.abs(closed.scores - forced.scores).max() < 1e-6
    closed.fits(forced)


def test_one_hot_attention_of_the_classifier_gives_beta() -> None:
    torch.manual_seed(0)
    model = RecurrentClassifier(
        RecurrentClassifierConfig(vocab_size=20, embed_dim=5, hidden_dim=4, intermediate_dim=3)
    ).eval()
    tokens = torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]])
    batch = {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": torch.tensor([1, 0])}
    logits = [row * sign for row, sign in zip(probes.beta(model, [batch]).rows(), (1, -1), strict=True)]
    (site,) = attrim.sites(model)
    forced = probes.betas(model, [batch], [(site, 0)])[site, 0].rows()
    assert forced[0] == pytest.approx(np.log(1 / (1 + np.exp(-logits[0]))), abs=1e-5)
    assert forced[1] == pytest.approx(np.log(1 / (1 + np.exp(logits[1]))), abs=1e-5)


def test_bootstrap_is_clustered() -> None:
    """Predictions of one sentence that are all equal say no more than one of them."""
    numbers, sentences = np.repeat([0.0, 1.0] * 10, 30), np.repeat(np.arange(20), 30)
    low, high = bootstrap(numbers, sentences)
    alone = bootstrap(numbers[::30], sentences[::30])
    assert high - low == pytest.approx(alone[1] - alone[0], abs=0.06)
    assert low < 0.35
    assert high > 0.65


def test_agreement_with_several_runs_is_their_mean() -> None:
    chooser = Readings.of([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1]])
    first, second = Readings.of([[1, 3, 2], [1, 2, 3]]), Readings.of([[3, 1, 2], [2, 1, 0]])
    alone = [agree(chooser, one).value for one in (first, second)]
    assert alone == [0.5, 0.5]
    both = agree(chooser, [first, second])
    assert (both.value, both.predictions) == (0.5, 2)
    # Each prediction is matched by one of the two runs, so that no drawn sentence changes the mean.
    assert (both.low, both.high) == (0.5, 0.5)


def test_course() -> None:
    course = Course((0, 10, 20), (0.1, 0.6, 0.4), best=20)
    assert (course.maximum, course.maximum_step, course.last, course.at_best) == (0.6, 10, 0.4, 0.4)
    with pytest.raises(DataError, match="same schedule"):
        Course.mean([course, Course((0, 10), (0.1, 0.2))])


def test_sizes_of_the_published_networks() -> None:
    def count(model: nn.Module, without: str = "nothing") -> int:
        return sum(value.numel() for name, value in model.named_parameters() if without not in name)

    assert count(RecurrentClassifier(RecurrentClassifierConfig(vocab_size=50)), "embedding") == 1_274_882
    assert count(RecurrentSeq2Seq(RecurrentSeq2SeqConfig())) == 8_180_544
    assert count(RecurrentSeq2Seq(copier_config(40))) == 1_337_130


def test_t7_proxies() -> None:
    bag = proxies.Bag(4, 1, 2)
    with torch.no_grad():
        bag.embedding.weight.copy_(torch.tensor([[0.0, 0], [1, 0], [0, 1], [2, -1]]))
        bag.output.weight.copy_(torch.tensor([[0.5, -1]]))
        bag.output.bias.fill_(0.25)
    words = bag.word_logits()[:, 0]
    assert words.tolist() == [0, 0.5, -1, 2]
    assert float(bag([[1, 2, 3, 3]]).detach()) == pytest.approx(1.125)
    assert proxies.word_readings(words.double().numpy(), [([1, 2, 3, 3], 0)]).scores.tolist() == [-0.5, 1, -2, -2]
    translator = proxies.Bag(3, 3, 2)
    with torch.no_grad():
        translator.embedding.weight.copy_(bag.embedding.weight[:3])
        translator.output.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
    found = proxies.pair_readings(translator, [([1, 2], [0, 2, 1])])
    assert np.array(found.rows()) == pytest.approx(np.array([[0.422319, 0.422319], [0.155362, 0.422319]]), abs=1e-6)


def test_t9_two_stages_of_the_toy_model() -> None:
    course = two_stages((0, 0), 0.5, 5, 0.1)
    assert course[0] == pytest.approx((-0.05, 0.05, 0.5))
    assert course[1] == pytest.approx((-0.1, 0.1, 0.51))
    assert course[2] == pytest.approx((-0.151, 0.151, 0.53))
    assert course[3] == pytest.approx((-0.204, 0.204, 0.5602))
    assert course[-1] == pytest.approx((-0.26002, 0.26002, 0.601), abs=5e-5)
    fine = two_stages((0, 0), 0.5, 10_000, 1e-4)[-1]
    assert (fine[2], fine[1] - fine[0]) == pytest.approx((1.089092, 1.368299), abs=1e-3)
    assert [round(one[2], 2) for one in two_stages((10, -10), 0.5, 2, 0.1)] == [-1.5, -3.49]


@pytest.mark.parametrize(
    ("data", "ratio"),
    [
        (Copying(40, 40), 1.0),
        (Copying(60, 40), 59 / 39),
        (Copying(36, 24), 35 / 23),
        (Copying(40, 40, repetition=True), 79 / 39),
    ],
)
def test_t10_cooccurrence_ratio(data: Copying, ratio: float) -> None:
    assert data.ratio == pytest.approx(ratio)
    symbols = data.sample(4000, np.random.default_rng(0))
    assert measured_ratio(symbols, data.num_vocab) == pytest.approx(ratio, abs=0.01)
    if not data.repetition:
        assert all(len(set(row)) == data.seq_length for row in symbols[:20].tolist())


def test_logistic_proxy_is_that_of_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="only to compare with")
    examples = Keywords().examples(400, 0)
    training, held_out = examples[:300], examples[300:]
    found = proxies.fit_logistic(training, held_out, Keywords().vocab_size, strengths=(100.0,))
    counts = proxies._counts(training, Keywords().vocab_size)
    stock = linear.LogisticRegression(C=100.0, max_iter=1000, tol=1e-8).fit(counts, [label for _, label in training])
    assert found.weights == pytest.approx(stock.coef_[0], abs=2e-3)
    assert found.accuracy > 0.8


def test_proxies_find_the_keywords() -> None:
    data = Keywords()
    examples = data.examples(1200, 0)
    training, held_out = examples[:1000], examples[1000:]
    fitted = proxies.fit_classifier(training, held_out, data.vocab_size, epochs=6, learning_rate=5e-3, embed_dim=32)
    assert fitted.losses[fitted.epoch] == min(fitted.losses)
    vectors = {
        "embedding": fitted.bag.word_logits()[:, 0].double().numpy(),
        "logistic": proxies.fit_logistic(training, held_out, data.vocab_size).weights,
        "counts": proxies.count_words(training, data.vocab_size),
    }
    for name, values in vectors.items():
        top = set(np.argsort(-values)[:10].tolist())
        assert len(top & set(range(4 + data.keywords, 4 + 2 * data.keywords))) >= 8, name
    again = proxies.fit_classifier(training, held_out, data.vocab_size, epochs=6, learning_rate=5e-3, embed_dim=32)
    assert again.losses == fitted.losses
    with pytest.raises(DataError, match="two classes"):
        proxies.fit_classifier([([1], 2)], [([1], 0)], data.vocab_size)


def test_translation_proxies_find_the_lexicon() -> None:
    data = Lexicon(words=20, swaps=0.3)
    examples = data.examples(400, 0)
    pairs = [(source, target) for source, target, _ in examples]
    training, held_out = pairs[:350], pairs[350:]
    right = [place for _, _, aligned in examples[350:] for place in aligned]
    fitted = proxies.fit_translator(training, held_out, data.vocab_size, epochs=8, embed_dim=32, learning_rate=1e-2)
    embedding = proxies.pair_readings(fitted.bag, held_out).choices()
    # Counts know less: frequent words go with everything.
    counts = proxies.PairCounts(training, data.vocab_size).readings(held_out).choices()
    assert np.mean(embedding == right) > 0.75
    assert np.mean(counts == right) > 0.3
