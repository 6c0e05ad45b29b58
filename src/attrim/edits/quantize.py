"""Reduce attention weights to few values (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..codebooks.base import Method, check_bits, make_codebook
from ..codebooks.codebook import Codebook, Scope, straight_through
from ..codebooks.fitted import fit_histogram
from ..codebooks.population import fit_groups
from ..core.call import Call, not_finite
from ..core.registry import METHODS, RELEASED
from ..errors import ParameterError
from ..kernels.operations import LookUp
from ..stats.histogram import Histogram
from .base import Edit, register
from .persite import at_heads, at_site
from .rows import normalise_rows, precise

PRUNE = 1e-3
Quantiser = Callable[[Tensor, Call], Tensor]


def load_histogram(folder: str) -> Histogram:
    """The histogram that the stats store saved in ``folder``."""
    from ..stats.bundle import load_stat

    return load_stat(folder, Histogram, "histogram", "histogram")


@register("quantize")
@dataclass(frozen=True, eq=False)
class Quantize(Edit):
    """Replace every attention weight by one of few values (https://arxiv.org/abs/2106.01335).

    Zeros stay zero, no value is above 1, and the weights are not normalised again. Gradients go straight through to the
    weights that are not zeroed.

    Parameters
    ----------
    method : the name of a method (``attrim.codebooks.METHODS`` lists them), or a :class:`Codebook` of your own.
    bits : the number of codes is 2^bits, that of zero included; 1 to 16. Methods with one level take none.
    prune : for methods that prune, the bar below which weights become zero.
    scope : for methods that look at the weights, which of them share a codebook: a ``row``, a ``head`` or a whole
        ``layer`` of one example (never several examples, never padding). The default depends on the method.
    renormalize : divide each row by what is left of it.
    as_coded : do what the paper's released functions do, oddities and the dependence on the batch included.
    low, high : the range of the methods that have one.
    mass : of ``bin-majority``.
    search : of the calibrated methods, ``grid`` or ``entropy``.
    fitted : what the fitted methods need: a ``Histogram`` stat, or codebooks by site name from an earlier fit.
    """

    method: str | Codebook
    bits: int | None = None
    prune: float = PRUNE
    scope: Scope | None = None
    renormalize: bool = False
    as_coded: bool = False
    low: float | None = field(default=None, kw_only=True)
    high: float | None = field(default=None, kw_only=True)
    mass: float | None = field(default=None, kw_only=True)
    search: str | None = field(default=None, kw_only=True)
    fitted: Any = field(default=None, kw_only=True, metadata={"parse": load_histogram})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if not 0 <= self.prune < 1:
            raise ParameterError(f"prune must lie between 0 and 1, not {self.prune}.")
        object.__setattr__(self, "_quantise", self._from_codebooks() or self._from_method())

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The values ``[B, H, Q, K]`` that stand for the weights."""
        quantise: Quantiser = vars(self)["_quantise"]
        values = quantise(_finite(weights.detach(), call), call)
        values = straight_through(weights, values)
        return normalise_rows(values.masked_fill(~call.allowed, 0.0)) if self.renormalize else values

    def compiles(self, call: Call) -> LookUp | None:
        """See :meth:`Edit.compiles`; what depends on the weights or on the head is left to :meth:`edit_weights`."""
        quantise = vars(self)["_quantise"]
        if quantise.func is not _by_site:
            return None
        book: Codebook = at_site(quantise.args[0], call.site, "codebook")
        return LookUp.of(book.table(), self.renormalize)

    @property
    def codebook(self) -> Codebook | None:
        """The codebook that all weights share; None where sites, heads or rows have their own."""
        quantise = vars(self)["_quantise"]
        book = quantise.args[0] if quantise.func is _by_site else None
        return book if isinstance(book, Codebook) and book.edges.ndim == 1 else None

    def _from_codebooks(self) -> Quantiser | None:
        """What applies the codebooks that were given as the method or as ``fitted``; None if there are none."""
        given = self.method if isinstance(self.method, Codebook) else self.fitted
        if given is None or isinstance(given, Histogram):
            return None
        if self.as_coded:
            raise ParameterError("as_coded=True is for the methods of the paper, not for codebooks; leave one out.")
        books = _codebooks(given)
        first = books if isinstance(books, Codebook) else next(iter(books.values()))
        if isinstance(self.method, Codebook):
            object.__setattr__(self, "method", first.name)
        object.__setattr__(self, "bits", first.bits)
        # The plain form, which can be saved.
        plain = books.state() if isinstance(books, Codebook) else {name: book.state() for name, book in books.items()}
        object.__setattr__(self, "fitted", plain)
        return functools.partial(_by_site, books)

    def _from_method(self) -> Quantiser:
        """What applies the method that was named."""
        method = METHODS[str(self.method)]
        object.__setattr__(self, "method", method.registered_name)
        options = method.choose_options(self._given_options(method))
        if self.as_coded:
            return _released(method, options, self.scope)
        scope = method.choose_scope(self.scope)
        if method.kind == "fitted":
            if not isinstance(self.fitted, Histogram):
                raise ParameterError(
                    f"The method {method.registered_name!r} is fitted to data; give fitted=... with a Histogram stat "
                    "(on the command line, the folder of 'attrim measure')."
                )
            books = fit_histogram(method, self.fitted, scope, options)
            object.__setattr__(self, "fitted", {name: book.state() for name, book in books.items()})
            return functools.partial(_by_site, books)
        if self.fitted is not None:
            raise ParameterError(f"The method {method.registered_name!r} is not fitted to data; leave out fitted=... .")
        if scope is None:
            return functools.partial(_by_site, make_codebook(method.registered_name, **options))
        return functools.partial(_by_group, method, scope, options)

    def _given_options(self, method: Method) -> dict[str, Any]:
        """The options that the user set; methods with one level ignore the bits."""
        given = {name: getattr(self, name) for name in ("low", "high", "mass", "search")}
        given["prune"] = None if self.prune == PRUNE else self.prune
        given["bits"] = self.bits if "bits" in method.options else None
        return given


def quantize(weights: Tensor, codebook: Codebook, renormalize: bool = False) -> Tensor:
    """The values of a codebook that stand for weights ``[..., K]``; gradients go straight through.

    Parameters
    ----------
    renormalize : divide each row by what is left of it.
    """
    values = straight_through(weights, codebook.apply(weights))
    return normalise_rows(values) if renormalize else values


def _by_site(books: Codebook | Mapping[str, Codebook], weights: Tensor, call: Call) -> Tensor:
    book: Codebook = at_site(books, call.site, "codebook")
    if book.edges.ndim == 4 and book.edges.shape[1] > 1 and len(call.heads) < call.site.heads:
        edges, values = (at_heads(tensor, call, 1, "codebook") for tensor in (book.edges, book.values))
        book = dataclasses.replace(book, edges=edges, values=values)
    return book.apply(weights)


def _by_group(method: Method, scope: Scope, options: dict[str, Any], weights: Tensor, call: Call) -> Tensor:
    # A padded query has no weights that count, but its row is a group of its own and must come out finite.
    valid = call.allowed if scope == "row" else call.valid
    return fit_groups(method, weights, valid, scope, options).apply(weights)


def _released(method: Method, options: dict[str, Any], scope: Scope | None) -> Quantiser:
    """What the released function of a method does; padding counts as zeros, as it did there."""
    name = method.registered_name
    if name not in set(RELEASED):
        raise ParameterError(f"The method {name!r} is not in the paper's code; leave out as_coded=True.")
    if scope is not None:
        raise ParameterError("as_coded=True takes all weights of a call together; leave out scope=... .")
    return functools.partial(_as_coded, RELEASED[name], options)


def _as_coded(function: Callable[..., Tensor], options: dict[str, Any], weights: Tensor, call: Call) -> Tensor:
    return function(weights.masked_fill(~call.valid, 0.0), **options).to(weights.dtype)


def _codebooks(given: Any) -> Codebook | dict[str, Codebook]:
    """Codebooks from codebooks or from their saved form: one for all sites, or by site name."""
    if isinstance(given, Codebook):
        return given
    if not isinstance(given, Mapping) or not given:
        raise ParameterError(f"fitted must be a Histogram stat or codebooks by site name, not {type(given).__name__}.")
    if "edges" in given:
        return Codebook.load(given)
    return {name: book if isinstance(book, Codebook) else Codebook.load(book) for name, book in given.items()}


def _finite(weights: Tensor, call: Call) -> Tensor:
    """The weights; refuses NaN and infinity, except where the mask forbids, which comes back as zero."""
    # One sum finds them faster than a test of every weight.
    if bool(torch.isfinite(weights.sum(dtype=precise(weights.dtype)))):
        return weights
    weights = weights.masked_fill(~call.allowed, 0.0)
    if not bool(torch.isfinite(weights).all()):
        raise not_finite(call.site)
    return weights
