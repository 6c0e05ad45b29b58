"""A page as one HTML file that needs nothing else: modules, style and data are inside, and nothing else may run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...core.charts import Chart
from ...errors import ArtefactError
from ...runs.files import replace_file, storage
from ...studies.findings import Findings
from .payload import Material, charts_payload, payload

STATIC = Path(__file__).parent / "static"
ENTRY = "report.js"
BLOCK = 4096
"""Bytes of base64 from which a matrix gets a block of its own, which is decoded when it is looked at."""
_IMPORT = re.compile(r'^import \{ ([^}]*?) \} from "\./([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
_LIST = re.compile(r"export\s*\{([^}]*)\};?\s*$")


def write_report(runs: Sequence[Findings | Material], path: Path, *, everything: bool = False) -> Path:
    """Write the report of one run, or of several side by side; the parameters are those of :func:`payload`."""
    return write_page(page(payload(runs, everything=everything)), path)


def write_charts(charts: Sequence[Chart], path: Path, title: str) -> Path:
    """Write charts and tables that belong to no run to one page."""
    return write_page(page(charts_payload(charts, title)), path)


def write_page(text: str, path: Path) -> Path:
    """Write the HTML of a page."""
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half of a surrogate pair, which a broken file name may have, cannot be written.
        replace_file(path, text.encode("utf-8", "replace"))
    return path


def page(values: Mapping[str, Any]) -> str:
    """The HTML of a page whose ``report.js`` shows these JSON values.

    Only the script and the style of attrim may run, by their digests; nothing can be loaded from anywhere. Everything
    that comes from data is inside of elements that hold text.
    """
    blocks: list[str] = []
    plain = _blocked(values, blocks)
    data = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    script, style = bundle(), (STATIC / "style.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = "".join(f'<script type="text/plain" id="block-{at}">{text}</script>\n' for at, text in enumerate(blocks))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="generator" content="attrim">'
        f"<title>{html.escape(str(values.get('title', 'attrim')))}</title><style>{style}</style></head>\n"
        '<body><div id="attrim"><p>This page needs JavaScript; everything that it shows is in this file.</p></div>\n'
        f'<script type="application/json" id="payload">{_in_script(data)}</script>\n'
        f"{parts}<script>{script}</script></body></html>\n"
    )


def _blocked(value: Any, blocks: list[str]) -> Any:
    """The values with long matrices moved to blocks, so that the page need not parse them to begin."""
    if isinstance(value, Mapping):
        if isinstance(value.get("bytes"), str) and len(value["bytes"]) >= BLOCK:
            blocks.append(value["bytes"])
            rest = {key: item for key, item in value.items() if key != "bytes"}
            return {**rest, "block": f"block-{len(blocks) - 1}"}
        return {key: _blocked(item, blocks) for key, item in value.items()}
    return [_blocked(item, blocks) for item in value] if isinstance(value, (list, tuple)) else value


def _in_script(text: str) -> str:
    """JSON that cannot end the element it is in, nor begin another one."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def bundle(entry: str = ENTRY) -> str:
    """The modules that ``entry`` needs as one script, each in a function of its own, that starts the page."""
    script = "\n".join(['"use strict";', *_wrapped(entry), f"{_variable(entry)}.start();"])
    if "</script" in script.lower() or "<!--" in script:
        raise ArtefactError("A module of the page cannot stand inside of an HTML file; install attrim again.")
    return script


def _wrapped(entry: str) -> Iterator[str]:
    """The modules in the order in which they need each other."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            raise ArtefactError(f"The modules {' -> '.join((*path, name))} of the page need each other in a circle.")
        if name in done:
            return
        source = (STATIC / name).read_text(encoding="utf-8")
        for _, other in _IMPORT.findall(source):
            yield from visit(other, (*path, name))
        done.add(name)
        yield _function(name, source)

    yield from visit(entry, ())


def _function(name: str, source: str) -> str:
    """A module as a function that gives what it exports."""
    exported = {given: given for given in _EXPORT.findall(source)}
    if listed := _LIST.search(source):
        for item in listed[1].split(","):
            own, _, given = item.strip().partition(" as ")
            exported[given or own] = own
        source = source[: listed.start()]
    body = _EXPORT.sub("", _IMPORT.sub(_taken, source))
    given = ", ".join(f"{outer}: {own}" for outer, own in exported.items())
    return f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {given} }};\n}})();"


def _taken(found: re.Match[str]) -> str:
    names = ", ".join(item.strip().replace(" as ", ": ") for item in found[1].split(","))
    return f"const {{ {names} }} = {_variable(found[2])};"


def _variable(module: str) -> str:
    return "module_" + re.sub(r"\W", "_", module)
