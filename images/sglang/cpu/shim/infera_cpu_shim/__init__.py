# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the unedited SGLang 0.5.22 wheel misses on a machine without an accelerator.

Four gaps, and nothing else, are filled from outside of the package:

* ``torchvision`` from PyPI is a CUDA build whose operator library cannot load beside a CPU torch (``hooks``);
* ``triton`` is imported without a condition, although no kernel runs on the CPU path (``hooks``, ``triton_stub``);
* ``TorchNativeAttnBackend`` lacks one method that attention data parallelism asks for (``plugin``);
* the data-parallel controller spins on its socket, which starves the engines where cores are few (``plugin``).

The sibling package ``sgl_kernel`` answers imports of compiled CPU kernels and refuses to run them.
"""
from __future__ import annotations
