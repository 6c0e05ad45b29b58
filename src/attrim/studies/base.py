"""What a study is: a registered function from its parameters to what it found."""

from __future__ import annotations

from ..core.registry import STUDIES

register = STUDIES.register
