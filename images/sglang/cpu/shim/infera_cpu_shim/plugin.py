# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""General SGLang plugin (entry point group ``sglang.srt.plugins``), loaded in every engine process."""
from __future__ import annotations

PADDED_SEQUENCE_LENGTH = 1  # what SGLang's other CPU-capable backends answer


def activate() -> None:
    """Give the torch_native backend the method that padding a batch under attention data parallelism calls on CPU."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    if not hasattr(TorchNativeAttnBackend, "get_cpu_graph_seq_len_fill_value"):
        TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: PADDED_SEQUENCE_LENGTH
