"""The bench: where a model, its tokenizer and its data come from, and the run that keeps what is computed with them.

Its fields are the flags that every command about a model shares. It can be pickled: another process loads the model
anew, so that one point of work, :func:`evaluate_point`, can run anywhere. Nothing imports torch before it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from tyro.conf import Positional, Suppress, UseAppendAction, arg

from ..errors import DataError, ParameterError

if TYPE_CHECKING:
    from ..core.site import Select
    from ..edits.base import Edit
    from ..evaluation import Prepared
    from ..runs.result import Result
    from ..runs.run import Run
    from ..stats.base import Stat
    from ..stats.bundle import Stats
    from ..tasks.base import Task
    from .findings import Setting

BUILT_IN_TEXT = Path(__file__).parent.parent / "data" / "paragraphs.json"


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and which of its heads everything is about.

    In Python, ``model`` may be a live model too, with its ``tokenizer``.
    """

    model: Positional[Annotated[Any, arg(metavar="MODEL", constructor=str)]]
    """Hub name, local folder, .gguf file, or built-in name (attrim ls models)."""
    _: KW_ONLY
    tokenizer: Suppress[Any] = field(default=None, repr=False)
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    gguf: str | None = None
    """Name of the GGUF file in the folder or repository of the model."""
    kind: str = ""
    """The model's head, where the task does not decide it: auto (none), saved, sequence-classification, ..."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights and of the computation."""
    local_files_only: bool = False
    """Never use the network."""
    trust_remote_code: bool = False
    """Allow model code from the hub to run on this machine."""
    select_roles: tuple[str, ...] = ()
    """Only sites with these roles (encoder, decoder, cross, ...)."""
    select_layers: tuple[int, ...] = ()
    """Only these layers; negative numbers count from the end."""
    select_heads: tuple[str, ...] = ()
    """Only these heads: 3 at every site, 5/11 for head 11 of layer 5, 0-3 for a range."""
    select_names: tuple[str, ...] = ()
    """Only sites whose name matches one of these patterns."""

    def __post_init__(self) -> None:
        # One name for both, so that another file of the same folder is another model to a run.
        if isinstance(self.gguf, str) and isinstance(self.model, str):
            object.__setattr__(self, "model", f"{self.model}/{self.gguf}")
            object.__setattr__(self, "gguf", None)

    def __getstate__(self) -> dict[str, Any]:
        # Neither the loaded model nor the open run: whoever gets the pickle loads the model anew and stores nothing.
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @property
    def name(self) -> str:
        """What to call the model."""
        if isinstance(self.model, (str, Path)):
            return str(self.model)
        return getattr(getattr(self.model, "config", None), "_name_or_path", "") or type(self.model).__name__

    @property
    def live(self) -> bool:
        """Whether the model was given itself, not its name."""
        return not isinstance(self.model, (str, Path))

    @cached_property
    def loaded_model(self) -> Any:
        """The model in evaluation mode, loaded once."""
        return self.model if self.live else self.load_model()

    @cached_property
    def loaded_tokenizer(self) -> Any:
        """The tokenizer of the model, loaded once."""
        if self.tokenizer is not None:
            return self.tokenizer
        if self.live:
            raise ParameterError("A live model needs its tokenizer too; write Bench(model, tokenizer=tokenizer, ...).")
        return self.load_tokenizer()

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model."""
        from ..models.loading import load_tokenizer

        return load_tokenizer(self.model, **self.source_options())

    def load_model(self, **options: Any) -> Any:
        """Load the model; further options are those of :func:`attrim.load_model`."""
        from ..models.loading import load_model, saved_kind

        kind = saved_kind(self.model, **self.source_options()) if self.kind == "saved" else self.kind
        return load_model(self.model, kind or "auto", **{**self.model_options(), **options})

    def model_options(self) -> dict[str, Any]:
        """How to load the model, as :func:`attrim.load_model` takes it."""
        return {"device": self.device, "dtype": self.dtype, **self.source_options()}

    def source_options(self) -> dict[str, Any]:
        """Where to look for the model."""
        names = ("revision", "local_files_only", "trust_remote_code")
        return {name: getattr(self, name) for name in names}

    def select(self) -> Select:
        """The heads that the ``select_`` fields choose."""
        from ..core.site import Select
        from ..core.text import parse_heads

        return Select(
            roles=self.select_roles or None,
            layers=self.select_layers or None,
            heads=parse_heads("+".join(self.select_heads)) if self.select_heads else None,
            names=self.select_names or None,
        )

    def check_stats(self, edits: Sequence[str]) -> None:
        """Refuse edits that read stats (averages, histograms) of another model or tokenizer, whatever their shape."""
        from ..evaluation import check_stats

        check_stats(edits, self.loaded_model, self.loaded_tokenizer)


class RunKeeper:
    """Base of every bench: it opens the run that keeps what is computed. Subclasses have ``output`` and ``quiet``."""

    output: Path | None
    quiet: bool

    @property
    def progress(self) -> bool:
        """Whether to show progress."""
        return not self.quiet

    @contextmanager
    def begin(self, name: str, identity: Mapping[str, Any] | None = None) -> Iterator[Self]:
        """Open the run of this bench, or begin it; the bench that is given back stores what it computes there.

        Parameters
        ----------
        name : of the study or command; the run's folder begins with it.
        identity : JSON values beside those of :meth:`identity` that the results depend on.
        """
        from ..runs.run import Run

        known = {"study": name, **self.identity(), **(identity or {})}
        with Run.open(self.output or Path("runs"), known, name=name) as run:
            bench = object.__new__(type(self))
            vars(bench).update(vars(self), opened=run)  # with what is loaded; a copy would have the fields alone
            yield bench

    @property
    def run_folder(self) -> Path:
        """The folder of the open run."""
        return self.require_run().folder

    def require_run(self) -> Run:
        """The open run."""
        run: Run | None = vars(self).get("opened")
        if run is None:
            raise ParameterError("This bench has no open run; use 'with bench.begin(name) as bench'.")
        return run

    def identity(self) -> dict[str, Any]:
        """Everything that results depend on but the settings of a study, as JSON values."""
        return {}


@dataclass(frozen=True)
class Bench(Source, RunKeeper):
    """A model, a task and a run: what every study works with.

    Examples
    --------
    >>> bench = attrim.Bench("minilm", task="retrieval", data="built-in")
    >>> findings = attrim.Sparsity(bars=(1e-3, 1e-2)).run(bench)

    A live model comes with its tokenizer: ``attrim.Bench(model, tokenizer=tokenizer, task="glue/sst2")``.
    """

    _: KW_ONLY
    task: Annotated[Any, arg(constructor=str)]
    """Name of the task (attrim ls tasks)."""
    data: str | None = None
    """File or folder to read; built-in is the text that attrim ships (SQuAD format); default: the hub."""
    train_file: str | None = None
    """Your own training data, .csv or .json, for the tasks classification, tokens/spans and tokens/tags."""
    validation_file: str | None = None
    """Your own data to evaluate on, in the same form."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """Further option of the task as name=value."""
    limit: int | None = None
    """Use this many examples."""
    seed: int = 123
    """Chooses the examples and resamples."""
    max_length: int | None = None
    """Cut texts to this many tokens (default: the task's own, such as 256)."""
    batch_size: int = 16
    """Examples a forward pass."""
    output: Path | None = Path("runs")
    """Folder of runs; work that was interrupted resumes there."""
    quiet: bool = False
    """Show no progress, only the result."""

    @cached_property
    def loaded_task(self) -> Task:
        """The task with the data that it is evaluated on."""
        return self.make_task()

    def make_task(self, **changes: Any) -> Task:
        """The task; ``changes`` replace its options."""
        from ..core.registry import TASKS
        from ..core.text import parse_options
        from ..tasks.base import Task, load_task

        if isinstance(self.task, Task):
            return dataclasses.replace(self.task, **changes)
        options: dict[str, Any] = {"seed": self.seed, "batch_size": self.batch_size}
        names = ("limit", "max_length", "train_file", "validation_file")
        given = {name: getattr(self, name) for name in names}
        options |= {name: value for name, value in given.items() if value is not None}
        options["data"] = str(BUILT_IN_TEXT) if isinstance(self.data, str) and self.data == "built-in" else self.data
        options |= parse_options(self.option, TASKS[self.task], f"task {self.task}")
        return load_task(self.task, **{**options, **changes})

    @property
    def task_name(self) -> str:
        """What to call the task."""
        return self.task if isinstance(self.task, str) else self.task.registered_name

    def training_task(self, **changes: Any) -> Task:
        """The task with its training data."""
        task = self.make_task(**changes)
        split: dict[str, Any] = {"split": "train"} if hasattr(task, "split") else {}
        return dataclasses.replace(task, **split)

    def validation_task(self, **changes: Any) -> Task:
        """The task with the data that a trained model is evaluated on."""
        return self.make_task(**changes)

    def load_model(self, **options: Any) -> Any:
        """Load the model with the head that the task needs, or with that of ``kind``."""
        if self.kind:
            return super().load_model(**options)
        return self.loaded_task.load_model(self.model, **{**self.model_options(), **options})

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model, or what prepares images for it, as the task needs it."""
        return self.loaded_task.load_tokenizer(self.model, **self.source_options())

    def unscored(self) -> Self:
        """The bench for work that scores nothing: the model keeps the head that it was saved with, if any."""
        head = "auto" if self.loaded_task.kind == "auto" else "saved"
        return self if self.kind else dataclasses.replace(self, kind=head)

    def identity(self) -> dict[str, Any]:
        """Everything that results depend on but the settings of a study, as JSON values."""
        from ..models.digests import tokenizer_digest, weights_digest

        model = self.loaded_model
        return {
            "model": self.name,
            "revision": self.revision,
            "dtype": str(model.dtype).removeprefix("torch.") if hasattr(model, "dtype") else self.dtype,
            "weights": weights_digest(model),
            "tokenizer": tokenizer_digest(self.loaded_tokenizer),
            **self.data_identity(),
            "select": self.select().to_json(),
        }

    def data_identity(self) -> dict[str, Any]:
        """What results depend on in the data: the options of the task and a hash of its examples."""
        return {"task": self._options(self.loaded_task), "data": self.loaded_task.fingerprint()}

    def _options(self, task: Task) -> dict[str, Any]:
        # The path of the installed file says nothing about the results; the hash of its examples does.
        return task.options() | ({"data": self.data} if isinstance(self.data, str) and self.data == "built-in" else {})

    def measure(
        self,
        stats: Stat | Sequence[Stat],
        part: str,
        *,
        task: Task | None = None,
        batches: Iterable[Mapping[str, Any]] | None = None,
        select: Select | None = None,
        edits: Sequence[Edit] = (),
    ) -> Stats:
        """Measure the model over the task's data, or read what an earlier pass with the same options left in the run.

        A pass that was stopped resumes.

        Parameters
        ----------
        part : where the run keeps the stats, ``stats/PART``.
        task : gives the texts; by default the task of the bench.
        batches : what the model runs on, in place of all texts of the task; the same ones whenever the pass resumes.
        select : the heads to watch; by default those of the bench.
        """
        from ..measurement import Checkpoint, measure
        from ..stats.base import Stat
        from ..stats.bundle import Stats

        wanted = [stats] if isinstance(stats, Stat) else list(stats)
        folder = self.run_folder / "stats" / part
        known = Stats.stored(folder, wanted)
        if known is not None:
            return known
        model = self.loaded_model
        if batches is None:
            batches = (task or self.loaded_task).feed(model, self.loaded_tokenizer)
        checkpoint = Checkpoint(folder / "unfinished")
        select = self.select() if select is None else select
        measured = measure(model, batches, wanted, select, self.progress, edits, checkpoint=checkpoint)
        measured.save(folder)
        checkpoint.remove()
        return measured

    def evaluate(self, settings: Sequence[Setting]) -> dict[str, Result]:
        """Evaluate the unedited model and every setting, with a bar that advances by settings.

        Settings that the run already has are read, not repeated; each is stored as soon as it is done.
        """
        from ..core.progress import track
        from ..evaluation import UNEDITED, drive

        edits = {setting.name: setting.edits for setting in settings}
        self.prepared.settings = edits
        with closing(track([UNEDITED, *edits], "evaluating {}".format, self.progress)) as steps:

            def announce(name: str) -> None:
                # Settings that the run already has are passed over.
                next(step for step in steps if step == name)

            run: Run | None = vars(self).get("opened")
            return drive(self.loaded_task, edits, partial(evaluate_point, self), run=run, announce=announce)

    @cached_property
    def prepared(self) -> Prepared:
        """The model and the tokenised examples, ready to be evaluated."""
        from ..evaluation import Prepared

        return Prepared(self.loaded_model, self.loaded_task, self.loaded_tokenizer)


def evaluate_point(bench: Bench, name: str, edits: Sequence[Edit]) -> Result:
    """One point of work: the result of one setting, from a bench that may have been unpickled in another process.

    It stores nothing; whoever drives the work compares the result with the unedited one and keeps it.
    """
    return bench.prepared.point(name, edits)


@dataclass(frozen=True)
class TrainingBench(Bench):
    """A bench for what is trained on one part of the data and evaluated on another."""

    _: KW_ONLY
    limit: int | None = None
    """Train on this many examples."""
    train_option: UseAppendAction[tuple[str, ...]] = ()
    """Option of the task for its training data only, as name=value; the split is train by default."""
    evaluate_limit: int | None = None
    """Evaluate on this many examples."""

    def training_task(self, **changes: Any) -> Task:
        """The task with its training data."""
        from ..core.registry import TASKS
        from ..core.text import parse_options

        task = super().training_task(**changes)
        if not task.metrics:
            raise DataError(
                f"The task {self.task_name} has no metric, so a model cannot be trained for it; choose another."
            )
        own = parse_options(self.train_option, TASKS[task.registered_name], f"task {self.task_name}")
        return dataclasses.replace(task, **own)

    def validation_task(self, **changes: Any) -> Task:
        """The task with its validation data."""
        return self.make_task(**{"limit": self.evaluate_limit, **changes})

    def data_identity(self) -> dict[str, Any]:
        """The options and a hash of the examples of both parts of the data."""
        training, validation = self.training_task(), self.validation_task()
        return {
            "training": self._options(training),
            "training_data": training.fingerprint(),
            "validation": self._options(validation),
            "validation_data": validation.fingerprint(),
        }


@dataclass(frozen=True)
class FinetuningBench(TrainingBench):
    """A training bench whose model gets a new head where it has none for the task."""

    def load_model(self, **options: Any) -> Any:
        """Load the model with the head that it has for this task, or with a new one that the seed fixes."""
        from ..training.finetuning import make_trainable
        from ..training.loop import own_randomness, seed_everything

        with own_randomness():
            seed_everything(self.seed, "head")
            # The number type of a recipe is that of the computation.
            model = super().load_model(**{"dtype": "float32", "new_head": True, **options})
        make_trainable(model, self.loaded_task, self.loaded_tokenizer)
        return model
