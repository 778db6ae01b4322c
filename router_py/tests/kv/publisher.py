"""A publisher of KV events that is not an engine: real ZMQ sockets, the engine's frames and replay protocol, faults on command."""

from __future__ import annotations

import threading

import msgspec
import zmq


def stored(*hashes: int, parent: int | None = None, size: int = 2, medium: str = "GPU") -> dict:
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": [1] * (size * len(hashes)),
            "block_size": size, "lora_id": None, "medium": medium}


def removed(*hashes: int) -> dict:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


class FakePublisher:
    """One rank. `publish(..., lost=True)` puts a batch into the history without sending it. `replays` counts answered requests.

    Ports of 0 are chosen; `port` and `replay_port` tell them. `mute` leaves replay requests unanswered.
    """

    def __init__(self, port: int = 0, replay_port: int = 0, topic: str = "kv-events", history: int = 10_000):
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        for socket in (self.pub, self.router):
            socket.setsockopt(zmq.LINGER, 0)
        self.port, self.replay_port = self._bind(self.pub, port), self._bind(self.router, replay_port)
        self.topic, self.kept = topic.encode(), history
        self.history: list[tuple[int, bytes]] = []
        self.sequence = 0
        self.replays = 0
        self.mute = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @staticmethod
    def _bind(socket, port: int) -> int:
        if port:
            socket.bind(f"tcp://127.0.0.1:{port}")
            return port
        return socket.bind_to_random_port("tcp://127.0.0.1")

    def publish(self, *events: dict, lost: bool = False) -> None:
        payload = msgspec.msgpack.encode([1.0, list(events), 0])
        with self._lock:
            sequence = self.sequence
            self.history = [*self.history, (sequence, payload)][-self.kept:]
            self.sequence += 1
        if not lost:
            self.pub.send_multipart([self.topic, sequence.to_bytes(8, "big"), payload])

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self.router.poll(50):
                continue
            identity, empty, first = self.router.recv_multipart()
            if self.mute:
                continue
            self.replays += 1
            with self._lock:
                history = self.history
            for sequence, payload in history:
                if sequence >= int.from_bytes(first, "big"):
                    self.router.send_multipart([identity, empty, self.topic, sequence.to_bytes(8, "big"), payload])
            self.router.send_multipart([identity, empty, b"", (-1).to_bytes(8, "big", signed=True), b""])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.context.destroy(0)
