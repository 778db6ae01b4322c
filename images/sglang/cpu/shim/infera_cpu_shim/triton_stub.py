# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""A triton that can be imported and decorated with, and whose kernels refuse to be launched.

SGLang's modules define Triton kernels at import time on every platform; the CPU path launches none of them. The real package
would work as well but adds about 1 GB to the image.
"""
from __future__ import annotations

import importlib
import sys
import types


class Unavailable:
    """Base of every class name that is asked of the stub: may be subclassed, annotated with and used in isinstance checks."""


class Constexpr:
    """``tl.constexpr`` as an annotation and as a wrapper of a value."""

    def __init__(self, value=None):
        self.value = value


class Kernel:
    """A decorated function. Launching it is an error, so that a wrong number can never come out of a missing kernel."""

    def __init__(self, function):
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__module__ = getattr(function, "__module__", None)

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"Triton kernel {self.__module__}.{self.__name__}: the CPU flavour has no Triton")

    def __getitem__(self, grid):
        return self


class Config:
    """``triton.Config`` of an autotune list: only kept."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=2, **extra):
        self.kwargs = dict(kwargs or {})
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.extra = extra


def cdiv(a: int, b: int) -> int:
    """Division rounded up."""
    return (a + b - 1) // b


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n (1 for n < 1)."""
    return 1 << max(n - 1, 0).bit_length()


def _decorate(function):
    return function if isinstance(function, Kernel) else Kernel(function)


class StubModule(types.ModuleType):
    """A module that has every attribute: CamelCase names are classes, others are modules that can also be called as decorators."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            value = type(name, (Unavailable,), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]):
            return _decorate(args[0])
        return _decorate

    def __bool__(self):
        return False


FIXED = {
    "triton": {"__version__": "3.0.0", "cdiv": cdiv, "next_power_of_2": next_power_of_2, "Config": Config},
    "triton.language": {"constexpr": Constexpr, "cdiv": cdiv},
    "triton.compiler.compiler": {"triton_key": lambda: "stub"},
    "triton.runtime.cache": {"triton_key": lambda: "stub"},
}


def make(name: str) -> types.ModuleType:
    """The stub module for the dotted name; hung below its parent when that is loaded."""
    module = StubModule(name)
    module.__path__ = []
    for key, value in FIXED.get(name, {}).items():
        setattr(module, key, value)
    parent, _dot, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module
