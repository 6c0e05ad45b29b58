"""What a study is: one object whose fields are its flags, its YAML keys and its Python arguments.

This module imports no torch: the command line reads the fields of every study before anything is computed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from ..core import record
from ..core.registry import STUDIES
from ..errors import ArtefactError, ParameterError
from .bench import Bench, RunKeeper

if TYPE_CHECKING:
    from .findings import Findings

register = STUDIES.register


@dataclass(frozen=True)
class Study:
    """Base of all studies: :meth:`work` does the experiment, with everything that it needs from the bench.

    Attributes
    ----------
    bench : the bench that it needs, whose fields are flags of its command too.
    model_kind : the ``kind`` of model that it needs, whatever the task (``"auto"`` is the model without a head).
    """

    registered_name: ClassVar[str]
    bench: ClassVar[type[RunKeeper]] = Bench
    model_kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Take what Python gives as a flag would give it: 1 for a number with a point, and a list for a tuple."""
        hints = get_type_hints(type(self))
        for item in dataclasses.fields(self):
            what = f"field {item.name!r} of the study {self.registered_name}"
            try:
                value = record.load(hints[item.name], record.dump(getattr(self, item.name)), what)
            except ArtefactError as error:
                raise ParameterError(str(error).replace(" cannot be read: ", ": ")) from error
            object.__setattr__(self, item.name, value)

    def run(self, bench: RunKeeper) -> Findings:
        """Do the experiment, or what a run of it left undone, and keep what it found in the run's folder."""
        bench = self.prepare(bench)
        with bench.begin(self.registered_name, self.identity()) as opened:
            findings = self.work(opened)
            findings.save(opened.require_run())
        return findings

    def prepare(self, bench: Any) -> Any:
        """The bench as the study needs it; refuses what cannot work before a run begins."""
        if not isinstance(bench, self.bench):
            raise ParameterError(
                f"The study {self.registered_name!r} needs a {self.bench.__name__}, not a {type(bench).__name__}."
            )
        wanted: Any = bench
        return replace(wanted, kind=self.model_kind) if self.model_kind and not wanted.kind else wanted

    def work(self, bench: Any) -> Findings:
        """The experiment itself; ``bench`` has an open run."""
        raise NotImplementedError

    @classmethod
    def findings(cls) -> type[Findings]:
        """The class of what :meth:`run` gives, to read a run back."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What the results depend on beside the bench, as JSON values: another one is another run.

        By default these are all fields. A study whose fields only say what to try, under names of their own, leaves
        them out, so that one run can be added to.
        """
        return {item.name: record.dump(getattr(self, item.name)) for item in dataclasses.fields(self)}
