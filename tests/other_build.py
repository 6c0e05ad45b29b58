"""A plugin of pytest that tests the library of the variable ``LIBRARY``; ``EMULATED`` says that it emulates AVX-512."""

from __future__ import annotations

import os

from built import load

load(os.environ["LIBRARY"], emulated="EMULATED" in os.environ)
