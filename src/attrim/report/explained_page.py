"""Relevance strips as one HTML page that needs nothing else: images and styles are in the file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.charts import RelevanceStrip, Words
from ..core.painting import Floats
from ..runs.files import replace_file, storage
from .painted import glued, painted_levels, read_image, token_shares

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1f1f1f; background: #fff; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { margin: .2rem 0; }
.levels { display: flex; flex-wrap: wrap; gap: .6rem; margin: .6rem 0; }
figure { margin: 0; flex: 1 1 11rem; max-width: 22rem; }
figure img { width: 100%; image-rendering: pixelated; display: block; }
figcaption { font-size: .85rem; }
.changed { color: #b3261e; font-weight: 600; }
th { text-align: left; font-weight: normal; font-size: .85rem; padding: .15rem .8rem .15rem 0;
  vertical-align: top; white-space: nowrap; }
td { font-family: ui-monospace, monospace; font-size: .9rem; line-height: 1.75; }
.token { padding: .12rem .15rem; border-radius: .2rem; white-space: pre; }
.strong { color: #fff; }
"""


def write_page(charts: Sequence[RelevanceStrip], path: Path, title: str) -> Path:
    """Write all charts to one page."""
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page(charts, title).encode())
    return path


def page(charts: Sequence[RelevanceStrip], title: str) -> str:
    """The page as text; everything that comes from data is escaped."""
    named = html.escape(title)
    parts = "\n".join(map(_section, charts))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{named}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{named}</h1>\n{parts}\n</body></html>\n"
    )


def _section(chart: RelevanceStrip) -> str:
    lines = [f"<section><h2>{html.escape(chart.title or chart.name)}</h2>"]
    if chart.explained:
        lines.append(f"<p>Explained answer: <strong>{html.escape(chart.explained)}</strong></p>")
    lines += [f"<p>{html.escape(fact)}</p>" for fact in chart.facts]
    if chart.boxes is not None or chart.grid:
        lines.append(f'<div class="levels">{_figure(read_image(chart), "image", "", "")}')
        for level, image in zip(chart.levels, painted_levels(chart), strict=True):
            lines.append(_figure(image, level.label, level.answer, _mark(chart, level.answer)))
        lines.append("</div>")
    if chart.texts:
        lines.append("<table>")
        for level, shares in zip(chart.levels, token_shares(chart), strict=True):
            texts = zip(chart.texts, level.texts, shares, strict=True)
            cells = "<br>".join(_tokens(words, numbers, own) for words, numbers, own in texts)
            answer = f'<span class="{_mark(chart, level.answer)}">{html.escape(level.answer)}</span>'
            lines.append(f"<tr><th>{html.escape(level.label)}: {answer}</th><td>{cells}</td></tr>")
        lines.append("</table>")
    return "\n".join([*lines, "</section>"])


def _mark(chart: RelevanceStrip, answer: str) -> str:
    return "same" if answer == chart.levels[0].answer else "changed"


def _figure(image: NDArray[np.uint8], label: str, answer: str, mark: str) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    below = f': <span class="{mark}">{html.escape(answer)}</span>' if answer else ""
    text = html.escape(label)
    alternative = html.escape(f"{label} {answer}".strip(), quote=True)
    return f'<figure><img src="{source}" alt="{alternative}"><figcaption>{text}{below}</figcaption></figure>'


def _tokens(words: Words, numbers: Floats, shares: Floats) -> str:
    """The tokens of a text on grounds that show their relevance; the number is the tooltip."""
    shown: list[str] = []
    for (token, continues), number, share in zip(glued(tuple(words.tokens)), numbers, shares, strict=True):
        strong = " strong" if share > 0.75 else ""
        space = "" if continues or not shown else " "
        shown.append(
            f'{space}<span class="token{strong}" style="background:rgba(217,72,1,{share:.3f})" '
            f'title="{number:.4g}">{html.escape(token)}</span>'
        )
    return "".join(shown)
