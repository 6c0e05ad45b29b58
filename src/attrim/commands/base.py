"""What a command is: a dataclass whose fields are its flags, its YAML keys and its Python parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from tyro.conf import Positional, UseAppendAction, arg

from ..convert import convert
from ..errors import ParameterError, UnknownName

if TYPE_CHECKING:
    from ..select import Select
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
    """Hub name, local folder, GGUF file, or built-in name (attrim ls models)."""
    gguf: str | None = None
    """GGUF file in the folder or hub repository to take the model from."""
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

    def __post_init__(self) -> None:
        # One name for both, so that another file of the same folder is another model to a run.
        if self.gguf is not None:
            self.model, self.gguf = f"{self.model}/{self.gguf}", None

    def load_model(self, kind: str = "auto") -> Any:
        """Load the model in evaluation mode."""
        from ..loading import load_model

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
        from ..loading import load_tokenizer

        return load_tokenizer(self.model, **self.source_options())

    def select(self) -> Select:
        """The heads that the ``select_`` fields choose."""
        from ..edits import parse_edit
        from ..select import Select

        # Heads are written here as in the text of an edit, so the reader of edits reads them.
        heads = parse_edit(f"uniform:heads={'+'.join(self.select_heads)}").select.heads if self.select_heads else None
        return Select(
            roles=self.select_roles or None,
            layers=self.select_layers or None,
            heads=heads,
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
        from ..tasks import TASKS, load_task

        options: dict[str, Any] = {"seed": self.seed, "batch_size": self.batch_size}
        given = {"limit": self.limit, "max_length": self.max_length}
        options |= {name: value for name, value in given.items() if value is not None}
        options["data"] = str(BUILT_IN_TEXT) if self.data == "built-in" else self.data
        options |= named_values(self.option, f"task {self.task}", TASKS[self.task])
        return load_task(self.task, **options)


def named_values(texts: Iterable[str], owner: str, kind: Any) -> dict[str, Any]:
    """Read ``name=value`` texts as the type hints of the dataclass ``kind`` ask for; ``owner`` names it in errors."""
    hints = get_type_hints(kind)
    known = [name for name in inspect.signature(kind).parameters if name != "select"]
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ParameterError(f"The option {text!r} of the {owner} has no value; write {name}=VALUE.")
        if name not in known:
            raise UnknownName(f"option of the {owner}", name, known)
        values[name] = convert(_listed(value.strip()), hints[name], f"option {name!r} of the {owner}")
    return values


def _listed(text: str) -> Any:
    """The list that a text such as ``[1, 0]`` writes; any other text as it is."""
    import yaml

    if not text.startswith("["):
        return text
    try:
        return yaml.load(text, yaml.BaseLoader)  # every entry stays a text
    except yaml.YAMLError:
        return text
