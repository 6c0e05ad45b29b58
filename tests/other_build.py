"""A plugin of pytest that tests the library of the variable ``EMULATED_LIBRARY``, which has AVX-512 emulated."""

from __future__ import annotations

import os

from built import load

load(os.environ["EMULATED_LIBRARY"], emulated=True)
