"""What evaluating many settings in one go saves against running ``attrim evaluate`` once for each.

Three ways to evaluate the same settings on the same model and data, in one process after another:

- ``k commands``: a new process for each setting, as ``attrim evaluate MODEL --edit SETTING`` k times; each also
  evaluates the unedited model to compare with;
- ``one command``: all settings in one process, which loads, tokenises and evaluates the unedited model once;
- ``shared layers``: the same in which settings of single layers share the unedited first layers.

``python benchmarks/settings.py --data ../shared/data/squad`` prints the table; the scores must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

LAYERS = 6
SETTINGS = [f"threshold:0.02,layers={layer}" for layer in range(LAYERS)]


def run(words: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of wall time of a command in a new process, and the score of each setting that it prints."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    found = json.loads(done.stdout)["results"]
    return seconds, {name: result["metrics"]["top-1"] for name, result in found.items()}


def child(arguments: argparse.Namespace) -> None:
    """Evaluate all settings with shared first layers, and print as ``attrim evaluate --json`` does."""
    from attrim.core.registry import EDITS
    from attrim.core.text import parse
    from attrim.evaluation import evaluate_layers
    from attrim.models.loading import load_model, load_tokenizer
    from attrim.tasks import load_task

    task = load_task("retrieval", data=arguments.data, limit=arguments.limit, paragraphs=arguments.paragraphs)
    model, tokenizer = load_model("minilm"), load_tokenizer("minilm")
    settings = {text: [parse(EDITS, text)] for text in SETTINGS}
    results = evaluate_layers(model, task, tokenizer, settings)
    print(json.dumps({"results": {name: result.to_json() for name, result in results.items()}}))


def main() -> None:
    """Time the three ways and print seconds, ratios and whether the scores agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path("..") / "shared" / "data" / "squad"))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--paragraphs", type=int, default=40)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    options = ["--data", arguments.data, "--limit", str(arguments.limit)]
    evaluate = ["-m", "attrim", "evaluate", "minilm", "--task", "retrieval", *options, "--json"]
    evaluate += ["--option", f"paragraphs={arguments.paragraphs}"]
    apart_seconds, apart = 0.0, {}
    for setting in SETTINGS:
        seconds, scores = run([*evaluate, "--edit", setting])
        apart_seconds += seconds
        apart |= scores
    together_seconds, together = run([*evaluate, *(word for setting in SETTINGS for word in ("--edit", setting))])
    shared_seconds, shared = run([__file__, *options, "--paragraphs", str(arguments.paragraphs), "--child"])
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    print(
        f"{len(SETTINGS)} settings, {arguments.limit} questions, {arguments.paragraphs} paragraphs, threads {threads}"
    )
    for name, seconds in (
        ("k commands", apart_seconds), ("one command", together_seconds), ("shared layers", shared_seconds),
    ):  # fmt: skip
        print(f"{name:15} {seconds:7.1f} s   {seconds / apart_seconds:5.2f} x")
    print("scores agree" if apart == together == shared else f"SCORES DIFFER: {apart} {together} {shared}")


if __name__ == "__main__":
    main()
