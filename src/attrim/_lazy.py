"""How the package finds its public names late, and lets a function and its module share one name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that is called like the function of the same name in it: ``attrim.measure(...)``.

    Importing ``attrim.measure`` makes Python put the module where the function ought to be. When the module itself
    can be called, both ``attrim.measure(...)`` and ``attrim.measure.Stats`` work, whatever was imported first.
    """

    @property
    def _function(self) -> Any:
        return vars(self)[self.__name__.rpartition(".")[2]]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)


class LazyPackage(ModuleType):
    """A package whose public names are imported when they are first used."""

    _names: Mapping[str, str]
    _registries: Mapping[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        # Python's import system sets a submodule on its package through this method.
        if isinstance(value, ModuleType) and self._names.get(name) == name and not callable(value):
            value.__class__ = CallableModule
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # asked for by ``from attrim import *``
            return self._public()
        if name in self._names:
            module = import_module(f"{self.__name__}.{self._names[name]}")
            value = module if self._names[name] == name else getattr(module, name)
        elif name[:1].isupper() and name in (members := self._members()):
            value = members[name]
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._public()})

    def _public(self) -> list[str]:
        return sorted({*self._names, *self._members()})

    def _members(self) -> dict[str, Any]:
        """Everything that is registered, by class name."""
        members: dict[str, Any] = {}
        for registry, module in self._registries.items():
            members |= getattr(import_module(f"{self.__name__}.{module}"), registry).by_class_name()
        return members


def make_lazy(package: str, names: Mapping[str, str], registries: Mapping[str, str] | None = None) -> None:
    """Turn an imported package into a :class:`LazyPackage`.

    Parameters
    ----------
    names : public name to the submodule that holds it; a name equal to its submodule is a function in it.
    registries : name of a registry to the submodule that holds it; its members are public under their class names.
    """
    module = sys.modules[package]
    vars(module).update(_names=names, _registries=registries or {})
    module.__class__ = LazyPackage
