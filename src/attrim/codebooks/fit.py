"""Codebooks that are fitted to the :class:`~attrim.stats.histogram.Histogram` of a data set, for every site."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor

from ..errors import DataError
from ..stats.bins import BINS, KNOTS
from ..stats.histogram import Histogram
from .base import Method, named
from .codebook import Codebook, Scope


def bin_values() -> Tensor:
    """Float64 ``[BINS]``: what stands for each bin of a histogram: 0, the middles, and 1."""
    middles = (KNOTS[:-1] + KNOTS[1:]) / 2
    values = torch.from_numpy(numpy.concatenate([[0.0], middles, [1.0]]))
    assert len(values) == BINS
    return values


def fit_histogram(
    method: Method, histogram: Histogram, scope: Scope | None, options: dict[str, Any]
) -> dict[str, Codebook]:
    """A codebook for every site of a histogram, with a leading axis ``[1, H, 1]`` where heads have their own."""
    return {
        name: _fit_site(method, name, record.site.heads, record.heads, record.tensors["counts"], scope, options)
        for name, record in histogram.records.items()
    }


def _fit_site(
    method: Method,
    name: str,
    heads: int,
    watched: tuple[int, ...],
    counts: Tensor,
    scope: Scope | None,
    options: dict[str, Any],
) -> Codebook:
    """Fit one site to the counts ``[watched heads, BINS]``."""
    groups = counts if scope == "head" else counts.sum(0, keepdim=True)
    if bool((groups.sum(-1) == 0).any()):
        raise DataError(f"The histogram of site {name!r} is empty, so no codebook can be fitted; measure it first.")
    values = bin_values()
    books = [method.build(values, row.double(), **options) for row in groups]
    size = max(book.edges.shape[-1] for book in books)
    edges, levels = (torch.stack(rows) for rows in zip(*(_padded(book, size) for book in books), strict=True))
    if scope == "head":
        # A head that was not measured has no level: its weights would become zero without a word.
        missing = sorted(set(range(heads)) - set(watched))
        if missing:
            raise DataError(f"Head {missing[0]} of site {name!r} was not measured; measure it, or use scope='layer'.")
    shape = (1, len(books), 1, -1)
    return named(Codebook(edges.view(shape), levels.view(shape)), method.registered_name, options.get("bits"), scope)


def _padded(book: Codebook, size: int) -> tuple[Tensor, Tensor]:
    """Edges ``[size]`` and values ``[size + 1]``; the codes that are added are out of reach."""
    more = size - book.edges.shape[-1]
    return (
        torch.cat([book.edges, book.edges.new_full((more,), float("inf"))]),
        torch.cat([book.values, book.values[-1:].expand(more)]),
    )
