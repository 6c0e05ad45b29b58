"""``attrim serve``: look at runs, and try edits on a model, in a browser."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..core.wording import counted
from ..errors import ParameterError
from .base import Command, Outcome, register

if TYPE_CHECKING:
    from ..studies.bench import Source
    from ..web.catalogue import Catalogue
    from ..web.live import LiveModel

RUNS = Path("runs")


@register("serve")
@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Serve a page for this machine's browser: all runs of some folders, and a model to try edits on."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUNS")]] = ()
    """Runs, or folders of them (default: runs, if it is there)."""
    model: str = ""
    """Model to try edits on: hub name, local folder, .gguf file, or built-in name (attrim ls models)."""
    task: str = ""
    """Task that decides the model's head and gives examples to choose from (attrim ls tasks)."""
    data: str | None = None
    """File or folder of the task; built-in is the text that attrim ships; default: the hub."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """Further option of the task as name=value."""
    kind: str = ""
    """The model's head, where no task decides it: auto (none), causal-lm, masked-lm, ... (default: the saved one)."""
    averages: tuple[Path, ...] = ()
    """Folders of average attention (attrim measure), for constant heads and patterns, beside those of the runs."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights and of the computation."""
    local_files_only: bool = False
    """Never use the network to find the model."""
    trust_remote_code: bool = False
    """Allow model code from the hub to run on this machine."""
    max_length: int = 512
    """Cut texts to this many tokens."""
    memory: int = 512
    """MiB of attention to keep for the page."""
    host: str = "127.0.0.1"
    """Address to listen at; others than this machine itself need --allow-network."""
    port: int = 8787
    """Port to listen at; 0 is any free one."""
    allow_network: bool = False
    """Let other machines reach the server; whoever knows the token sees the runs and uses the model."""

    def run(self) -> Outcome:
        """Serve until Ctrl-C or SIGTERM."""
        from ..web.app import make_app
        from ..web.catalogue import Catalogue
        from ..web.server import Address, serve

        self._check()
        address = Address(self.host, self.port, self.allow_network)
        address.bound().close()  # a port that is taken is said before a model is loaded
        given = self.runs or ((RUNS,) if RUNS.is_dir() else ())
        catalogue = Catalogue(given)
        app = make_app(catalogue, self._live(catalogue))
        found = len(catalogue.entries())
        if not found and not self.model:
            raise ParameterError(
                "There is nothing to show: no run was found and no model was named; give a folder of runs, or --model."
            )

        def ready(url: str) -> None:
            parts = [counted(found, "run"), *([f"the model {self.model}"] if self.model else [])]
            said = f"Serving {' and '.join(parts)}; Ctrl-C ends it. Open:\n  {url}"
            print(said, file=sys.stderr if self.json else sys.stdout, flush=True)
            if self.allow_network:
                warning = "Other machines can reach this server, without encryption; the token is all that protects it."
                print(f"attrim: {warning}", file=sys.stderr, flush=True)

        url = serve(app, address, ready)
        return Outcome({"url": url, "runs": found, "model": self.model}, ["The server has ended."])

    def _check(self) -> None:
        """Refuse what has no effect."""
        about_model = ("task", "data", "option", "kind", "averages", "revision", "trust_remote_code")
        given = [name for name in about_model if getattr(self, name)]
        if given and not self.model:
            raise ParameterError(f"--{given[0].replace('_', '-')} is about a model; give --model, or leave it out.")
        if not self.task and (self.data or self.option):
            raise ParameterError("--data and --option are about a task; give --task, or leave them out.")
        if self.max_length < 8:
            raise ParameterError(f"--max-length must be at least 8 tokens, not {self.max_length}.")
        if self.memory < 1:
            raise ParameterError(f"--memory must be at least 1 MiB, not {self.memory}.")

    def _live(self, catalogue: Catalogue) -> LiveModel | None:
        """The model to try edits on, loaded."""
        if not self.model:
            return None
        from ..web.live import LiveModel

        source = self._source()
        return LiveModel(source, catalogue, self.averages, max_length=self.max_length, memory=self.memory * 2**20)

    def _source(self) -> Source:
        from ..models.shape_models import SHAPE_MODELS
        from ..models.sources import SHIPPED
        from ..studies.bench import Bench, Source

        names = ("kind", "revision", "device", "dtype", "local_files_only", "trust_remote_code")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        task = self.task or ("shapes" if self.model in (*SHIPPED, *SHAPE_MODELS) else "")
        if not task:
            return Source(self.model, **{**options, "kind": self.kind or "saved"})
        return Bench(self.model, task=task, data=self.data, option=self.option, quiet=True, **options)
