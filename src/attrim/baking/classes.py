"""Classes that are made at run time: a stock class with another one mixed in, under the stock name.

No module has them, so pickle cannot name them. It writes how they are made, and another process makes them again.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any


def make_class(mixin: type, stock: Any, made: tuple[Callable[..., Any], tuple[Any, ...]], **fields: Any) -> Any:
    """A stock class with another one mixed in, under the stock name.

    Parameters
    ----------
    made : the function that makes this class again, and its arguments; both can be pickled.
    fields : of the class.
    """
    fields |= {"__module__": stock.__module__, "attrim_made": made}
    return _type_of_made(type(stock))(stock.__name__, (mixin, stock), fields)  # type: ignore[arg-type]


@functools.cache
def mixed(mixin: type, stock: Any) -> Any:
    """The class of a module with another one mixed in."""
    return make_class(mixin, stock, (mixed, (mixin, stock)))


@functools.cache
def _type_of_made(stock: Any) -> Any:
    """The type of the classes that are made of classes of a type (``type``, or ``ABCMeta``).

    It is a type of its own because pickle writes classes by their names, unless something is known about their type.
    """
    found = type(stock.__name__, (stock,), {"__module__": __name__})
    copyreg.pickle(found, _how)
    return found


def _how(kind: type) -> Any:
    """What pickle writes of a class: how it is made, or its name if it is a subclass that a module has."""
    return vars(kind).get("attrim_made", kind.__qualname__)
