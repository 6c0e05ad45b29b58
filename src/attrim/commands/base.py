"""What a command is: a dataclass whose fields are its flags, its YAML keys and its Python parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..core.text import parse_heads, parse_options

if TYPE_CHECKING:
    from ..core.site import Select
    from ..tasks import Task

BUILT_IN_TEXT = Path(__file__).parent.parent / "data" / "paragraphs.json"


@dataclass(frozen=True)
class Outcome:
    """What a command found: values for ``--json``, and what a person reads (texts and ``rich`` tables)."""

    data: dict[str, Any]
    shown: Sequence[Any] = ()


@dataclass(kw_only=True)
class Command:
    """Base of all commands: :meth:`run` does the work and prints nothing but progress."""

    config: Path | None = None
    """YAML file whose keys are the flags of this command; flags given here win over it."""
    json: bool = False
    """Print the result as JSON and nothing else."""
    quiet: bool = False
    """Show no progress, only the result."""

    @property
    def progress(self) -> bool:
        """Whether to show progress bars: only to a person who looks at them."""
        return sys.stderr.isatty() and not (self.quiet or self.json)

    def run(self) -> Outcome:
        """Do what the command says."""
        raise NotImplementedError


@dataclass(kw_only=True)
class OnModel(Command):
    """A command about one model."""

    model: Positional[Annotated[str, arg(metavar="MODEL")]]
    """Hub name, local folder, or built-in name (attrim ls models)."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
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

    def load_model(self, kind: str = "auto") -> Any:
        """Load the model in evaluation mode."""
        from ..models.loading import load_model

        return load_model(self.model, kind, **self.model_options())

    def check_stats(self, edits: Iterable[str], model: Any, tokenizer: Any) -> None:
        """Refuse edits that read stats of another model or tokenizer."""
        from ..studies.settings import check_stats

        check_stats(edits, model, tokenizer)

    def model_options(self) -> dict[str, Any]:
        """How to load the model, as :func:`attrim.load_model` takes it."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            **self.source_options(),
        }

    def source_options(self) -> dict[str, Any]:
        """Where to look for the model."""
        return {
            "revision": self.revision,
            "local_files_only": self.local_files_only,
            "trust_remote_code": self.trust_remote_code,
        }

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model."""
        from ..models.loading import load_tokenizer

        return load_tokenizer(self.model, **self.source_options())

    def select(self) -> Select:
        """The heads that the ``select_`` fields choose."""
        from ..core.site import Select

        return Select(
            roles=self.select_roles or None,
            layers=self.select_layers or None,
            heads=parse_heads("+".join(self.select_heads)) if self.select_heads else None,
            names=self.select_names or None,
        )


@dataclass(kw_only=True)
class OnData(OnModel):
    """A command about one model and some data."""

    task: str
    """Name of the task (attrim ls tasks)."""
    data: str | None = None
    """File or folder to read; built-in is the text that attrim ships (SQuAD format); default: the hub."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """Further option of the task as name=value (repeatable)."""
    limit: int | None = None
    """Use this many examples."""
    seed: int = 123
    """Chooses the examples and resamples."""
    max_length: int | None = None
    """Cut texts to this many tokens (default: the task's own, such as 256)."""
    batch_size: int = 16
    """Examples a forward pass."""
    output: Path | None = None
    """Folder to write results and figures to."""

    def load_task(self) -> Task:
        """Build the task with its options."""
        from ..core.registry import TASKS
        from ..tasks import load_task

        options: dict[str, Any] = {"seed": self.seed, "batch_size": self.batch_size}
        given = {"limit": self.limit, "max_length": self.max_length}
        options |= {name: value for name, value in given.items() if value is not None}
        options["data"] = str(BUILT_IN_TEXT) if self.data == "built-in" else self.data
        options |= parse_options(self.option, TASKS[self.task], f"task {self.task}")
        return load_task(self.task, **options)
