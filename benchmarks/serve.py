"""``attrim serve`` under load, and how soon a moved slider is a new picture.

Twenty clients ask a server on this machine for a minute, each with texts and edits of its own: answers, small pictures
of all heads and tiles. Then a slider is moved in a browser, and the time until the new picture is there is compared
with the time that the model itself takes, measured in this process while the server rests.

    python benchmarks/serve.py [--seconds 60] [--clients 20] [--moves 30]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

TEXT = "the cat did not cross the street because it was too tired and the dog that sat on a mat looked at him"
GREATEST_GROWTH = 1.5
"""Of the server's memory between the first quarter of the load and its end."""
MOST_OVERHEAD = 150.0
"""Milliseconds from slider to picture beside the model's own time."""


@contextmanager
def server(model: str) -> Any:
    """The command in a process of its own, at a free port of this machine."""
    words = [sys.executable, "-m", "attrim", "serve", "--port", "0", "--model", model, "--memory", "64"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        for line in started.stdout or ():
            if found := re.search(r"http://127\.0\.0\.1\S+", line):
                yield started, found[0]
                break
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()


class Asker(threading.Thread):
    """One client: it asks, waits for the answer, and asks again."""

    def __init__(self, url: str, seed: int, end: float) -> None:
        super().__init__()
        self.url, self.random, self.end = urlsplit(url), random.Random(seed), end
        self.times: dict[str, list[float]] = {"look": [], "overview": [], "tile": []}
        self.errors: list[str] = []

    def run(self) -> None:
        """Ask until the end."""
        token = self.url.query.removeprefix("token=")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        line = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=120)
        while time.monotonic() < self.end:
            text = " ".join(self.random.choices(TEXT.split(), k=self.random.randrange(8, 64)))
            edits = {"threshold": {"value": self.random.choice([0.001, 0.01, 0.05])}}
            body = json.dumps({"input": {"text": text}, "edits": edits})
            answer = self._ask(line, "look", "POST", "/api/live/look", body, headers)
            if answer is None:
                continue
            key = json.loads(answer)["edited"]["key"]
            self._ask(line, "overview", "GET", f"/api/live/looks/{key}/overview", None, headers)
            head = self.random.randrange(12)
            self._ask(line, "tile", "GET", f"/api/live/looks/{key}/tile?site=3&head={head}", None, headers)
        line.close()

    def _ask(
        self, line: http.client.HTTPConnection, kind: str, method: str, path: str, body: str | None, headers: Any
    ) -> bytes | None:
        began = time.perf_counter()
        try:
            line.request(method, path, body, headers)
            answer = line.getresponse()
            content = answer.read()
        except OSError as error:
            self.errors.append(repr(error))
            line.close()
            return None
        self.times[kind].append(1000 * (time.perf_counter() - began))
        if answer.status != 200:
            self.errors.append(f"{answer.status} {content[:200]!r}")
            return None
        return content


def load(url: str, process: psutil.Process, clients: int, seconds: float) -> bool:
    """Let the clients ask; True when there was no error and the memory stayed bounded."""
    end = time.monotonic() + seconds
    askers = [Asker(url, seed, end) for seed in range(clients)]
    memory: list[int] = []
    for asker in askers:
        asker.start()
    while any(asker.is_alive() for asker in askers):
        memory.append(process.memory_info().rss)
        time.sleep(0.5)
    errors = [error for asker in askers for error in asker.errors]
    print(f"{clients} clients for {seconds:.0f} s:")
    for kind in ("look", "overview", "tile"):
        times = np.array([one for asker in askers for one in asker.times[kind]])
        p50, p95 = np.percentile(times, [50, 95]) if len(times) else (np.nan, np.nan)
        print(f"  {kind:9} {len(times):6} answers, p50 {p50:7.0f} ms, p95 {p95:7.0f} ms")
    early, late = max(memory[: max(1, len(memory) // 4)]), max(memory[-max(1, len(memory) // 4) :])
    print(f"  memory of the server: {early / 2**20:.0f} MiB in the first quarter, {late / 2**20:.0f} MiB in the last")
    print(f"  errors: {len(errors)}{': ' + errors[0] if errors else ''}")
    return not errors and late < GREATEST_GROWTH * early


MOVE = """async (value) => {
  const live = document.querySelector(".live"), slider = document.querySelector("[data-control=threshold-slider]");
  const before = Number(live.dataset.looks), began = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise((done) => {
    const watch = new MutationObserver(() => {
      if (Number(live.dataset.looks) > before) { watch.disconnect(); requestAnimationFrame(() => done()); }
    });
    watch.observe(live, { attributes: true });
  });
  return performance.now() - began;
}"""


def slide(url: str, model: str, moves: int) -> bool | None:
    """Move a slider in a browser; True when the picture is there in time, None where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("slider: playwright is not installed, so it was not moved")
        return None
    import torch

    import attrim

    path = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_selector(".live[data-state=ready]", state="attached", timeout=60_000)
        text = page.input_value("[data-control=text]")
        places = [round(-4 + 3.5 * at / moves, 3) for at in range(moves + 3)]
        times = [page.evaluate(MOVE, place) for place in places][3:]
        browser.close()
    network, tokenizer = attrim.load_model(model), attrim.load_tokenizer(model)
    batch = tokenizer(text, return_tensors="pt")
    own = []
    with torch.inference_mode(), attrim.edit(network, attrim.Threshold(0.01)):
        for _ in range(moves):
            began = time.perf_counter()
            network(**batch)
            own.append(1000 * (time.perf_counter() - began))
    picture, alone = np.median(times), np.median(own)
    print(f"slider to new picture, {moves} moves: p50 {picture:.0f} ms, p95 {np.percentile(times, 95):.0f} ms")
    print(f"  the model itself {alone:.0f} ms, so {picture - alone:.0f} ms beside it (at most {MOST_OVERHEAD:.0f})")
    return bool(picture - alone < MOST_OVERHEAD)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--model", default="minilm")
    given = parser.parse_args()
    with server(given.model) as (started, url):
        fast = slide(url, given.model, given.moves)
        steady = load(url, psutil.Process(started.pid), given.clients, given.seconds)
    print(f"load: {'as it should be' if steady else 'NOT as it should be'}; slider: ", end="")
    print({True: "as it should be", False: "NOT as it should be", None: "not measured"}[fast])
    return 0 if steady and fast is not False else 1


if __name__ == "__main__":
    sys.exit(main())
