# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""Import-only stand-in for the compiled ``sgl_kernel``.

With SGLANG_USE_CPU_ENGINE=1 SGLang 0.5.22 imports some ``*_cpu`` functions at module level. A dense model with
``--attention-backend torch_native`` calls none of them, so each name is a function that raises; no operator is registered.
"""
from __future__ import annotations

import importlib.machinery
import sys
import types

__version__ = "0.0.0+import.only"


def _refuse(name):
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"{name}: the CPU flavour has no compiled kernels")

    kernel.__name__ = kernel.__qualname__ = name.rpartition(".")[2]
    return kernel


def __getattr__(name):
    if name.endswith("_cpu"):
        return _refuse(f"{__name__}.{name}")
    raise AttributeError(f"{__name__} (import-only stand-in) has no {name!r}")


class _Mamba(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _refuse(f"{self.__name__}.{name}")


class _Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == f"{__name__}.mamba" else None

    def create_module(self, spec):
        return _Mamba(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
