"""What an edit costs over several models and splits.

Run with ``python examples/pool_runs.py SETTING --model RUN ... --model RUN ...``: each ``--model`` is followed by the
run folders of one model (``attrim evaluate --output``), one for each split, in the same order for all models. Sentences
are drawn with replacement, each with the answers of all models, because all were asked the same.
"""

from __future__ import annotations

import argparse

import numpy

from attrim.runs.result import paired_bootstrap
from attrim.runs.run import Run


def hits(folders: list[str], setting: str) -> numpy.ndarray:
    """Whether one model was right, for every example of its runs one after the other."""
    columns = [Run.read(folder).predictions(setting) for folder in folders]
    return numpy.concatenate([column["prediction"] == column["label"] for column in columns])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", nargs="+")
    parser.add_argument("--model", nargs="+", action="append", required=True, metavar="RUN")
    options = parser.parse_args()
    before = numpy.mean([hits(folders, "unedited") for folders in options.model], axis=0)
    accuracy = 100 * before.mean()
    print(f"unedited: {accuracy:.2f} ({len(options.model)} models, {len(before)} examples)")
    for setting in options.setting:
        after = numpy.mean([hits(folders, setting) for folders in options.model], axis=0)
        change = paired_bootstrap(
            lambda columns: 100 * columns["hits"].mean(-1), {"hits": before}, {"hits": after}, resamples=10_000
        )
        loss, low, high = (-100 * part / accuracy for part in (change.value, change.high, change.low))
        print(f"{setting}: change {change}, relative loss {loss:.2f} % [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
