"""The emulated prefill's prefix cache: pages by chained hash, least recently used out first, told to the world as SGLang's KV events.

Event form and hashes are those of SGLang 0.5.22 (msgpack maps inside [ts, events, rank]; SHA-256 chained over pages, first 8 bytes, signed).
"""
from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from typing import Any, Sequence

BATCHES_KEPT = 10_000       # for replay, as SGLang's publisher keeps


def chain(ids: Sequence[int], page_size: int) -> list[int]:
    """Event ids of the full pages of a prompt."""
    out, previous = [], b""
    for start in range(0, len(ids) - len(ids) % page_size, page_size):
        raw = b"".join(int(t).to_bytes(4, "little") for t in ids[start:start + page_size])
        previous = hashlib.sha256(previous + raw).digest()
        out.append(int.from_bytes(previous[:8], "big", signed=True))
    return out


class Publisher:
    """PUB and replay sockets of one rank, on the running loop."""

    def __init__(self, host: str, port: int, replay_port: int, topic: str):
        import msgspec
        import zmq
        import zmq.asyncio

        self._encode = msgspec.msgpack.Encoder().encode
        self._topic = topic.encode()
        context = zmq.asyncio.Context.instance()
        self._pub, self._replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self._pub.set_hwm(100_000)
        self._pub.bind(f"tcp://{host}:{port}")
        self._replay.bind(f"tcp://{host}:{replay_port}")
        self._sequence = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=BATCHES_KEPT)
        self._task = asyncio.get_running_loop().create_task(self._answer())

    def send(self, events: list[dict[str, Any]]) -> None:
        payload = self._encode([time.time(), events, 0])
        self._kept.append((self._sequence, payload))
        self._pub.send_multipart([self._topic, self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    async def _answer(self) -> None:
        while True:
            peer, *_empty, start = await self._replay.recv_multipart()
            first = int.from_bytes(start, "big")
            for sequence, payload in list(self._kept):
                if sequence >= first:
                    await self._replay.send_multipart([peer, b"", self._topic, sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([peer, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    def close(self) -> None:
        self._task.cancel()
        self._pub.close(0)
        self._replay.close(0)


class PrefixCache:
    """`pages` full pages at most. publisher: None keeps the cache to itself."""

    def __init__(self, pages: int, page_size: int, publisher: Publisher | None = None):
        self.limit = pages
        self.page_size = page_size
        self.publisher = publisher
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, ids: Sequence[int]) -> int:
        """Compute a prompt: how many of its tokens were cached; afterwards its pages are."""
        hashes = chain(ids, self.page_size)
        hit = 0
        while hit < len(hashes) and hashes[hit] in self._held:
            hit += 1
        for page in reversed(hashes):       # the first pages of a prefix are the last ones to go
            self._held[page] = None
            self._held.move_to_end(page)
        events: list[dict[str, Any]] = []
        for index in range(hit, len(hashes)):
            size = self.page_size
            events.append({"type": "BlockStored", "block_hashes": [hashes[index]], "parent_block_hash": hashes[index - 1] if index else None,
                           "token_ids": [int(t) for t in ids[index * size:(index + 1) * size]], "block_size": size, "lora_id": None,
                           "medium": "GPU"})
        gone = []
        while len(self._held) > self.limit:
            gone.append(self._held.popitem(last=False)[0])
        events += [{"type": "BlockRemoved", "block_hashes": [page], "medium": "GPU"} for page in gone]
        if events and self.publisher is not None:
            self.publisher.send(events)
        return hit * self.page_size

    def flush(self) -> None:
        self._held.clear()
        if self.publisher is not None:
            self.publisher.send([{"type": "AllBlocksCleared"}])
