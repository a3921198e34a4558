"""Replaces modules that are not installed, if only their names are used."""

import importlib.abc
import importlib.machinery
import sys
import types


class _Names(type):
    """The class of Nothing: each attribute of Nothing is Nothing again."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __or__(cls, other):
        return object

    __ror__ = __or__


class Nothing(metaclass=_Names):
    """Serves as a base class, an annotation, a call's result, a decorator, a context manager, or the number 0."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *arguments, **_):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else Nothing()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __bool__(self):
        return False

    def __class_getitem__(cls, _):
        return cls


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder, after those that find installed modules and the files here."""

    def __init__(self, packages):
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def provide(*packages):
    sys.meta_path.append(_Finder(packages))
