"""The report in a browser with the attention of a large model, beside the pages of bertviz on the same attention.

Run with ``python benchmarks/report.py``. It needs Chromium (``make browser``) and playwright. bertviz is not a
dependency of attrim: with ``--bertviz PYTHON``, the interpreter of a virtual environment that has it, and
``--scripts``, the files of d3 5 and jQuery 2 that it loads from the network, its ``model_view`` and ``head_view`` are
written and opened in the same browser. A page that is not ready within the bound counts as not finished.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from attrim.report.page.average_patterns import FULL, HeadPatterns
from attrim.report.page.single_file import page as page_of

LAYERS = HEADS = 12
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
BERTVIZ = """
import re, sys, numpy, torch
from bertviz import head_view, model_view
attention = [torch.from_numpy(layer)[None] for layer in numpy.load(sys.argv[1])]
tokens = [f"token{at}" for at in range(attention[0].shape[-1])]
view = {"model_view": model_view, "head_view": head_view}[sys.argv[2]]
html = view(attention, tokens, html_action="return").data
# bertviz loads its libraries from the network; the same ones from disk, or it would show nothing here.
html = re.sub(r'<script src="https?://[^>]*></script>', "", html)
scripts = "".join(f"<script>{open(path, encoding='utf-8').read()}</script>" for path in sys.argv[4:])
open(sys.argv[3], "w", encoding="utf-8").write("<!doctype html><meta charset='utf-8'><body>" + scripts + html)
"""
REQUIRE = """
// What bertviz asks of require.js: its libraries are already there.
window.require = (names, run) => run(window.jQuery, window.d3);
window.requirejs = window.require;
window.require.config = () => {};
"""


def attention(length: int) -> np.ndarray:
    """Attention ``[layers, heads, N, N]``: diagonals, first tokens, blocks and noise, rows that add up to 1."""
    generator = np.random.default_rng(0)
    place = np.arange(length)
    found = np.empty((LAYERS, HEADS, length, length), dtype=np.float32)
    for layer in range(LAYERS):
        for head in range(HEADS):
            near = -np.abs(place[:, None] - place[None] - (head - 6)) / (0.5 + layer)
            scores = near + 0.7 * generator.standard_normal((length, length))
            scores[:, 0] += layer / 3
            raw = np.exp(scores - scores.max(-1, keepdims=True))
            found[layer, head] = raw / raw.sum(-1, keepdims=True)
    return found


def report(weights: np.ndarray, path: Path, everything: bool) -> None:
    """The page of attrim with these matrices."""
    length = weights.shape[-1]
    rows, present = [f"encoder {layer}" for layer in range(LAYERS)], [True] * LAYERS * HEADS
    matrices = weights.reshape(-1, length, length)
    patterns = HeadPatterns("attention", "Attention", "attention weight", rows, HEADS, present, matrices)
    values = {
        "format": 1,
        "page": "cell",
        "title": "benchmark",
        "charts": [],
        "patterns": [patterns.payload(FULL, everything)],
    }
    path.write_text(page_of(values), encoding="utf-8")


@contextmanager
def browser(executable: str) -> Iterator[Any]:
    """Chromium, anew for each page, so that memory can be told apart."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


def renderer_memory() -> float:
    """Megabytes of the largest renderer process of Chromium that this process has started (resident)."""
    largest = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Chromium writes the arguments of its processes as one text.
            if b"--type=renderer" in (folder / "cmdline").read_bytes() and str(os.getpid()).encode() in _ancestors(
                folder
            ):
                pages = int((folder / "statm").read_text().split()[1])
                largest = max(largest, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        except (OSError, ValueError):
            continue  # the process has ended meanwhile
    return largest


def _ancestors(folder: Path) -> set[bytes]:
    found: set[bytes] = set()
    while folder.name not in ("0", "1"):
        parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
        found.add(parent.encode())
        folder = folder.parent / parent
        if parent == "0":
            break
    return found


def measure(executable: str, path: Path, ready: str, bound: float) -> dict[str, float]:
    """Seconds until a page is ready after its navigation began, memory and nodes; NaN where it does not get ready."""
    with browser(executable) as opened:
        page = opened.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(bound * 1000)
        found = {"megabytes of the file": path.stat().st_size / 1e6}
        begin = time.perf_counter()
        try:
            page.goto(path.resolve().as_uri(), wait_until="commit")
            page.wait_for_function(ready, polling=20)
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found["seconds to ready"] = time.perf_counter() - begin
            found["nodes"] = page.evaluate("document.getElementsByTagName('*').length")
        except Exception as error:
            if "Timeout" not in str(error) and "crash" not in str(error).lower() and "closed" not in str(error).lower():
                raise
            found |= {"seconds to ready": float("nan"), "nodes": float("nan")}
        found["memory (MB)"] = renderer_memory()
        return found


SEEN = """(() => {
  const look = () => {
    const canvas = document.querySelector('.overview canvas');
    if (canvas && canvas.width > 300) window.overviewSeen = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
"""Notes when the overview is there; a canvas that nothing was drawn on is 300 pixels wide."""
HOVER = """{
  const node = document.querySelector('AREA');
  const box = node.querySelector('canvas').getBoundingClientRect();
  const x = box.left + box.width * (0.2 + 0.7 * Math.random());
  const y = box.top + box.height * (0.1 + 0.6 * Math.random());
  node.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: x, clientY: y }));
  node.offsetWidth;
}"""
SWITCH = """
document.querySelector('[aria-label="Next head"]').click();
document.querySelector('.opened .board canvas').getContext('2d').getImageData(0, 0, 1, 1);
"""
REDRAW = """
document.querySelector('.overview select').dispatchEvent(new Event('change'));
document.querySelector('.overview canvas').getContext('2d').getImageData(0, 0, 1, 1);
"""


def interactions(executable: str, path: Path) -> dict[str, float]:
    """Milliseconds of the overview after load, of a switch to another head and of a hover, and nodes of the page."""
    with browser(executable) as opened:
        page = opened.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.add_init_script(SEEN)
        page.goto(path.resolve().as_uri())
        page.wait_for_function("() => window.overviewSeen !== undefined")
        after = "window.overviewSeen - performance.getEntriesByType('navigation')[0].loadEventEnd"
        found = {"overview seen after the load event (ms)": float(page.evaluate(after))}
        redrawn = _times(page, REDRAW, 9)
        page.locator(".overview .board").press("Enter")
        page.locator(".opened").wait_for()
        for what, times in (
            ("overview drawn again", redrawn),
            ("head switch", _times(page, SWITCH, 40)),
            ("hover on the overview", _times(page, HOVER.replace("AREA", ".overview .board"), 200)),
            ("hover on the heat map", _times(page, HOVER.replace("AREA", ".opened .board"), 200)),
        ):
            found |= {f"{what}, median (ms)": statistics.median(times), f"{what}, largest (ms)": max(times)}
        found["nodes"] = page.evaluate("document.getElementsByTagName('*').length")
        return found


def _times(page: Any, action: str, count: int) -> list[float]:
    """Milliseconds of an action; those that draw read a pixel back, so that nothing is put off."""
    body = f"""async () => {{
      const times = [];
      for (let at = 0; at < {count}; at += 1) {{
        await new Promise((done) => setTimeout(done, 2));
        const begin = performance.now();
        {action}
        times.push(performance.now() - begin);
      }}
      return times;
    }}"""
    found: list[float] = page.evaluate(body)
    return found


def bertviz(python: str, weights: np.ndarray, view: str, path: Path, scripts: list[Path], bound: float) -> bool:
    """Write a page of bertviz; False where that takes longer than the bound."""
    array = path.with_suffix(".npy")
    np.save(array, weights)
    words = [python, "-c", BERTVIZ, str(array), view, str(path), *map(str, scripts)]
    try:
        subprocess.run(words, check=True, timeout=bound, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    finally:
        array.unlink()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--bertviz", default="", help="python of an environment with bertviz")
    parser.add_argument(
        "--scripts", type=Path, nargs="*", default=[], help="d3 and jQuery, which bertviz loads from the network"
    )
    parser.add_argument("--bound", type=float, default=120.0, help="seconds that a page may take")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    options = parser.parse_args()
    if not Path(options.chromium).exists():
        sys.exit("There is no Chromium here; make browser installs it, or give --chromium.")
    console = Console()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        require = folder / "require.js"
        require.write_text(REQUIRE)
        table = Table(
            "tokens", "page", "file (MB)", "to ready (s)", "memory (MB)", "nodes", title=f"{LAYERS} x {HEADS} heads"
        )
        for length in options.lengths:
            weights = attention(length)
            for label, everything in (("attrim", False), ("attrim, every head in full", True)):
                path = folder / f"attrim-{length}-{everything}.html"
                report(weights, path, everything)
                gc.collect()
                ready = "() => (document.querySelector('.overview canvas')?.width ?? 0) > 300"
                results[f"{length} {label}"] = measure(options.chromium, path, ready, options.bound)
                _add(table, length, label, results[f"{length} {label}"])
            for view in ("model_view", "head_view") if options.bertviz else ():
                path = folder / f"{view}-{length}.html"
                label = f"bertviz {view}"
                if not bertviz(options.bertviz, weights, view, path, [*options.scripts, require], options.bound):
                    results[f"{length} {label}"] = {"megabytes of the file": float("nan")}
                    table.add_row(str(length), label, f"not written in {options.bound:g} s", "", "", "")
                    continue
                ready = "() => document.querySelectorAll('svg line, svg rect').length > 0"
                results[f"{length} {label}"] = measure(options.chromium, path, ready, options.bound)
                _add(table, length, label, results[f"{length} {label}"])
                path.unlink()
        longest = max(options.lengths)
        results["interactions"] = interactions(options.chromium, folder / f"attrim-{longest}-True.html")
    console.print(table)
    if not options.bertviz:
        console.print("bertviz was not measured: give --bertviz, the python of an environment that has it.")
    inside = Table("what", "number", title=f"attrim at {LAYERS} x {HEADS} x {longest} x {longest}, every head in full")
    for what, number in results["interactions"].items():
        inside.add_row(what, f"{number:.1f}")
    console.print(inside)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1))


def _add(table: Table, length: int, label: str, found: dict[str, float]) -> None:
    seconds = found["seconds to ready"]
    state = f"{seconds:.2f}" if seconds == seconds else "not finished"
    nodes = f"{found['nodes']:.0f}" if found["nodes"] == found["nodes"] else "-"
    table.add_row(
        str(length), label, f"{found['megabytes of the file']:.1f}", state, f"{found['memory (MB)']:.0f}", nodes
    )


if __name__ == "__main__":
    main()
