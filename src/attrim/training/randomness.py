"""Random numbers that depend on the seed and the step alone, so that a resumed run draws the same ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(*key: object) -> None:
    """Seed torch, numpy and Python from a key such as (seed, step, batch): near keys give unrelated numbers."""
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
    # Where there is no other device, torch.manual_seed takes longer to find that out than a small step of training.
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leave the random numbers outside of the context as if nothing had been drawn inside."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
