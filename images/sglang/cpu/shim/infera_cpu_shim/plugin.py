# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""General SGLang plugin (entry point group ``sglang.srt.plugins``), loaded in every engine process."""
from __future__ import annotations

import sys

PADDED_SEQUENCE_LENGTH = 1  # what SGLang's other CPU-capable backends answer
CONTROLLER = "sglang.srt.managers.data_parallel_controller"
IDLE_MS = 100


def activate() -> None:
    """Fill the gaps that only show once SGLang's own modules are loaded."""
    pad_under_data_parallelism()
    if CONTROLLER in sys.modules:
        sleep_while_idle(sys.modules[CONTROLLER])


def sleep_while_idle(controller) -> None:
    """Let the data-parallel controller wait for its next message: --sleep-on-idle reaches the schedulers only, and its loop takes a whole core."""
    receive = controller.sock_recv
    if getattr(receive, "waits", False):
        return

    def waiting(socket, flags: int = 0):
        if flags & controller.zmq.NOBLOCK:
            socket.poll(IDLE_MS)
        return receive(socket, flags=flags)

    waiting.waits = True
    controller.sock_recv = waiting


def pad_under_data_parallelism() -> None:
    """Give the torch_native backend the method that padding a batch under attention data parallelism calls on CPU."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    if not hasattr(TorchNativeAttnBackend, "get_cpu_graph_seq_len_fill_value"):
        TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: PADDED_SEQUENCE_LENGTH
