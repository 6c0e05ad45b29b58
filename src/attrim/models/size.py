"""How large a fresh model is: one dataclass for Python, YAML and flags. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a model is; what an architecture does not have is left at its default."""

    layers: int = 4
    """Number of layers; an encoder-decoder model has as many in each part."""
    width: int = 128
    """Size of the hidden states."""
    heads: int = 4
    """Attention heads of a layer."""
    inner: int | None = None
    """Size of the feed-forward layers' insides (default: four times the width)."""
    dropout: float = 0.1
    """Dropout in training."""
    positions: int | None = None
    """The most tokens that the model takes (default: 512; a transformer-xl has no limit)."""
    memory: int | None = None
    """Hidden states of earlier segments that a transformer-xl remembers (default: 150)."""
    cutoffs: tuple[int, ...] = ()
    """Where the clusters of a transformer-xl's adaptive softmax begin, by rank of words (default: a plain softmax)."""

    def check(self) -> None:
        """Raise an error for a value that cannot be meant."""
        numbers = ("layers", "width", "heads", "inner", "positions", "memory")
        for name in numbers:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"The number of {name} must be at least 1, not {value}.")
        if self.width % (2 * self.heads):  # rotary and sinusoidal positions come in pairs
            raise ParameterError(
                f"A width of {self.width} cannot be shared among {self.heads} heads of even width; give a multiple of "
                f"{2 * self.heads}."
            )
        if not 0 <= self.dropout < 1:
            raise ParameterError(f"The dropout must lie between 0 and 1, not at {self.dropout}.")
        if any(cutoff < 1 for cutoff in self.cutoffs) or list(self.cutoffs) != sorted(set(self.cutoffs)):
            raise ParameterError(f"The cutoffs must be ascending word numbers, not {list(self.cutoffs)}.")
