"""What a quantising method is: a function that makes a codebook, found by name in :data:`METHODS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..core.registry import METHODS, RELEASED
from ..errors import ParameterError
from .codebook import Codebook, Scope

Kind = Literal["fixed", "grouped", "fitted"]
LARGEST_BITS = 16


@dataclass
class Method:
    """A registered method.

    Attributes
    ----------
    build : makes the codebook. Its parameters are the options that the method takes; those of a ``grouped`` method
        follow the sorted weights of every group, those of a ``fitted`` one the values and counts of a histogram.
    kind : ``fixed`` (the same for all weights), ``grouped`` (from the weights at hand), ``fitted`` (from a stat).
    scopes : what may have a codebook of its own, the usual one first.
    """

    build: Callable[..., Any]
    kind: Kind
    scopes: tuple[Scope, ...] = ()
    registered_name: str = ""

    def __post_init__(self) -> None:
        self.__doc__ = self.build.__doc__

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options of the method by name."""
        skipped = {"fixed": 0, "grouped": 1, "fitted": 2}[self.kind]
        return dict(list(inspect.signature(self.build).parameters.items())[skipped:])

    def choose_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options to build with, out of those that are given (None: not given); refuses what has no effect."""
        known = self.options
        for name, value in given.items():
            if value is not None and name not in known:
                raise ParameterError(
                    f"The method {self.registered_name!r} has no {name!r}; leave it out"
                    + (", and put a Threshold before it to prune." if name == "prune" else ".")
                )
        chosen = {name: value for name, value in given.items() if name in known and value is not None}
        for name, parameter in known.items():
            if name not in chosen and parameter.default is inspect.Parameter.empty:
                raise ParameterError(f"The method {self.registered_name!r} needs {name}=... .")
        return chosen

    def choose_scope(self, scope: Scope | None) -> Scope | None:
        """The scope, by default the usual one; refuses one that the method cannot have."""
        if scope is None:
            return self.scopes[0] if self.scopes else None
        if scope not in self.scopes:
            possible = f"it can have {', '.join(self.scopes)}" if self.scopes else "it is the same for all weights"
            raise ParameterError(f"The method {self.registered_name!r} cannot have scope={scope!r}; {possible}.")
        return scope


def fixed(name: str) -> Callable[[Callable[..., Codebook]], Callable[..., Codebook]]:
    """Register a function of options that makes a codebook."""
    return _register(name, "fixed", ())


def grouped(name: str, *scopes: Scope) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of :class:`~attrim.codebooks.population.Groups` that gives edges and values of each group."""
    return _register(name, "grouped", scopes)


def fitted(name: str, *scopes: Scope) -> Callable[[Callable[..., Codebook]], Callable[..., Codebook]]:
    """Register a function of values and counts, both float64 ``[N]``, that makes a codebook for them."""
    return _register(name, "fitted", scopes)


def released(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register what the paper's released code does for a method: a function of weights and options."""
    return RELEASED.register(name)


def _register(name: str, kind: Kind, scopes: tuple[Scope, ...]) -> Callable[[Any], Any]:
    def decorate(build: Any) -> Any:
        METHODS.register(name)(Method(build, kind, scopes))
        return build

    return decorate


def make_codebook(method: str, bits: int | None = None, **options: Any) -> Codebook:
    """The codebook of a fixed method: ``make_codebook("linear-slog-clamped-midval", bits=3)``.

    Parameters
    ----------
    options : of the method; most pruning ones have ``prune``, the others ``low`` and ``high``.
    """
    known = METHODS[method]
    if known.kind != "fixed":
        raise ParameterError(
            f"The method {known.registered_name!r} depends on the weights; use it as Quantize({method!r}, ...)."
        )
    with_bits = known.choose_options({"bits": check_bits(bits), **options})
    return named(known.build(**with_bits), known.registered_name, with_bits.get("bits"))


def named(codebook: Codebook, name: str, bits: int | None, scope: Scope | None = None) -> Codebook:
    """The codebook with its labels."""
    return Codebook(codebook.edges, codebook.values, name, bits, scope, codebook.tie)


def check_bits(bits: Any) -> int | None:
    """The number of bits, if it is a whole one from 1 to 16."""
    if bits is None:
        return None
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= LARGEST_BITS:
        raise ParameterError(f"bits must be a whole number from 1 to {LARGEST_BITS}, not {bits!r}.")
    return bits
