"""What a task is: examples, how a model answers them, and how the answers are scored."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.modes import device_of
from ..core.registry import TASKS
from ..errors import DataError, ParameterError
from ..models.loading import load_model, load_tokenizer, longest_input
from ..models.tiny import TINY
from ..runs.result import Columns, Metric
from .batching import Batch, make_batches, sample, shuffle_batches, shuffle_rows, with_decoder
from .encoding import Encode, Example, Row, encode_texts
from .layouts import Layout, arranged

register = TASKS.register
Array = NDArray[Any]


@dataclass(kw_only=True)
class Task:
    """Base of all tasks. Metric values are in per cent (correlations times 100) and larger is better, but for those in
    ``smaller_is_better`` (perplexity).

    The way of an example: :meth:`examples` reads it, :meth:`rows` tokenises it, :meth:`batches` makes tensors of it,
    :meth:`run` gives the model's output for each row, :meth:`columns` turns all outputs into per-example columns, and
    ``metrics`` score columns. Columns are kept and resampled, so that two evaluations can be compared one by one.

    Parameters
    ----------
    data : file or folder to read from; None means the hub, for tasks that have data there.
    limit : use this many examples, chosen by ``seed``.
    seed : for choosing examples; None takes the first ones.
    max_length : cut texts to this many tokens (never more than the model can take).
    batch_size : examples a forward pass.
    layout : where tokens stand (:mod:`attrim.tasks.layouts`); empty leaves them as they come, ``grid`` and ``papa`` put
        every text on ``max_length`` fixed slots.
    """

    data: str | None = None
    limit: int | None = None
    seed: int | None = 123
    max_length: int = 256
    batch_size: int = 16
    layout: Layout = ""

    registered_name: ClassVar[str]
    kind: ClassVar[str] = "auto"  # which model class the task needs, as in attrim.models.loading.KINDS
    metrics: ClassVar[Mapping[str, Metric]] = {}  # the first one is the headline
    smaller_is_better: ClassVar[frozenset[str]] = frozenset()

    def read(self) -> Iterator[Example]:
        """Yield every example of the data, in the order of the files."""
        raise NotImplementedError

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """Tokenise examples: one row each, unless the task says otherwise."""
        return encode_texts(examples, tokenizer, max_length)

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Call the model and return one output ``[B, ...]`` a row; ``inputs`` holds the targets of the rows, too."""
        raise NotImplementedError

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """Turn all outputs ``[rows, ...]`` and labels ``[rows]`` into the columns that the metrics read."""
        raise NotImplementedError

    def hits(self, columns: Columns) -> NDArray[np.bool_] | None:
        """Tell which examples are right, for McNemar's test; None when right and wrong do not exist."""
        return None

    def distances(self, outputs: Array, unedited: Array, labels: Array) -> dict[str, float]:
        """Compare outputs with those of the unedited model, beyond the metric."""
        return {}

    def check(self, model: nn.Module) -> None:
        """Raise an error when the model cannot do this task."""

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """The inputs of a batch as ``model(**inputs)`` takes them; inputs that it takes already stay as they are.

        An encoder-decoder model gets decoder inputs; tasks with images give regions the names that the model has.
        """
        return with_decoder(inputs, getattr(model, "config", None))

    def loss(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The mean loss of a batch of :meth:`train_batches`, a scalar: that of the model's head, unless the task says
        otherwise.
        """
        return head_loss(model, inputs)

    def smoothed(self, amount: float) -> SmoothedLoss:
        """The loss with label smoothing; refused by tasks whose loss is not the cross-entropy of the model's head."""
        if type(self).loss is not Task.loss:
            raise ParameterError(
                f"The task {self.registered_name} has a loss of its own, without label smoothing; leave it out."
            )
        return SmoothedLoss(self, amount)

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and labels of a batch that stand for the same tokens."""
        return logits, labels

    def written(self, outputs: Array) -> list[str]:
        """What the model wrote for each example, from all outputs ``[rows, ...]``; empty if it does not write."""
        return []

    def answer_names(self, model: nn.Module) -> Sequence[str] | None:
        """What the model's answers are called, in the order of its outputs; None when the task does not say."""
        return None

    @property
    def num_labels(self) -> int | None:
        """How many outputs the model's head has; None when the task does not say."""
        return None

    def load_model(self, name: str, **options: Any) -> Any:
        """Load a model with the head that the task needs (:func:`attrim.models.loading.load_model`)."""
        if name in TINY or options.get("new_head"):
            options.setdefault("num_labels", self.num_labels)
        return load_model(name, self.kind, **options)

    def load_tokenizer(self, name: str, **options: Any) -> Any:
        """Load what turns examples into inputs of the model: its tokenizer, or what prepares its images."""
        return load_tokenizer(name, **options)

    def examples(self) -> Iterator[Example]:
        """Yield the chosen examples; never none."""
        empty = True
        for example in self.choose(self.read()):
            empty = False
            yield example
        if empty:
            raise DataError(f"The task {self.registered_name} found no examples in {self.data or 'the hub data'}.")

    def choose(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Keep ``limit`` of the examples."""
        return sample(examples, self.limit, self.seed)

    def batches(self, tokenizer: Any, max_length: int | None = None) -> Iterator[Batch]:
        """Yield all examples as batches; ``max_length`` may lower the task's own."""
        longest = self.max_length if max_length is None else min(self.max_length, max_length)
        examples = self.chosen(tokenizer, longest)
        return make_batches(examples, tokenizer, self.batch_size, longest, self.laid_out(self.rows))

    def chosen(self, tokenizer: Any, max_length: int) -> Iterator[Example]:
        """The examples that are used, for tasks in which only a tokenizer can tell."""
        return self.examples()

    def laid_out(self, encode: Encode) -> Encode:
        """Put the rows of ``encode`` on the slots of the task's layout, if it has one."""
        return arranged(encode, self.layout, self.kind) if self.layout else encode

    def feed(self, model: nn.Module, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
        """Yield batches ready for ``model(**inputs)``: cut to what it can take and on its device (for ``measure``)."""
        device = device_of(model)
        for batch in self.batches(tokenizer, longest_input(model, tokenizer)):
            inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}
            yield self.arguments(inputs, model)

    def train_batches(
        self, tokenizer: Any, model: nn.Module, *, seed: int = 0, epoch: int = 0
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the examples in a random order that ``seed`` and ``epoch`` fix, with labels, for ``model(**inputs)``.

        Parameters
        ----------
        model : says how long texts may be and how its head numbers the labels; it is not called.
        """
        generator = random.Random(f"{seed} {epoch}")
        longest = min(self.max_length, longest_input(model, tokenizer) or self.max_length)
        examples = list(self.chosen(tokenizer, longest))
        generator.shuffle(examples)
        encode: Encode = lambda *given: shuffle_rows(self.laid_out(self.train_rows)(*given), generator)
        batches = make_batches(examples, tokenizer, self.batch_size, longest, encode)
        for batch in shuffle_batches(batches, generator):
            yield self.arguments({**batch.inputs, **self.train_labels(batch, model)}, model)

    def train_rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """Tokenise examples to train with: as for evaluation, unless the task says otherwise."""
        return self.rows(examples, tokenizer, max_length)

    @property
    def trains_as_evaluated(self) -> bool:
        """Whether training has the inputs of the evaluation, so that hidden states can be kept for all epochs."""
        own = type(self)
        return own.train_batches is Task.train_batches and own.train_rows is Task.train_rows

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """The labels of a batch under the names that the model's head expects."""
        raise DataError(f"The task {self.registered_name} has no labels to train with; see 'attrim ls tasks'.")

    def evaluation_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """The labels of a batch of :meth:`batches` under the names that the model's head expects."""
        return self.train_labels(batch, model)

    def score(self, columns: Columns) -> dict[str, float]:
        """Return every metric of some columns."""
        return {name: float(metric(columns)) for name, metric in self.metrics.items()}

    def options(self) -> dict[str, Any]:
        """Return the name and all parameters as JSON values, for run configurations."""
        return {"name": self.registered_name, **dataclasses.asdict(self)}

    def fingerprint(self) -> str:
        """Return a hash of the chosen examples, their labels and their arrays: equal data gives equal fingerprints."""
        digest = hashlib.sha256()
        for example in self.examples():
            label = None if example.label is None else float(example.label)
            digest.update(repr((example.texts, label, *example.answers)).encode())
            for name, array in sorted(example.arrays.items()):
                digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def head_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The loss that a model of ``transformers`` computes when its inputs hold labels."""
    loss: Tensor | None = model(**inputs).loss
    if loss is None:
        raise DataError(f"{type(model).__name__} gives no loss for these inputs; they need labels, or give a loss.")
    return loss


@dataclass(frozen=True)
class SmoothedLoss:
    """Cross-entropy in which part of every right answer goes to all answers alike.

    Szegedy et al. 2016 (https://arxiv.org/abs/1512.00567); the same as ``LabelSmoother`` of ``transformers``.

    Parameters
    ----------
    label_smoothing : that part, from 0 to 1.
    """

    task: Task
    label_smoothing: float

    def __call__(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The mean over the labels of a batch, a scalar."""
        labels = inputs.get("labels")
        if labels is None or labels.is_floating_point():
            what = "no labels" if labels is None else "scores in place of labels"
            raise ParameterError(
                f"The task {self.task.registered_name} has {what}, so none can be smoothed; leave it out."
            )
        output: Any = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        logits, labels = self.task.aligned(output.logits, labels)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        return nn.functional.cross_entropy(flat, labels.reshape(-1), label_smoothing=self.label_smoothing)


def load_task(name: str, **options: Any) -> Task:
    """Build a task by name; an option that the task does not have is an error that lists those it has."""
    kind = TASKS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise DataError(f"The task {kind.registered_name} has no option {option!r}; it has {', '.join(known)}.")
    return kind(**options)
