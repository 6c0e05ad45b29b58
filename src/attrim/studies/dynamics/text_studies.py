"""The experiments on texts: classification and translation, trained several times and compared (arXiv 2103.07601)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...errors import ParameterError
from ..base import Study, register
from ..bench import RunKeeper
from .study import GeneratedBench

if TYPE_CHECKING:
    from .corpora import Corpus
    from .text_findings import TextFindings

GOLD, UNIFORM = "normal_A", "uniform"
TextIntervention = Literal["uniform-first", "taught", "supervised"]


def intervened_name(label: str, name: str) -> str:
    """The name of a training with an intervention that is otherwise as the ordinary run with that name."""
    return f"{label}_{name.rpartition('_')[2]}"


@dataclass(frozen=True)
class TextBench(GeneratedBench):
    """A bench for studies that train their own networks on texts."""

    _: KW_ONLY
    data: str | None = None
    """Folder with the data sets, as published or as the released code keeps them; generated ones need none."""
    train_file: Path | None = None
    """Your own training texts instead of a data set by name: .csv, .tsv, .jsonl or .json with text and label; for a
    translation the source, with the target beside it under another ending (--target-ending)."""
    validation_file: Path | None = None
    """Your own texts to read probes on, in the same form."""


@dataclass(frozen=True)
class TextStudy(Study):
    """What the experiments on texts share."""

    bench: ClassVar[type[RunKeeper]] = TextBench
    pairs: ClassVar[bool] = False
    published: ClassVar[dict[str, Any]] = {}
    smaller: ClassVar[dict[str, Any]] = {}

    quick: bool = False
    """Small networks and few steps, for minutes on two cores; flags that are given win."""
    steps: int | None = None
    """Updates of each training (default: as published, or fewer with --quick)."""
    save_every: int | None = None
    """Steps between checkpoints at which probes are read."""
    custom_saves: tuple[int, ...] | None = None
    """Further steps at which probes are read; step 0 and the last one always are."""
    gold_seed: int = 20
    """Seed of the run whose final attention is to be predicted (normal_A of the released code)."""
    uniform_seed: int = 12
    """Seed of the run with uniform attention."""
    other_seeds: tuple[int, ...] | None = None
    """Seeds of the other ordinary runs (normal_B and so on)."""
    hidden_dim: int | None = None
    """Size of the recurrent layers."""
    batch_size: int | None = None
    """Examples a step."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, constant."""
    max_length: int | None = None
    """Cut texts to this many tokens (default: none are cut)."""
    limit: int | None = None
    """Train on this many examples."""
    test_set_size: int | None = None
    """Read probes on this many examples of the test data, from the first."""
    bsize: int = 64
    """Examples a step of the embedding proxy."""
    epochs: int | None = None
    """Passes over the data of the embedding proxy."""
    embed_dim: int = 256
    """Size of the embedding proxy."""
    lr: float | None = None
    """Learning rate of the embedding proxy."""
    include_kendall_tau: bool = False
    """Compare probes by Kendall's tau-b, too."""
    include_train_results: bool = False
    """Read probes on a part of the training data, too, as large as the test data."""
    as_coded: bool = False
    """Choose checkpoints, proxies and strengths on the test data that is reported, as the released code does."""
    keep_models: bool = False
    """Keep the network of every scheduled step."""
    resamples: int = 1000
    """Resamples of the intervals of agreements."""
    interventions: tuple[TextIntervention, ...] = ()
    """Train the other runs again with something done to attention: uniform for the first steps (--uniform-steps); a
    network that begins with the knowledge of the embedding proxy (--taught-steps; classification only); supervised by
    the word that this proxy would look at (--supervision)."""
    uniform_steps: int = 50
    """For uniform-first: steps with uniform attention."""
    taught_steps: int = 100
    """For taught: steps before the training itself that bring beta to the embedding proxy."""
    supervision: float = 0.5
    """For supervised: weight of the penalty on the distance of attention from that word."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "save_every", "hidden_dim", "batch_size", "max_length", "limit", "test_set_size", "bsize",
                     "epochs", "embed_dim", "resamples"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
        if self.max_length is not None and self.max_length < 3:
            raise ParameterError("Texts cannot be cut to fewer than 3 tokens: start, a word and end.")
        if self.other_seeds is not None and (not self.other_seeds or len({*self.other_seeds}) < len(self.other_seeds)):
            raise ParameterError("--other-seeds needs at least one number, each of them once.")
        if len({*self.interventions}) < len(self.interventions):
            raise ParameterError(f"--interventions has each name once, not {list(self.interventions)}.")
        if "uniform-first" in self.interventions and not 0 < self.uniform_steps < self.setting("steps"):
            most = self.setting("steps") - 1
            raise ParameterError(f"--uniform-steps must be from 1 to {most}, not {self.uniform_steps}.")
        if "taught" in self.interventions and (self.pairs or self.taught_steps < 1):
            raise ParameterError(
                "The intervention taught is for classification, whose beta is a number for each word; leave it out."
                if self.pairs
                else f"--taught-steps must be at least 1, not {self.taught_steps}."
            )
        if "supervised" in self.interventions and not 0 < self.supervision < 10**9:
            raise ParameterError(f"--supervision must be above 0, not {self.supervision}.")
        self.saves()

    def setting(self, name: str) -> Any:
        """The value of a field, or else the published one, or that of a quick run."""
        value = getattr(self, name)
        if value is not None:
            return value
        return {**self.published, **(self.smaller if self.quick else {})}.get(name)

    def saves(self) -> tuple[int, ...]:
        """The steps at which probes are read."""
        from ...training.scheduled import scheduled

        return scheduled(self.setting("steps"), self.setting("save_every"), self._within(self.setting("custom_saves")))

    def _within(self, extra: tuple[int, ...]) -> tuple[int, ...]:
        """Steps that were asked for must be there; those of the published schedule are left out where they are not."""
        if self.custom_saves is not None:
            return extra
        return tuple(step for step in extra if step <= self.setting("steps"))

    def others(self) -> dict[str, int]:
        """The seeds of the ordinary runs beside the gold one, by the names of the released code."""
        return {f"normal_{chr(ord('B') + place)}": seed for place, seed in enumerate(self.setting("other_seeds"))}

    def intervened(self) -> dict[str, dict[str, Any]]:
        """What each intervention changes in a training, by its name with its number."""
        every: dict[TextIntervention, dict[str, Any]] = {
            "uniform-first": {"uniform_steps": self.uniform_steps},
            "taught": {"taught_steps": self.taught_steps},
            "supervised": {"supervise": self.supervision},
        }
        return {f"{name}-{next(iter(every[name].values())):g}": every[name] for name in self.interventions}

    def runs(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """The seed of every training, and what is changed in it, by the names of the released code."""
        others = self.others()
        return {
            GOLD: (self.gold_seed, {}),
            UNIFORM: (self.uniform_seed, {"uniform": True}),
            **{name: (seed, {}) for name, seed in others.items()},
            **{
                intervened_name(label, name): (seed, changes)
                for label, changes in self.intervened().items()
                for name, seed in others.items()
            },
        }

    def sizes(self) -> dict[str, Any]:
        """The sizes of the network, as its configuration takes them."""
        raise NotImplementedError

    def names(self) -> tuple[str, ...]:
        """The data sets."""
        raise NotImplementedError

    def read(self, name: str, bench: TextBench) -> Corpus:
        """One data set."""
        raise NotImplementedError

    def proxy_rate(self, dataset: str) -> float:
        """The learning rate of the embedding proxy."""
        raise NotImplementedError

    def corpora(self, bench: TextBench) -> list[Corpus]:
        """Every data set, cut as asked."""
        found = [self.read(name, bench) for name in self.names()]
        return [_limited(corpus, self.limit).cut(self.max_length) for corpus in found]

    def prepare(self, bench: TextBench) -> TextBench:
        """Read the data before a run begins, so that what is wrong with it is said at once."""
        bench = super().prepare(bench)
        if (bench.train_file is None) != (bench.validation_file is None):
            raise ParameterError("Your own texts need two files, --train-file and --validation-file.")
        vars(bench)["read_corpora"] = self.corpora(bench)
        vars(bench)["digests"] = {corpus.name: corpus.digest() for corpus in vars(bench)["read_corpora"]}
        return bench

    def run(self, bench: Any) -> Any:
        """See :meth:`Study.run`; what the data is belongs to what results depend on."""
        bench = self.prepare(bench)
        identity = {**self.identity(), "data": vars(bench)["digests"]}
        with bench.begin(self.registered_name, identity) as opened:
            findings = self.work(opened)
            findings.save(opened.require_run())
        return findings

    def identity(self) -> dict[str, Any]:
        """How networks and proxies are trained; which data sets there are is in the hash of the data."""
        from ...core import record

        names = ("steps", "hidden_dim", "batch_size", "epochs", "lr", "save_every")
        shared = (
            "learning_rate",
            "bsize",
            "embed_dim",
            "as_coded",
            "include_train_results",
            "gold_seed",
            "uniform_seed",
        )
        return {
            **{name: self.setting(name) for name in names},
            **{name: getattr(self, name) for name in shared},
            "other_seeds": list(self.setting("other_seeds")),
            "saves": list(self.saves()),
            "sizes": record.dump(self.sizes()),
            # Only where it is asked for, so that runs without it keep their names.
            **({"keep_models": True} if self.keep_models else {}),
        }

    def work(self, bench: TextBench) -> TextFindings:
        """Train every run of every data set, fit the proxies, and compare."""
        from .text_runs import study_corpus

        summaries = [summary for corpus in vars(bench)["read_corpora"] for summary in study_corpus(self, corpus, bench)]
        return self.findings()(
            folder=bench.run_folder,
            study=self,
            model="recurrent seq2seq" if self.pairs else "recurrent classifier",
            task=", ".join(self.names()),
            summaries=summaries,
        )

    @classmethod
    def findings(cls) -> type[TextFindings]:
        """See :meth:`Study.findings`."""
        from .text_findings import TextFindings

        return TextFindings


def _limited(corpus: Corpus, limit: int | None) -> Corpus:
    from dataclasses import replace

    return corpus if limit is None else replace(corpus, training=corpus.training[:limit])


@register("dynamics-classify")
@dataclass(frozen=True)
class DynamicsClassify(TextStudy):
    """Train text classifiers several times, and see how early knowledge of words foretells their attention."""

    published: ClassVar[dict[str, Any]] = {
        "steps": 4000, "save_every": 250, "custom_saves": (0, 10, 50, 100, 150, 200, 250), "hidden_dim": 256,
        "intermediate_dim": 256, "word_dim": 300, "batch_size": 32, "other_seeds": (13, 14, 15, 16, 17), "epochs": 60,
        "test_set_size": 4000,
    }  # fmt: skip
    smaller: ClassVar[dict[str, Any]] = {
        "steps": 400, "save_every": 50, "custom_saves": (0, 10, 20), "hidden_dim": 32, "intermediate_dim": 32,
        "word_dim": 32, "other_seeds": (13, 14), "epochs": 5, "test_set_size": 500, "lr": 5e-3,
    }  # fmt: skip

    datasets: tuple[str, ...] = ("keywords",)
    """Data sets: keywords (generated), IMDB, Furd, AG_News, Newsgroups, Yelp, Amzn, SMS."""
    classes: tuple[str, ...] = ()
    """The two labels that count as 0 and 1, where the data has more."""
    intermediate_dim: int | None = None
    """Size of the layer inside of the attention."""
    word_dim: int | None = None
    """Size of the network's embeddings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) not in (0, 2):
            raise ParameterError(f"--classes needs two labels, not {len(self.classes)}.")
        if not self.datasets or len({*self.datasets}) < len(self.datasets):
            raise ParameterError("--datasets needs at least one name, each of them once.")

    def sizes(self) -> dict[str, Any]:
        """See :meth:`TextStudy.sizes`."""
        names = {"hidden_dim": "hidden_dim", "intermediate_dim": "intermediate_dim", "word_dim": "embed_dim"}
        return {option: self.setting(name) for name, option in names.items()}

    def names(self) -> tuple[str, ...]:
        """See :meth:`TextStudy.names`."""
        return self.datasets

    def read(self, name: str, bench: TextBench) -> Corpus:
        """See :meth:`TextStudy.read`."""
        from .corpora import classification, read_classification, read_texts

        classes = (self.classes[0], self.classes[1]) if self.classes else None
        size = self.setting("test_set_size")
        if bench.train_file is not None and bench.validation_file is not None:
            training, validation = read_texts(bench.train_file), read_texts(bench.validation_file)
            return classification(bench.train_file.name, training, validation, classes=classes, size=size)
        return read_classification(name, bench.data, classes=classes, size=size)

    def proxy_rate(self, dataset: str) -> float:
        """See :meth:`TextStudy.proxy_rate`: as published for the data set, unless it is given."""
        slow = {"IMDB": 5e-5, "Yelp": 5e-5, "Amzn": 5e-5}
        rate: float | None = self.setting("lr")
        return rate if rate is not None else slow.get(dataset, 1.5e-4)


@register("dynamics-translate")
@dataclass(frozen=True)
class DynamicsTranslate(TextStudy):
    """Train translators several times, and see how early knowledge of words foretells their attention."""

    pairs: ClassVar[bool] = True
    published: ClassVar[dict[str, Any]] = {
        "steps": 36_000, "save_every": 2000, "custom_saves": (0, 50, 100, 500, 1000, 1500), "hidden_dim": 256,
        "batch_size": 16, "other_seeds": (13,), "epochs": 30, "dropout": 0.5, "layers": 2, "vocabulary": 8000,
        "test_set_size": 1000,
    }  # fmt: skip
    smaller: ClassVar[dict[str, Any]] = {
        "steps": 500, "save_every": 50, "custom_saves": (0, 10, 20), "hidden_dim": 64, "batch_size": 32, "epochs": 5,
        "dropout": 0.0, "layers": 1, "vocabulary": 1000, "test_set_size": 100, "lr": 5e-3,
    }  # fmt: skip

    datasets: tuple[str, ...] = ("lexicon",)
    """Data sets: lexicon (generated), multi30k, iwslt14, news_commentary_v14_en_nl, _en_pt, _it_pt."""
    vocabulary: int | None = None
    """Size of the vocabulary of subwords that source and target share."""
    layers: int | None = None
    """Layers of the encoder and of the decoder."""
    dropout: float | None = None
    """Dropout between the layers of the encoder."""
    eval_bleu: bool = False
    """Measure BLEU (sacrebleu, beam search of 5) at every checkpoint, too."""
    grad_bsize: int = 16
    """Examples of a backward pass of the gradient probe."""
    target_ending: str = "en"
    """Ending of the file with the targets beside --train-file and --validation-file."""

    def sizes(self) -> dict[str, Any]:
        """See :meth:`TextStudy.sizes`."""
        return {name: self.setting(name) for name in ("hidden_dim", "layers", "dropout")}

    def identity(self) -> dict[str, Any]:
        """See :meth:`TextStudy.identity`; a run without BLEU has none to show later."""
        return {**super().identity(), **({"eval_bleu": True} if self.eval_bleu else {})}

    def names(self) -> tuple[str, ...]:
        """See :meth:`TextStudy.names`."""
        return self.datasets

    def read(self, name: str, bench: TextBench) -> Corpus:
        """See :meth:`TextStudy.read`."""
        from .corpora import read_pairs, read_translation, translation

        size, vocabulary = self.setting("test_set_size"), self.setting("vocabulary")
        if bench.train_file is not None and bench.validation_file is not None:
            parts = [read_pairs(path, self.target_ending) for path in (bench.train_file, bench.validation_file)]
            return translation(bench.train_file.name, *parts, vocab_size=vocabulary, size=size)
        return read_translation(name, bench.data, vocab_size=vocabulary, size=size)

    def proxy_rate(self, dataset: str) -> float:
        """See :meth:`TextStudy.proxy_rate`."""
        rate: float | None = self.setting("lr")
        return rate if rate is not None else 1e-3
