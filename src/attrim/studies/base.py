"""What a study is: a registered function from its parameters to what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.registry import Registry

STUDIES: Registry[Callable[..., Any]] = Registry("study", "attrim.studies")
register = STUDIES.register
