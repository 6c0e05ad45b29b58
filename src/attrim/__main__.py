"""``python -m attrim`` is the same as ``attrim``."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
