# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""Import hooks, active from interpreter start through ``infera_cpu_shim.pth``. Costs nothing until the names are imported."""
from __future__ import annotations

import importlib.machinery
import sys

TORCHVISION_OPERATORS = ("nms", "qnms")  # the schemas that torchvision/_meta_registrations.py looks up at import


class TorchvisionSchemas:
    """Declares the two operator schemas that torchvision's own library would have declared, just before it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        for operator in TORCHVISION_OPERATORS:
            try:
                torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            except RuntimeError:
                pass  # a torchvision that fits this torch has declared it already
        return None


class TritonStub:
    """Last finder on the path: hands out ``triton_stub`` modules only where no real triton is installed."""

    def find_spec(self, name, path=None, target=None):
        if name != "triton" and not name.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        from infera_cpu_shim import triton_stub

        return triton_stub.make(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, TorchvisionSchemas())
sys.meta_path.append(TritonStub())
