"""How many cases the fuzz suite tries: a short form in ``make test``, and as many as asked for in ``make fuzz``.

``ATTRIM_FUZZ`` is the number of cases of all parts together and ``ATTRIM_FUZZ_SEED`` chooses them; the same two numbers
try the same cases.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies

SEED = int(os.environ.get("ATTRIM_FUZZ_SEED", "0"))
SHORT = 2_000
CASES = int(os.environ.get("ATTRIM_FUZZ", str(SHORT)))
SHARES = {"texts": 0.45, "command lines": 0.30, "yaml": 0.18, "python": 0.04, "files": 0.02, "commands": 0.01}
"""What part of the cases each kind is: the cheaper, the more."""

tried: Counter[str] = Counter()
"""Cases that were tried, by kind."""


def share(kind: str) -> int:
    """How many cases of a kind to try."""
    return max(1, round(CASES * SHARES[kind]))


def fuzzed(kind: str, part: float = 1.0) -> Callable[[Any], Any]:
    """Make a test of a function of a random generator: so many cases, chosen by the seed, each counted.

    Parameters
    ----------
    part : of the cases of this kind.
    """

    def decorate(test: Callable[[Random], None]) -> Any:
        def counted(random: Random) -> None:
            tried[kind] += 1
            test(random)

        counted.__name__ = test.__name__
        chosen = settings(
            max_examples=max(1, round(share(kind) * part)),
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return chosen(seed(SEED)(given(strategies.randoms(use_true_random=True))(counted)))

    return decorate
