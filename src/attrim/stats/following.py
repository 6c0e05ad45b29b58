"""The tokens behind the queries of an attention call, for stats that give rows the names of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..call import Call
from ..errors import DataError

_DECODER_INPUTS = "decoder_input_ids"


@dataclass(eq=False)
class Following:
    """Part of a stat that needs the tokens: an attention call does not know them, but the batch does."""

    _batch: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)

    def begin(self, batch: Mapping[str, Any]) -> None:
        """See :meth:`Stat.begin`."""
        self._batch = batch

    def tokens(self, call: Call, examples: int, queries: int) -> Tensor:
        """The tokens ``[B, Q]`` of the queries; refuses a call whose queries are no tokens of the batch."""
        decoding = call.site.streams[0] == "decoder" and _DECODER_INPUTS in self._batch
        tokens: Tensor | None = self._batch.get(_DECODER_INPUTS if decoding else "input_ids")
        name = type(self).__name__
        if tokens is None:
            raise DataError(f"{name} does not know the tokens; use attrim.measure with batches that have input_ids.")
        if tokens.shape != (examples, queries):
            raise DataError(
                f"The queries at {call.site.name!r} are not the tokens of the batch ({queries} against "
                f"{tokens.shape[-1]}), so they have no names; measure {name} elsewhere with select."
            )
        return tokens
